"""Checkpoints that P parameter servers save are restored by any number of them, and by others."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compat_tests.cluster.tables_on_servers import (
    LARGE,
    TABLES,
    assert_equal,
    copied,
    evaluate,
    spec,
    train,
    values_of,
)
from compat_tests.support import legacy_checkpoints
from estimator_bridge import convert
from estimator_bridge.checkpoint_files import Reader
from estimator_bridge.cli import main
from tf2_engine.tables import PARAMETERS

pytestmark = pytest.mark.full

SAVED_BY, RESTORED_BY = (1, 2, 5), (1, 3, 4)
BY_MOD = ((1, 3), (2, 1), (2, 3), (5, 4))
PAIRS = [
    *(("div", p, q) for p in SAVED_BY for q in RESTORED_BY),
    *(("mod", p, q) for p, q in BY_MOD),
]
Trained = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Returns the checkpoint of a training to a step by some parameter servers, trained once.

    The one of step 1 is made by one process: all others start from it. Each goes on from the
    checkpoint `after`, or from the first one.
    """
    paths: dict[Any, str] = {}

    def get(steps: int, servers: int, strategy: str = "div", after: str | None = None) -> str:
        key = steps, servers, strategy, after
        if key not in paths:
            folder = tmp_path_factory.mktemp("job") / "model"
            if steps > 1:
                folder = copied(after or get(1, 0), folder)
            paths[key] = train(folder, servers, steps, partition_strategy=strategy)
        return paths[key]

    return get


@pytest.mark.parametrize("strategy, saved_by, restored_by", PAIRS)
def test_other_servers_restore_it(
    strategy: str, saved_by: int, restored_by: int, trained: Trained
) -> None:
    """Q servers go on from a checkpoint of P as one process does: to the bit, slots included."""
    saved = trained(3, saved_by, strategy)
    assert_equal(values_of(saved, strategy), values_of(trained(3, 0)))
    went_on = trained(5, restored_by, strategy, after=saved)
    alone = trained(5, 0, after=trained(3, 0))
    assert_equal(values_of(went_on, strategy), values_of(alone))


@pytest.mark.parametrize("strategy, saved_by", [("div", 1), ("div", 5), ("mod", 2), ("mod", 5)])
def test_one_process_restores_it(
    strategy: str, saved_by: int, trained: Trained, tmp_path: pathlib.Path
) -> None:
    """One process goes on from a checkpoint of P servers, and evaluates it, as from its own."""
    saved, alone = trained(3, saved_by, strategy), trained(3, 0)
    went_on = trained(5, 0, strategy, after=saved)
    assert_equal(values_of(went_on, strategy), values_of(trained(5, 0, after=alone)))
    metrics = evaluate(copied(alone, tmp_path / "own"), 0)
    assert evaluate(copied(saved, tmp_path / "alone"), 0, partition_strategy=strategy) == metrics
    # An evaluation has no slots: a table may be whole on one server there.
    assert evaluate(copied(saved, tmp_path / "on 3"), 3, partition_strategy=strategy) == metrics


@pytest.mark.parametrize("saved_by", SAVED_BY)
def test_each_server_writes_its_part(saved_by: int, trained: Trained) -> None:
    """The parts of a large table are slices of one tensor, and a small one is whole."""
    with Reader(trained(3, saved_by)) as reader:
        counts = [len(reader.tensors[name].slices) for name in TABLES]
    assert counts == [saved_by, 1]


@pytest.mark.parametrize("saved_by", SAVED_BY)
def test_savers_of_tensorflow_restore_it(saved_by: int, trained: Trained) -> None:
    """A Saver of TensorFlow reads a table as one variable, and in other parts."""
    saved = trained(3, saved_by)
    expected = values_of(trained(3, 0))
    for name in (TABLES[0], f"{TABLES[0]}/Adagrad"):
        for parts in (1, 3):
            rows = legacy_checkpoints.read_parts(saved, name, LARGE, parts)
            np.testing.assert_array_equal(np.concatenate(rows), expected[name], name)


@pytest.mark.parametrize("strategy, saved_by", [("div", 1), ("div", 5), ("mod", 2), ("mod", 5)])
def test_convert_and_inspect_read_it(
    strategy: str,
    saved_by: int,
    trained: Trained,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`convert` writes every row in object form and by names; `inspect` lists tables and slots."""
    saved, expected = trained(3, saved_by, strategy), values_of(trained(3, 0))
    of_spec = spec(partition_strategy=strategy)
    convert.convert(saved, str(tmp_path / "names"), to="names", spec=of_spec, like=saved)
    assert_equal(values_of(str(tmp_path / "names/model.ckpt-3")), expected)

    convert.convert(saved, str(tmp_path / "objects"), spec=of_spec)
    back = str(tmp_path / "back")
    convert.convert(str(tmp_path / "objects"), back, spec=of_spec, like=saved)
    carried = legacy_checkpoints.read(str(tmp_path / "back"))
    for name in (*TABLES, *(f"{table}/Adagrad" for table in TABLES)):
        np.testing.assert_array_equal(carried[name], expected[name], name)

    assert main.main(["inspect", saved, "--json"]) == 0
    shown = {table["name"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert sorted(len(table["parts"]) for table in shown.values()) == sorted([1, saved_by])
    assert all(set(t["tensors"]) == {PARAMETERS, "accumulators"} for t in shown.values())

"""Checkpoints of P parameter servers can be restored by Q servers, one process, or others."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.cluster.tables_on_servers import (
    BATCH,
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
SLICE_BYTES = 40_000
"""A part of the large table is several such slices, and none of a whole number of them."""
HOW: dict[str, dict[str, Any]] = {
    "div": {},
    "mod": {"partition_strategy": "mod"},
    "octaves": {"layout": "octaves"},
    "slices": {"slice_bytes": SLICE_BYTES},
    "slices of octaves": {"slice_bytes": SLICE_BYTES, "layout": "octaves"},
}
"""How tables are spread and stored, as options of `train`."""
PAIRS = [
    *(("div", p, q) for p in SAVED_BY for q in RESTORED_BY),
    *(("mod", p, q) for p, q in BY_MOD),
    *(("octaves", p, q) for p, q in ((2, 3), (5, 4))),
    *(("slices", p, q) for p, q in ((1, 3), (5, 4))),
    *(("slices of octaves", p, q) for p, q in ((2, 1), (2, 3))),
]
SAVED = [
    *(("div", 1), ("div", 5), ("mod", 2), ("mod", 5)),
    *(("octaves", 2), ("slices", 0), ("slices", 5), ("slices of octaves", 5)),
]
Trained = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Returns the checkpoint of a training to a step by some parameter servers, trained once.

    The one of step 1 is made by one process: all others start from it. Each goes on from the
    checkpoint `after`, or from the first one.
    """
    paths: dict[Any, str] = {}

    def get(steps: int, servers: int, how: str = "div", after: str | None = None) -> str:
        key = steps, servers, how, after
        if key not in paths:
            folder = tmp_path_factory.mktemp("job") / "model"
            if steps > 1:
                folder = copied(after or get(1, 0), folder)
            paths[key] = train(folder, servers, steps, **HOW[how])
        return paths[key]

    return get


@pytest.mark.parametrize("how, saved_by, restored_by", PAIRS)
def test_other_servers_restore_it(
    how: str, saved_by: int, restored_by: int, trained: Trained
) -> None:
    """Q servers go on from a checkpoint of P as one process does: to the bit, slots included."""
    saved = trained(3, saved_by, how)
    assert_equal(values_of(saved, how), values_of(trained(3, 0)))
    went_on = trained(5, restored_by, how, after=saved)
    alone = trained(5, 0, after=trained(3, 0))
    assert_equal(values_of(went_on, how), values_of(alone))


@pytest.mark.parametrize("how, saved_by", SAVED)
def test_one_process_restores_it(
    how: str, saved_by: int, trained: Trained, tmp_path: pathlib.Path
) -> None:
    """One process goes on from a checkpoint of P servers, and evaluates it, as from its own."""
    saved, alone = trained(3, saved_by, how), trained(3, 0)
    went_on = trained(5, 0, how, after=saved)
    assert_equal(values_of(went_on, how), values_of(trained(5, 0, after=alone)))
    metrics = evaluate(copied(alone, tmp_path / "own"), 0)
    assert evaluate(copied(saved, tmp_path / "alone"), 0, **HOW[how]) == metrics
    # An evaluation has no slots: a table may be whole on one server there.
    assert evaluate(copied(saved, tmp_path / "on 3"), 3, **HOW[how]) == metrics


@pytest.mark.parametrize("saved_by", SAVED_BY)
def test_each_server_writes_its_part(saved_by: int, trained: Trained) -> None:
    """The parts of a large table are slices of one tensor, and a small one is whole."""
    with Reader(trained(3, saved_by)) as reader:
        counts = [len(reader.tensors[name].slices) for name in TABLES]
    assert counts == [saved_by, 1]


@pytest.mark.parametrize("how, servers", [("slices", 0), ("slices", 2), ("slices of octaves", 5)])
def test_no_slice_is_large(how: str, servers: int, trained: Trained) -> None:
    """Slices have so many bytes at most; those of one process, too."""
    with Reader(trained(3, servers, how)) as reader:
        tables = [reader.tensors[name] for name in (TABLES[0], f"{TABLES[0]}/Adagrad")]
        small = reader.tensors[TABLES[1]]
    assert [len(table.slices) > 15 for table in tables] == [True, True]
    assert max(piece.size for table in tables for piece in table.slices) <= SLICE_BYTES
    # It does not say that rows are those of hosts: they are by id.
    assert [table.hosts for table in tables] == [1, 1]
    assert not small.sliced


@pytest.mark.parametrize(
    "how, saved_by", [*(("div", p) for p in SAVED_BY), ("slices", 0), ("slices of octaves", 5)]
)
def test_savers_of_tensorflow_restore_it(how: str, saved_by: int, trained: Trained) -> None:
    """A Saver of TensorFlow reads a table as one variable, and in other parts."""
    saved = trained(3, saved_by, how)
    expected = values_of(trained(3, 0))
    for name in (TABLES[0], f"{TABLES[0]}/Adagrad"):
        for parts in (1, 3):
            rows = legacy_checkpoints.read_parts(saved, {name: LARGE}, parts)[name]
            np.testing.assert_array_equal(np.concatenate(rows), expected[name], name)


@pytest.mark.parametrize("how, saved_by", SAVED)
def test_convert_and_inspect_read_it(
    how: str,
    saved_by: int,
    trained: Trained,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`convert` writes every row in object form and by names; `inspect` lists tables and slots.

    The engine of `to_tf2` goes on with the objects, every row and slot.
    """
    saved, expected = trained(3, saved_by, how), values_of(trained(3, 0))
    of_spec = spec(partition_strategy="mod" if how == "mod" else "div")
    convert.convert(saved, str(tmp_path / "names"), to="names", spec=of_spec, like=saved)
    assert_equal(values_of(str(tmp_path / "names/model.ckpt-3")), expected)

    convert.convert(saved, str(tmp_path / "objects"), spec=of_spec)
    engine = tf2_engine.TPUEmbedding(of_spec.to_tf2().engine_spec, batch_size=BATCH)
    engine.build()
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(embedding=engine, global_step=step)
    path = tf.train.latest_checkpoint(str(tmp_path / "objects"))
    checkpoint.restore(path).assert_existing_objects_matched()
    assert int(step) == 3

    again = checkpoint.write(str(tmp_path / "again"))
    for objects in (str(tmp_path / "objects"), again):
        back = f"{objects} back"
        convert.convert(objects, back, spec=of_spec, like=saved)
        carried = legacy_checkpoints.read(back)
        for name in (*TABLES, *(f"{table}/Adagrad" for table in TABLES)):
            np.testing.assert_array_equal(carried[name], expected[name], name)

    assert main.main(["inspect", saved, "--json"]) == 0
    shown = {table["name"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    with Reader(saved) as reader:
        counts = [len(reader.tensors[name].slices) for name in TABLES]
    assert sorted(len(table["parts"]) for table in shown.values()) == sorted(counts)
    assert all(set(t["tensors"]) == {PARAMETERS, "accumulators"} for t in shown.values())

"""`estimator-bridge inspect` counts the rows that training has changed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import OTHERS, spec_of, tables_of
from estimator_bridge import convert, errors
from estimator_bridge.cli import main

FLAGS = ["--table", "users=users", "--table", "few=few", "--optimizer", "Adagrad"]


def write(directory: pathlib.Path, writers: tuple[int, int], strategy: str) -> None:
    """Writes the checkpoints of steps 0 and 77; three rows of "users" differ, none of "few".

    Args:
        writers: the hosts that wrote each.
    """
    values, _ = tables_of("Adagrad", "dict")
    moved = {name: value.copy() for name, value in values.items()}
    moved["users"][[2, 5]] += 1
    moved["users/Adagrad"][[5, 7]] += 1
    for step, hosts, tables in ((0, writers[0], values), (77, writers[1], moved)):
        others = {**OTHERS, "global_step": np.int64(step)}
        path = str(directory / f"model.ckpt-{step}")
        legacy_checkpoints.write(path, tables, others, hosts, strategy)


def touched(report: dict[str, Any]) -> dict[str, int | None]:
    return {table["name"]: table["rows_touched"] for table in report["tables"]}


@pytest.mark.parametrize("strategy", [pytest.param("div", marks=pytest.mark.full), "mod"])
@pytest.mark.parametrize("writers", [(1, 1), (5, 5), (5, 1), (2, 5)], ids=str)
def test_rows_are_compared_by_id(
    strategy: str,
    writers: tuple[int, int],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`inspect` counts the rows that moved, or says "unknown" if their order is not known.

    It tells how many of the rows of all tables it has compared, to the last one.
    """
    write(tmp_path, writers, strategy)
    told: list[tuple[str, int, int]] = []
    report = convert.inspect(
        str(tmp_path),
        spec=spec_of("Adagrad", "dict", strategy),
        progress=lambda *what: told.append(what),
    )

    assert touched(report) == {"users": 3, "few": 0}
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    assert told[-1] == ("comparing rows", 13 + 3, 13 + 3)
    command = ["inspect", str(tmp_path), *FLAGS]
    assert main.main([*command, "--from_partition", strategy, "--json"]) == 0
    assert touched(json.loads(capsys.readouterr().out)) == {"users": 3, "few": 0}
    assert main.main(command) == 0
    text = capsys.readouterr().out
    known = writers[0] == writers[1]
    assert f"table users: [13, 4], Adagrad, {'' if writers[1] == 1 else '5 parts of'}" in text
    assert f", {'3' if known else 'unknown'} rows touched\n" in text


def test_what_the_initial_checkpoint_lacks_is_left_out(tmp_path: pathlib.Path) -> None:
    """Slots that came later count nothing; a table that came later is unknown, or refused."""
    write(tmp_path, (1, 1), "div")
    values, _ = tables_of("Adagrad", "dict")
    first = {**OTHERS, "global_step": np.int64(0), "users": values["users"]}
    legacy_checkpoints.write(str(tmp_path / "model.ckpt-0"), {}, first)
    tables = {"users": "users", "few": "few"}

    latest = str(tmp_path / "model.ckpt-77")
    assert touched(convert.inspect(latest, tables=tables)) == {"users": 2, "few": None}
    with pytest.raises(errors.InvalidInput, match=r"ckpt-0: it has no 'few' of \[3, 4\]"):
        convert.inspect(latest, tables=tables, initial=str(tmp_path / "model.ckpt-0"))


def test_rows_of_objects_are_compared(tmp_path: pathlib.Path) -> None:
    """The initial checkpoint of an object checkpoint is given; that of step 0 has none."""
    write(tmp_path, (1, 1), "div")
    for step in (0, 77):
        path = str(tmp_path / f"model.ckpt-{step}")
        convert.convert(path, str(tmp_path / f"o{step}"), spec=spec_of())
    options = {"tables": {"users": "users", "few": "few"}, "optimizer": "Adagrad"}

    report = convert.inspect(str(tmp_path / "o77"), initial=str(tmp_path / "o0"), **options)
    of_first = convert.inspect(str(tmp_path / "model.ckpt-0"), **options)

    assert touched(report) == {"users": 3, "few": 0}
    assert report["initial"] is not None
    assert of_first["initial"] is None
    assert touched(of_first) == {"users": None, "few": None}

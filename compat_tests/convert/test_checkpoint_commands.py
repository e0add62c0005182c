"""`estimator-bridge convert` and `estimator-bridge inspect`: their output and effects."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import textwrap

import numpy as np
import pytest

from compat_tests.support import legacy_checkpoints
from compat_tests.support.conversions import END, OTHERS, assert_same, tables_of
from estimator_bridge import convert
from estimator_bridge.cli import main

PROGRAM = textwrap.dedent(
    """
    import tensorflow.compat.v1 as tf
    from estimator_bridge.legacy.parameters import AdagradParameters
    from estimator_bridge.legacy.spec import EmbeddingConfigSpec
    from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
    from sizes import USERS

    def spec():
        tables = {"users": TableConfig(USERS, 4), "few": TableConfig(3, 4)}
        return EmbeddingConfigSpec(
            feature_to_config_dict={name: FeatureConfig(name) for name in tables},
            table_to_config_dict=tables,
            optimization_parameters=AdagradParameters(0.1),
            partition_strategy="mod",
        )

    SPEC = spec()
    NOT_A_SPEC = 5

    if __name__ == "__main__":
        raise SystemExit("the program itself must not run")
    """
)


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Writes a program with a spec, that imports what lies beside it."""
    (tmp_path / "sizes.py").write_text("USERS = 13\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    for name in ("sizes", "program"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "program.py"


@pytest.fixture
def old(tmp_path: pathlib.Path) -> str:
    """Writes a checkpoint of mod on five hosts into a directory; returns the directory."""
    values, _ = tables_of()
    path = str(tmp_path / "old" / "model.ckpt-77")
    legacy_checkpoints.write(path, values, OTHERS, 5, "mod")
    return str(tmp_path / "old")


@pytest.mark.parametrize("name", ["SPEC", "spec"])
@pytest.mark.parametrize("form", ["file", "module"])
def test_convert_with_the_spec_of_a_program(
    name: str,
    form: str,
    program: pathlib.Path,
    old: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file or a module gives the spec, or a function of it; the map is printed.

    There is no progress where there is no terminal. `--dry_run` prints the map, and makes nothing.
    """
    where = str(program) if form == "file" else "program"
    new = str(tmp_path / "new")
    arguments = ["convert", old, new, "--spec", f"{where}:{name}"]

    assert main.main([*arguments, "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "9 tensors; nothing was written (--dry_run)."
    assert not os.path.exists(new)
    assert main.main(arguments) == 0

    out, err = capsys.readouterr()
    assert out.splitlines() == [*lines[:-1], f"{new}: 9 tensors, read back and compared."]
    assert (
        f"table 'few', accumulators: few/Adagrad -> embedding/few.Saccumulators{END}  "
        "float32[3, 4]  (mod on 5 hosts -> rows by id)"
    ) in lines
    assert "comparing" not in err
    values, keys = tables_of()
    converted = legacy_checkpoints.read(new)
    assert_same(values, {name: converted[key] for name, key in keys.items()})


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--spec", "program.py:SPEC", "--table", "users"], "--table must be NAME=VALUE"),
        (["--spec", "program.py"], "--spec must be module:attribute or file.py:name"),
        (["--spec", "nothing.py:SPEC"], "there is no file 'nothing.py'"),
        (["--spec", "no_such_module:SPEC"], "No module named 'no_such_module'"),
        (["--spec", "program.py:OTHER"], "program.py has no 'OTHER'"),
        (["--spec", "program.py:NOT_A_SPEC"], "is not an EmbeddingConfigSpec, but 5"),
        (["--from_partition", "div", "--rename", "a="], "--rename must be NAME=VALUE"),
        ([], '"div" or "mod"'),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(
    arguments: list[str],
    message: str,
    program: pathlib.Path,
    old: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["convert", old, str(tmp_path / "new"), *arguments]) == 2

    assert message in capsys.readouterr().err


def test_flags_reach_the_conversion(
    program: pathlib.Path, old: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every flag of `convert` does what the argument of that name does."""
    flags = [
        "--from_partition mod --from_hosts 5 --optimizer Adagrad --root a/b",
        "--table people/x.y=users --table few=few --rename counts=tower/counts --global_step 9",
    ]
    objects, back = str(tmp_path / "objects"), str(tmp_path / "back")
    assert main.main(["convert", old, objects, *" ".join(flags).split()]) == 0
    assert f"a/b/people.Sx..y.Saccumulators{END}" in legacy_checkpoints.read(objects)
    flags = [
        "--to names --to_partition mod --to_hosts 2 --slots cpu --root a/b --optimizer Adagrad",
        f"--table people/x.y=people --table few=scope/few --allow nothing --like {old}",
    ]
    assert main.main(["convert", objects, back, *" ".join(flags).split()]) == 0

    capsys.readouterr()
    values, _ = tables_of()
    converted = legacy_checkpoints.read(back)
    people = legacy_checkpoints.by_id(converted["people/Adagrad"], 2, "mod")
    np.testing.assert_array_equal(people, values["users/Adagrad"])
    assert converted["global_step"] == 9
    np.testing.assert_array_equal(converted["tower/counts"], OTHERS["counts"])


# --- inspect --------------------------------------------------------------------------------


def test_inspect_tells_what_there_is(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON name every table with its slots, shape, parts and sizes, and the rest."""
    assert main.main(["inspect", old, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main.main(["inspect", old]) == 0
    text = capsys.readouterr().out.splitlines()

    assert report == convert.inspect(old)
    assert {key: report[key] for key in ("form", "global_step", "initial")} == {
        "form": "names",
        "global_step": 77,
        "initial": None,
    }
    assert report["bytes"] == sum(
        path.stat().st_size for path in pathlib.Path(old).glob("model.ckpt-77.[id]*")
    )
    users = next(table for table in report["tables"] if table["name"] == "users")
    assert users == {
        "name": "users",
        "optimizer": "Adagrad",
        "rows": 13,
        "dim": 4,
        "parts": [3, 3, 3, 2, 2],
        "tensors": {
            "parameters": {"name": "users", "bytes": 208},
            "accumulators": {"name": "users/Adagrad", "bytes": 208},
        },
        "sparse_cores": None,
        "rows_touched": None,
    }
    assert {"name": "counts", "dtype": "int32", "shape": [3]} in report["variables"]
    assert text[0].startswith(f"{old}/model.ckpt-77: names checkpoint, step 77, ")
    assert "table users: [13, 4], Adagrad, 5 parts of 2 to 3 rows" in text
    assert "  accumulators: users/Adagrad, 208 B" in text
    assert "variable counts: int32[3]" in text


def test_inspect_tells_what_a_table_lacks(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slot that the optimizer needs and the checkpoint lacks is shown as missing."""
    values, _ = tables_of()
    legacy_checkpoints.write(str(tmp_path / "m"), {"users": values["users"]}, OTHERS)

    arguments = ["inspect", str(tmp_path), "--table", "users=users", "--optimizer", "Adam"]
    assert main.main(arguments) == 0

    text = capsys.readouterr().out.splitlines()
    assert "  momenta: missing" in text
    assert "  velocities: missing" in text

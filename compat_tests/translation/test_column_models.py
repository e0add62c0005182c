"""Ten programs, one per kind of column, run; audit, translation and migration are as recorded."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from compat_tests import column_models
from compat_tests.goldens import record_column_models as recorder
from estimator_bridge import migrate

RUN_ALL = """
import contextlib, io, json, pathlib, runpy, sys

folder, installed = pathlib.Path(sys.argv[1]), sys.argv[2] == "installed"
if installed:
    from estimator_bridge import install
    install.install(replace=True)
losses = {}
for number, path in enumerate(sorted(folder.glob("*.py"))):
    out = io.StringIO()
    sys.argv = [str(path), str(folder / f"model{number}")]
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    losses[path.stem] = json.loads(out.getvalue())["loss"]
print(json.dumps(losses))
"""


def run_all(folder: pathlib.Path, how: str) -> dict[str, Any]:
    """Runs all programs of a folder in one process; returns the loss that each ends with."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL, str(folder), how], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return dict(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kind", recorder.KINDS)
@pytest.mark.parametrize("name", recorder.NAMES)
def test_reports_are_those_that_were_recorded(name: str, kind: str) -> None:
    golden = recorder.path_of(name, kind).read_text(encoding="utf-8")

    assert recorder.KINDS[kind](name) == golden


def test_there_are_ten() -> None:
    files = {path.name for path in recorder.GOLDENS.iterdir()}

    assert len(recorder.NAMES) == 10
    assert files == {recorder.path_of(n, k).name for n in recorder.NAMES for k in recorder.KINDS}


@pytest.mark.full
def test_migrated_programs_end_where_the_old_ones_do(tmp_path: pathlib.Path) -> None:
    """A migrated program, which imports the bridge by itself, ends with exactly the old loss."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        column_models.write(folder)
    for path in new.glob("*.py"):
        path.write_text(migrate.adopt(path.read_text()).source)

    assert run_all(new, "alone") == run_all(old, "installed")

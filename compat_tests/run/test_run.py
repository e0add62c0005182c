"""`estimator-bridge run`, and the names that it puts in the place of stock's."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from compat_tests.support import fresh, migrate_corpus
from estimator_bridge.cli import main

PROGRAM = migrate_corpus.programs()["plain"].source
for old, new in (
    ("import sys\n", "import sys\nimport beside\n"),
    ("USE_TPU = False", "USE_TPU = sys.argv[2] == 'tpu'"),
    ("feature_columns=columns,", "feature_columns=columns, clipping_limit=0.5,"),
    ("  main(sys.argv[1])", "  main(sys.argv[1])\n  print(beside.NAME, __name__)"),
):
    assert old in PROGRAM
    PROGRAM = PROGRAM.replace(old, new)


@pytest.mark.parametrize("use_tpu", ["tpu", "host"])
def test_a_program_runs_unedited(use_tpu: str, tmp_path: pathlib.Path) -> None:
    """A legacy script runs as it is, with its arguments and its folder; two lines say how."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    ran = fresh.module("estimator_bridge", "run", script, tmp_path / "job", use_tpu)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "beside __main__"
    assert (tmp_path / "job" / "model.ckpt-4.index").exists()
    assert f"running {script} on TensorFlow {tf.__version__.rsplit('.', 1)[0]}" in ran.stderr
    if use_tpu == "tpu":
        assert ran.stderr.count("estimator-bridge: use_tpu=True: the TF2 embedding engine") == 1
        assert "`clipping_limit`=0.5 is ignored, as stock ignores it." in ran.stderr
    else:
        assert ran.stderr.count("estimator-bridge: use_tpu=False: no embedding engine") == 1


def test_cores_of_stock_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stock emulates none: `--cores` would have no effect."""
    script = tmp_path / "job.py"
    script.write_text("raise AssertionError\n")

    assert main.main(["run", "--stock", "--cores", "4", str(script)]) == 2
    assert "--cores 4: stock's estimator runs on one core here" in capsys.readouterr().err

"""`estimator-bridge record` turns a program into a recording that can be replayed."""

from __future__ import annotations

import pathlib

import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.recording.test_replay import LEFT_OUT, repeated
from compat_tests.run.test_run import PROGRAM
from estimator_bridge.cli import main
from estimator_bridge.recording import Recording, Replay
from estimator_bridge.verification import procedure

SIDES = ("stock", "bridge") if HAS_STOCK else ("bridge",)


@pytest.mark.full
@pytest.mark.parametrize("side", SIDES)
def test_a_program_is_recorded_and_replayed(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], side: str
) -> None:
    """The recording has every step, only files of the format, and a measure of rounding."""
    program, recorded = tmp_path / "train.py", tmp_path / "recorded"
    program.write_text(
        PROGRAM.replace("job.train(input_fn, steps=2)", "job.train(input_fn, steps=3)")
    )
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    options = ["record", "-o", str(recorded), "--side", side, "--steps", "3"]

    assert main.main([*options, str(program), str(tmp_path / "job"), "tpu"]) == 0
    assert "3 steps with 1 tables" in capsys.readouterr().out
    files = {path.suffix for path in recorded.rglob("*") if path.is_file()}
    assert files == {".json", ".npz"}
    recording = Recording(recorded)
    assert recording.numbers() == [0, 1, 2, 3]
    assert recording.measured.numbers() == [0, 1, 2, 3]
    for number, (rows_are_times, agree) in enumerate([(1.0, True), (2.0, False)]):
        out = tmp_path / str(number)
        with Replay(recorded, out, left_out=LEFT_OUT) as replay:
            for step in replay:
                assert {*step.bag("word").shape} == {len(step.arrays["labels"])}
                results = repeated(step, recorded)
                for table in results["tables"].values():
                    table["rows"] = rows_are_times * table["rows"]
                step.record(**results)
        result = procedure.of_recordings(str(recorded), str(out), 0.0)
        assert result.numbers_agree is agree, str(result)
        # The largest difference is beyond all rounding, and still the model is judged as measured.
        assert result.measured is not agree
        assert (result.largest == 0) is agree


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", ".", __file__], "--output . already exists. Name a new folder."),
        (["-o", "new", "no.py"], "no.py"),
        (["-o", "new", "--steps", "0", __file__], "--steps 0 must be 1 or more"),
        (["-o", "new", "--begin-from", "none", __file__], "--begin-from none"),
        (["-o", "new", "--python", "no_python", __file__], "--python no_python"),
    ],
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """A wrong option is told before anything runs."""
    assert main.main(["record", *arguments]) == 2
    assert says in capsys.readouterr().err

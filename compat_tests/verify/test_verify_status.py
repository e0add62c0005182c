"""Each exit status of `estimator-bridge verify`, with the output of the command."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compat_tests.support import recordings
from compat_tests.support.recordings import rows, step
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.verification import procedure
from estimator_bridge.verification.record import processes
from estimator_bridge.verification.result import Result

Outcome = Callable[[pathlib.Path], Result]


def result_of(directory: pathlib.Path, **changes: Any) -> Result:
    """Returns the result of two equal sides, with some fields replaced."""
    side = {"steps": (step(rows()),)}
    return dataclasses.replace(recordings.judged(directory, side, side), **changes)


def raises(error: BaseException) -> Any:
    raise error


# What comes of the comparison, the exit status, `equal` and `status` in JSON, and what is said.
BRIDGE = ("--a", "bridge")
"""Options of a comparison that every TensorFlow can make."""

STATUSES: dict[str, tuple[Outcome, int, bool | None, str, str]] = {
    "equal": (result_of, 0, True, "equal", "EQUAL to the bit"),
    "different": (
        lambda directory: result_of(directory, remarks=["side A ran more steps"]),
        1,
        False,
        "different",
        "NOT EQUAL: side A ran more steps.",
    ),
    "a side failed": (
        lambda directory: result_of(directory, failures=["ValueError: no: side B failed"]),
        2,
        None,
        "unknown",
        "NO VERDICT: ValueError: no: side B failed.",
    ),
    "undecided": (
        lambda directory: result_of(directory, undecided=["table t: nothing can be told"]),
        3,
        None,
        "undecided",
        "UNDECIDED: table t: nothing can be told.",
    ),
    "refused": (
        lambda _: raises(errors.InvalidInput("no such side")),
        2,
        None,
        "unknown",
        "estimator-bridge: no such side",
    ),
    "internal error": (
        lambda _: raises(ZeroDivisionError("by chance")),
        2,
        None,
        "unknown",
        "estimator-bridge: verify: internal error: ZeroDivisionError: by chance",
    ),
}


@pytest.mark.parametrize("name", STATUSES)
def test_each_verdict_has_a_status(
    name: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The status, the first line and the JSON file agree, even if nothing is compared."""
    outcome, status, equal, word, message = STATUSES[name]
    monkeypatch.setattr(procedure, "side_by_side", lambda record, directory, *_: outcome(directory))
    report = tmp_path / "report.json"
    assert main.main(["verify", *BRIDGE, "--json", str(report), __file__]) == status
    printed = capsys.readouterr()
    assert message in printed.out + printed.err
    result = json.loads(report.read_text())
    assert (result["equal"], result["status"]) == (equal, word)
    if "error" not in result:
        assert result["about"]["estimator bridge"]


def test_an_output_that_was_there_stays_until_there_is_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check for a writable output neither empties an existing file nor leaves a new one."""
    kept, new = tmp_path / "kept.json", tmp_path / "new.html"
    kept.write_text("before")

    def look(*_: Any) -> Any:
        assert kept.read_text() == "before"
        assert not new.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(procedure, "side_by_side", look)
    status = main.main(["verify", *BRIDGE, "--json", str(kept), "--html", str(new), __file__])
    assert status == main.INTERRUPTED
    assert kept.read_text() == "before"
    assert not new.exists()


class Closed(io.StringIO):
    """A pipe that nobody reads."""

    def flush(self) -> None:
        raise BrokenPipeError("closed")


def test_a_closed_terminal_is_no_difference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the result cannot be printed, the status is 2, not Python's 1, and files are written."""
    monkeypatch.setattr(procedure, "side_by_side", lambda _, directory, *__: result_of(directory))
    report = tmp_path / "report.json"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        assert main.main(["verify", *BRIDGE, "--json", str(report), __file__]) == 2
    assert json.loads(report.read_text())["equal"] is True
    assert "the result cannot be written: closed" in capsys.readouterr().err


def side(tmp_path: pathlib.Path, program: str) -> processes.ProcessRecorder:
    """Returns a recorder that runs a program instead of the side's process."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!{sys.executable}\n{program}")
    interpreter.chmod(0o755)
    run = processes.SideProgram("bridge", "train.py", str(interpreter))
    return processes.ProcessRecorder(
        {"a": run, "b": run}, [], steps=1, every=None, progress=lambda *_: None
    )


@pytest.mark.parametrize(
    "program, first_line",
    [
        ("print('more'); raise SystemExit(7)", "side A (bridge) ended with exit status 7."),
        ("import os; os.kill(os.getpid(), 9)", "side A (bridge) was ended by signal SIGKILL."),
        (
            "import pathlib\n"
            "pathlib.Path(input()).with_suffix('.failure').write_text('\"No such id\"')\n"
            "print('\\x1b[31mmore'); raise SystemExit(1)",
            "No such id\nside A (bridge) failed.",
        ),
    ],
)
def test_a_side_that_fails_says_why_first(
    program: str, first_line: str, tmp_path: pathlib.Path
) -> None:
    """The message starts with the side's error and includes the end of the log."""
    request = recordings.request(tmp_path / "a")
    with pytest.raises(errors.InvalidInput) as raised:
        side(tmp_path, program)(request)
    message = str(raised.value)
    assert message.startswith(first_line)
    assert f"Its log is {tmp_path / 'a.log'}" in message
    assert "\x1b" not in message


@pytest.mark.parametrize(
    "code, ended",
    [("2", "exit status 2"), ("3", "exit status 3"), ("'no data'", "exit status 1: no data")],
)
def test_a_program_that_ends_with_a_status_before_it_trained_is_named_with_it(
    code: str, ended: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program's own status is reported, even if it is one that the recorder uses, too."""
    program = tmp_path / "train.py"
    program.write_text(f"import sys\nsys.exit({code})\n")
    assert main.main(["verify", *BRIDGE, str(program)]) == 2
    said = f"{program}, line 2: the program ended with {ended}, after 0 steps."
    assert f"estimator-bridge: {said}" in capsys.readouterr().err.splitlines()


def test_the_logs_of_a_failure_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without a verdict removes the recordings and keeps the logs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def one_fails(_: Any, directory: pathlib.Path, *__: Any) -> Result:
        (directory / "b.log").write_text("the whole output")
        return result_of(directory, failures=["side B failed"])

    monkeypatch.setattr(procedure, "side_by_side", one_fails)
    assert main.main(["verify", "--a", "bridge", __file__]) == 2
    (log,) = tmp_path.rglob("*.*")
    assert log.read_text() == "the whole output"
    assert str(log) in capsys.readouterr().out

    monkeypatch.setattr(procedure, "side_by_side", lambda _, directory, *__: result_of(directory))
    log.unlink()
    os.rmdir(log.parent)
    assert main.main(["verify", "--a", "bridge", __file__]) == 0
    assert not list(tmp_path.iterdir())


def test_names_from_outside_reach_no_terminal_and_no_json(tmp_path: pathlib.Path) -> None:
    """Escape sequences, reversed text and half characters in names are written as escapes."""
    name = "w\x1b[2J\u202e\ud800\x00<b>"
    table = {**recordings.SETTINGS["tables"][0], "name": name}
    settings, doubled = {"tables": [table]}, rows() * np.float32(2)
    a, b = ({"settings": settings, "steps": (step(each),)} for each in (rows(), doubled))
    result = recordings.judged(tmp_path, a, b)
    result.failures.append(f"{name} failed")
    written = json.dumps(result.as_dict())
    for shown in (str(result), written, json.loads(written)["first"]["table"]):
        assert shown.replace("\n", "").isprintable()
        shown.encode()
    assert r"w\x1b[2J\u202e\ud800\x00<b>" in str(result)

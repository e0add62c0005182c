"""The progress line of commands: one line on a terminal, a few in a log."""

from __future__ import annotations

import pytest

from estimator_bridge.cli import output
from estimator_bridge.progress_line import ProgressLine


def describe(phase: str, done: int, total: int) -> str:
    """Returns the text of a line."""
    return f"{phase} {done}/{total}"


@pytest.mark.parametrize("terminal", [False, True])
def test_where_no_line_can_be_rewritten_there_is_none(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log, and a terminal that cannot go back, get no progress."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    line = ProgressLine(describe)
    for done in range(0, 101):
        line("reading", done, 100)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [20, 200])
def test_a_line_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that the terminal would break is cut, since it could not be written over."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ProgressLine(describe)("reading what has a long name", 0, 100)
    (text,) = capsys.readouterr().err.split("\r")[1:]
    assert len(text) == min(60, columns - 1)
    output.tell("it is cut off")
    assert capsys.readouterr().err == "\nestimator-bridge: it is cut off\n"


def test_a_terminal_has_one_line_for_each_phase(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a phase rewrites its line, not for every call, and ends it when it is done."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.monotonic", lambda: 5.0)
    line = ProgressLine(describe)
    for phase in ("reading", "writing"):
        for done in range(0, 4):
            line(phase, done, 3)

    text = capsys.readouterr().err
    assert [part.strip() for part in text.replace("\n", "\r").split("\r") if part] == [
        f"estimator-bridge: {phase} {done}/3" for phase in ("reading", "writing") for done in (0, 3)
    ]
    assert text.count("\n") == 2

"""The progress line of commands: one line on a terminal, a few in a log."""

from __future__ import annotations

import re
import time

import pytest

from estimator_bridge.cli import output
from estimator_bridge.progress_line import ProgressLine, readable_time, working


def describe(phase: str, done: int, total: int) -> str:
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


def test_a_log_has_a_line_each_30_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log shows that a job is alive, over its phases, and how long the present one takes."""
    now = iter([0.0, 1.0, 25.0, 35.0, 36.0, 64.0, 65.0, 66.0, 120.0])
    line = ProgressLine(describe, clock=lambda: next(now))
    for done in (0, 1, 6, 7):
        line("reading", done, 10)
    for done in (0, 0, 1, 2):
        line("writing", done, 4)
    assert capsys.readouterr().err.splitlines() == [
        "estimator-bridge: reading 6/10, 8 s left",
        "estimator-bridge: writing 0/4",
        "estimator-bridge: writing 2/4, 1 min 48 s left",
    ]
    monkeypatch.setattr("estimator_bridge.progress_line._SECONDS_OF_LOG", 0.05)
    with working("compiling", 90.0):
        time.sleep(0.3)
    assert re.search("^estimator-bridge: compiling, 1 s so far$", capsys.readouterr().err, re.M)


@pytest.mark.parametrize("columns", [20, 200])
def test_a_line_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than the terminal is cut, since a broken line cannot be overwritten."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ProgressLine(describe)("reading what has a long name", 0, 100)
    (text,) = capsys.readouterr().err.split("\r")[1:]
    assert len(text) == min(79, columns - 1)
    output.tell("it is cut off")
    assert capsys.readouterr().err == "\nestimator-bridge: it is cut off\n"


def test_a_terminal_has_one_line_for_each_phase(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a phase rewrites its line, not for every call, and ends it when it is done."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    line = ProgressLine(describe, clock=lambda: 5.0)
    for phase in ("reading", "writing"):
        for done in range(0, 4):
            line(phase, done, 3)

    text = capsys.readouterr().err
    assert [part.strip() for part in text.replace("\n", "\r").split("\r") if part] == [
        f"estimator-bridge: {phase} {done}/3" for phase in ("reading", "writing") for done in (0, 3)
    ]
    assert text.count("\n") == 2


def test_a_phase_of_more_than_two_seconds_says_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is of the pace of the phase; a short phase, and its end, have none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = iter([0.0, 0.0, 20.0, 30.0, 50.0, 100.0, 100.0, 103.0, 106.0])
    line = ProgressLine(describe, clock=lambda: next(now))
    for done in (0, 1, 3, 5, 10):
        line("reading", done, 10)
    for done in (2, 3, 5):  # of a phase that begins where another run of it ended
        line("writing", done, 100)

    lines = capsys.readouterr().err.replace("\n", "\r").split("\r")
    assert [line.strip() for line in lines if line] == [
        "estimator-bridge: reading 0/10",
        "estimator-bridge: reading 1/10",
        "estimator-bridge: reading 3/10, 35 s left",  # not of the 20 s before the first
        "estimator-bridge: reading 5/10, 38 s left",
        "estimator-bridge: reading 10/10",
        "estimator-bridge: writing 2/100",
        "estimator-bridge: writing 3/100",
        "estimator-bridge: writing 5/100, 2 min 22 s left",
    ]


def test_what_is_short_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `after` a phase is shown only once it takes that long; a shorter one not at all."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = iter([0.0, 0.0, 1.0, 2.5, 10.0, 10.5])
    line = ProgressLine(describe, clock=lambda: next(now), after=2.0)
    for done in (0, 1, 5):
        line("reading", done, 10)
    for done in (0, 100):
        line("writing", done, 100)
    assert capsys.readouterr().err.strip() == "estimator-bridge: reading 5/10, 2 s left"


def test_times_are_readable() -> None:
    times = (0.2, 59.4, 60, 125, 3600, 4230)
    assert [readable_time(each) for each in times] == [
        *("1 s", "59 s", "1 min", "2 min 5 s", "1 h", "1 h 10 min"),
    ]


def test_work_that_cannot_be_counted_is_shown_on_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long says what is left, and the line is gone afterwards; a log has nothing."""
    monkeypatch.setattr("estimator_bridge.progress_line.SHORT", 0.05)
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda answer=is_terminal: answer)
        shown = ""
        with working("compiling", 90.0):
            began = time.monotonic()
            while time.monotonic() - began < (60 if is_terminal and not shown else 0.3):
                time.sleep(0.05)
                shown += capsys.readouterr().err
        shown += capsys.readouterr().err
        line = re.search("\restimator-bridge: compiling, about 1 min .* left", shown)
        assert (line is not None) == is_terminal
        assert shown.rpartition("\r")[2] == ""

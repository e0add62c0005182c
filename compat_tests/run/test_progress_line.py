"""The progress line of commands: one line on a terminal, a few in a log."""

from __future__ import annotations

import pytest

from estimator_bridge.progress_line import ProgressLine


def describe(phase: str, done: int, total: int) -> str:
    """Returns the text of a line."""
    return f"{phase} {done}/{total}"


def test_a_log_has_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal, each phase has its first, its last and every tenth value."""
    line = ProgressLine(describe)
    for done in range(0, 101):
        line("reading", done, 100)
    line("writing", 0, 0)
    line("writing", 0, 0)

    lines = capsys.readouterr().err.splitlines()
    assert lines[:11] == [f"estimator-bridge: reading {done}/100." for done in range(0, 101, 10)]
    assert lines[11:] == ["estimator-bridge: writing 0/0."]


def test_a_terminal_has_one_line_for_each_phase(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a phase rewrites its line, not for every call, and ends it when it is done."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
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

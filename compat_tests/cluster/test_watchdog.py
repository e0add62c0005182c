"""The chief ends if a task of the cluster has been silent for too long."""

from __future__ import annotations

import pytest

from estimator_bridge import errors
from estimator_bridge.runtime.cluster import watchdog
from estimator_bridge.runtime.cluster.watchdog import Silences, Watched


def silences(patience: float, *silent: float | None) -> Silences:
    """Returns the count of tasks that have been silent for so long."""
    return Silences(
        [Watched(f"ps {i}", "a:1", "", each) for i, each in enumerate(silent)], patience
    )


def test_the_task_that_is_silent_for_too_long_is_found() -> None:
    """Time adds up to the patience, and an answer sets it back."""
    counted = silences(100, 0.0, 0.0)
    answering, silent = counted.tasks
    ticks = 0
    while (silenced := counted.add(counted.interval)) is None:
        answering.silent = 0.0
        ticks += 1
    assert silenced is silent
    assert ticks * counted.interval == pytest.approx(100)


def test_a_task_that_has_not_started_is_waited_for() -> None:
    """One that has never answered may be started in an hour."""
    counted = silences(100, None)
    assert all(counted.add(counted.interval) is None for _ in range(1000))


def test_a_chief_that_was_frozen_itself_blames_nobody() -> None:
    """An hour in which the chief did not listen is no hour of silence."""
    assert silences(100, 0.0).add(3600.0) is None


def test_tasks_are_asked_often_enough() -> None:
    """A task has several questions to answer in the time, and an idle cluster few."""
    for patience in (0.5, 20.0, watchdog.PATIENCE_SECONDS, 86_400.0):
        assert silences(patience).interval <= min(patience / 5, 10)


@pytest.mark.parametrize(
    "text, seconds", [("", watchdog.PATIENCE_SECONDS), ("20", 20.0), ("1.5", 1.5), ("0", None)]
)
def test_the_patience_is_that_of_the_environment(
    text: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five minutes by default; 0 waits without an end."""
    monkeypatch.setenv(watchdog.VARIABLE, text)
    assert watchdog.patience_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_no_number_of_seconds_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchdog.VARIABLE, text)
    with pytest.raises(errors.InvalidInput, match=f"{watchdog.VARIABLE}='{text}'"):
        watchdog.patience_seconds()

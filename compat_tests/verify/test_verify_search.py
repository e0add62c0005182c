"""The search for causes stops when its time is over, and says what it did not try."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import pytest

from compat_tests.verify.test_verify_lockstep import Training, scattered
from estimator_bridge import errors
from estimator_bridge.progress_line import no_progress
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.explain.search import Search
from estimator_bridge.verification.procedure import localise
from estimator_bridge.verification.record.processes import ProcessRecorder
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import A, RecordingRequest


def compared(tmp_path: pathlib.Path) -> Result:
    """Returns the result of sides whose rows follow no known update rule."""
    training = Training()
    a, b = training.record(tmp_path / "a"), training.record(tmp_path / "b", scattered)
    return comparison.compare(a, b)


def test_a_search_says_what_it_had_no_time_for() -> None:
    """Each skipped step is listed once, with the option for a longer search."""
    now = [0.0]
    search = Search(60.0, lambda: now[0])
    assert search.allows("swapped slots")
    assert search.note is None
    now[0] = 59.0
    assert search.left == 1.0
    now[0] = 61.0
    assert not search.allows("other rules")
    assert not search.allows("other rules")
    assert not search.allows("which op")
    assert search.left == 0.0
    assert "after 60 s. Not tried: other rules; which op. " in search.note
    assert "--search" in search.note


def test_without_time_the_verdict_stands(tmp_path: pathlib.Path) -> None:
    """A search of zero seconds keeps the verdict and skips everything that takes time."""
    result, search = compared(tmp_path), Search(0.0)
    (cause,) = causes.explain(result, search)
    assert cause.name == "unknown"
    assert not result.equal
    assert "other updates of tables" in search.not_tried


def test_what_the_verdict_took_is_not_done_twice(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict's diagnoses are reused to explain the causes."""
    result = compared(tmp_path)
    assert not causes.are_conclusive(result)
    monkeypatch.setattr(causes, "diagnoses", None)
    (cause,) = causes.explain(result, Search(60.0))
    assert cause.name == "update rule"


def test_no_side_runs_for_a_search_without_time(tmp_path: pathlib.Path) -> None:
    """If no time is left, the ops of the model are not recorded, and the report says so."""
    result, search = compared(tmp_path), Search(0.0)
    result.causes = [causes.Cause("unknown", "No known cause.")]

    def record(request: RecordingRequest) -> None:
        raise AssertionError(request)

    request = RecordingRequest("b", str(tmp_path / "b"))
    assert localise(record, result, request, search) == result.causes
    assert search.not_tried == ["which op of the model differs first"]


def sleeping() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    return subprocess.Popen(command, text=True)


def test_the_run_of_a_side_is_ended(tmp_path: pathlib.Path) -> None:
    """A side runs no longer than its time limit and no further than the requested steps."""
    recorder = ProcessRecorder({}, (), 20, None, no_progress)
    began = time.monotonic()
    request = RecordingRequest(A, str(tmp_path), seconds=0.5)
    with pytest.raises(errors.InvalidInput, match="side A took longer"):
        recorder._followed(sleeping(), request, "side A")
    (tmp_path / "progress.json").write_text("3")
    request = RecordingRequest(A, str(tmp_path), steps=3)
    assert recorder._followed(sleeping(), request, "side A") == 0
    assert time.monotonic() - began < 50

"""`verify --watch` finds faults of a single job, and raises no false alarm."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.run.test_examples import QUICK as EXAMPLE_ARGUMENTS
from compat_tests.support.paths import EXAMPLES
from compat_tests.verify.power.comparing import Run
from compat_tests.verify.power.fault import PROGRAMS
from compat_tests.verify.power.faults_of_jobs import FAULTS_OF_JOBS
from compat_tests.verify.power.program import ROWS
from compat_tests.verify.test_verify_command import run_verify
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.verification.sides import RecordingRequest
from estimator_bridge.verification.watch.invariants import INVARIANTS
from estimator_bridge.verification.watch.watcher import WatchedJob, WatchReport

QUICK_FAULTS = ("rate times 1.001", "id beyond the table", "NaN")


def watched(run: Run, directory: pathlib.Path) -> WatchReport:
    def record(request: RecordingRequest) -> None:
        try:
            run.record(request)
        except Exception as error:
            raise errors.InvalidInput(f"{type(error).__name__}: {error}") from error

    return WatchedJob(directory / "job").run(record)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_FAULTS else pytest.mark.full)
        for name in FAULTS_OF_JOBS
    ],
)
def test_a_fault_of_a_job_is_seen(name: str, tmp_path: pathlib.Path) -> None:
    _, faulty = FAULTS_OF_JOBS[name].sides(64)
    report = watched(faulty, tmp_path)

    assert not report.holds, str(report)
    expected = FAULTS_OF_JOBS[name].causes & INVARIANTS.keys()
    assert expected <= {kept.first.invariant for kept in report.violations}, str(report)


SIDES = ["bridge-ops", "bridge-native", "bridge-software-tpu", "bridge-cpu"]
# Stock on a CPU hands the ids of config dicts to the model_fn as they are.
SIDES += ["stock-tpu"] if HAS_STOCK else []


@pytest.mark.parametrize(
    "side", [pytest.param(s, marks=() if s == "bridge-native" else pytest.mark.full) for s in SIDES]
)
def test_an_honest_job_breaks_no_invariant(side: str, tmp_path: pathlib.Path) -> None:
    """Every engine keeps all invariants, with tables of every kind."""
    program = dataclasses.replace(PROGRAMS["users"], tables=tuple(ROWS), batch_size=64)
    report = watched(Run(program, side=side), tmp_path)

    assert report.holds, str(report)
    assert report.steps == program.steps


@pytest.mark.full
@pytest.mark.parametrize("size", [1024, 8192])
@pytest.mark.parametrize("name", ["items", "words", "places", "extremes", "pipelined", "cores"])
def test_large_batches_break_no_invariant(name: str, size: int, tmp_path: pathlib.Path) -> None:
    """Sums of thousands of terms stay within their bounds, pipelined and on several cores too."""
    report = watched(Run(dataclasses.replace(PROGRAMS[name], batch_size=size)), tmp_path)

    assert report.holds, str(report)
    assert not report.notes


def test_watching_is_about_one_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Options for two sides are refused together with `--watch` before anything runs."""
    for option in (["--own-input"], ["--against", __file__], ["--html", "page.html"]):
        assert main.main(["verify", "--watch", *option, __file__]) == 2
        assert f"{option[0]} is for two sides" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLE_ARGUMENTS)
def test_examples_break_no_invariant(name: str, tmp_path: pathlib.Path) -> None:
    """The command watches every example, all invariants hold, and the JSON lists them."""
    options = [each for each in EXAMPLE_ARGUMENTS[name] if not each.startswith("--num_shards")]
    ran = run_verify(
        *("--watch", "--steps", "4", "--json", str(tmp_path / "report.json")),
        *(str(EXAMPLES / name / "train.py"), f"--model_dir={tmp_path / 'job'}"),
        *("--use_tpu", "--num_shards=1", *(each.format(tmp_path) for each in options)),
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Every invariant that was checked holds" in ran.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["holds"]
    assert report["steps"] >= 2
    assert report["invariants"].keys() == INVARIANTS.keys()
    assert len(report["notes"]) == (name == "sequence"), report["notes"]

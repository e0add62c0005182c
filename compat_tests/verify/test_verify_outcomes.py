"""`verify` judges metrics, predictions and exports, here on handmade recordings."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compat_tests.support import recordings
from compat_tests.support.recordings import rows, step
from estimator_bridge.recording.array_files import digest
from estimator_bridge.recording.files import (
    METRIC_VARIABLE,
    OTHER,
    OWN,
    RECOMPUTED,
    SEEN,
    OutcomeWriter,
    Recording,
    write_json,
)
from estimator_bridge.verification import result as text
from estimator_bridge.verification.compare import comparison, evaluation_metrics
from estimator_bridge.verification.findings import Outcome, Status
from estimator_bridge.verification.result import Result

Follow = Callable[[OutcomeWriter], None]
"""Writes what followed a training."""

VARIABLES = {"words": rows(), "dense/kernel": np.ones([2, 1], np.float32)}
NEXT = np.float32(1 + 2**-23)


def judged(
    tmp_path: pathlib.Path,
    a: Follow,
    b: Follow,
    *,
    settings: dict[str, Any] | None = None,
    off: float = 0.0,
) -> Result:
    """Compares two sides whose trainings are equal.

    Args:
        settings: changes of side B's settings.
        off: how far a row of side B's table is off.
    """
    sides = []
    for name, follow in (("a", a), ("b", b)):
        table = rows()
        table[1] += np.float32(off * (name == "b"))
        side = recordings.record(
            tmp_path / name, settings=settings if name == "b" else None, steps=(step(table),)
        )
        follow(OutcomeWriter(side.directory))
        sides.append(side)
    return recordings.explained(*sides)


def about(variables: dict[str, Any] = VARIABLES, **more: Any) -> Any:
    """Returns the inputs of an outcome: fixed data and the given variables."""
    digests = {name: digest({"": value}) for name, value in variables.items()}
    return {"variables": digests, "replayed": True, **more}


def predicting(values: Any, **more: Any) -> Follow:
    def follow(writer: OutcomeWriter) -> None:
        name = writer.begin("prediction")
        writer.write(name, {"p": values})
        writer.about(name, about(**more))

    return follow


def named(result: Result) -> list[str]:
    return [cause.name for cause in result.causes]


def only(result: Result) -> Outcome:
    (outcome,) = (one for one in result.outcomes if not one.equal)
    return outcome


def test_equal_inputs_and_equal_ops_allow_nothing(tmp_path: pathlib.Path) -> None:
    """If all inputs are equal, a single ULP in one prediction is a difference."""
    ones = np.ones(5, np.float32)
    off = ones.copy()
    off[3] = NEXT
    result = judged(tmp_path / "1", predicting(ones), predicting(off))
    assert only(result).allowed == 0
    assert (
        only(result).where
        == "sample 3: 1 on A, 1.00000012 on B (1 ULP apart); 1 of 5 samples differs"
    )
    assert text.verdict(result).startswith("NOT EQUAL: prediction-0 p differs by 1.19e-07 (no diff")
    assert named(result) == ["predictions"]
    assert judged(tmp_path / "2", predicting(ones), predicting(ones)).largest == 0


@pytest.mark.parametrize(
    "settings",
    [{"engine": "stock"}, {"tensorflow": "2.21.0"}, {"where": "TPU"}, {"program": "other.py"}],
)
def test_other_ops_may_round_otherwise(settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """Across engines, versions, devices or programs, predictions only differ by rounding."""
    ones = np.ones(5, np.float32)
    near = judged(tmp_path / "1", predicting(ones), predicting(ones * NEXT), settings=settings)
    assert near.equal
    assert "within the tolerance" in text.verdict(near)
    far = judged(
        tmp_path / "2", predicting(ones), predicting(ones * np.float32(1.0001)), settings=settings
    )
    assert only(far).allowed < 1e-5


def test_what_a_training_leaves_carries_on(tmp_path: pathlib.Path) -> None:
    """Predictions may differ by the effect of tolerated differences in variables."""
    ones = np.ones(5, np.float32)
    moved = {**VARIABLES, "words": rows() * NEXT}
    result = judged(
        tmp_path / "1", predicting(ones), predicting(ones * NEXT, variables=moved), off=2**-24
    )
    assert result.equal, str(result)
    far = predicting(ones * np.float32(1.01), variables=moved)
    assert not judged(tmp_path / "2", predicting(ones), far, off=2**-24).equal


SEEN_VALUES = {
    "loss": np.float32([0.5, 0.25]),
    "argument/labels": np.float32([[0, 1], [1, 0]]),
    "argument/logits": np.float32([[0.1, 0.2], [0.3, 0.4]]),
}


def evaluating(
    auc: float,
    *,
    seen: dict[str, Any] = SEEN_VALUES,
    recomputed: float = 0.8,
    other: float = 0.8,
    **more: Any,
) -> Follow:
    """Returns a writer of an evaluation.

    Args:
        auc: the metric.
        recomputed: the metric computed again from this side's values; 0 if it is not computed.
        other: the metric computed again from side A's values; 0 if it is not computed.
    """

    def follow(writer: OutcomeWriter) -> None:
        name = writer.begin("evaluation")
        writer.write(name, {"auc": np.float32(auc), "loss": np.float32(0.375)})
        writer.write(name, seen, SEEN)
        if recomputed:
            again = {f"{OWN}auc": np.float32(recomputed), f"{OTHER}auc": np.float32(other)}
            writer.write(name, again, RECOMPUTED)
        writer.about(name, {**about(), "batches": 2, **more})

    return follow


LOGITS = {**SEEN_VALUES, "argument/logits": SEEN_VALUES["argument/logits"] * NEXT}
FOUND = [
    # The metric functions differ, for the same values.
    (
        evaluating(0.79, recomputed=0.79, other=0.79),
        "auc",
        "the metric functions differ",
        "metric function",
    ),
    # The evaluation does otherwise than its metric function.
    (
        evaluating(0.79),
        "auc",
        "side B reports 0.790000021, but its metric function gives",
        "evaluation",
    ),
    (evaluating(0.8, batches=3), "batches", "evaluates 2 batches, and side B 3", "evaluation"),
]


@pytest.mark.parametrize("b, name, note, cause", FOUND)
def test_a_metric_of_equal_values_is_equal(
    b: Follow, name: str, note: str, cause: str, tmp_path: pathlib.Path
) -> None:
    """If all values are equal to the last bit, so must be each metric; the report says why not."""
    result = judged(tmp_path, evaluating(0.8), b)
    assert result.first is None
    assert only(result).name == name
    assert note in only(result).note
    assert not text.verdict(result).startswith("EQUAL")
    assert named(result) == [cause]


@pytest.mark.parametrize("known", ["arguments", "variables"])
def test_a_metric_that_cannot_be_computed_once_more(known: str, tmp_path: pathlib.Path) -> None:
    """Such a metric must be equal if its arguments or the variables are equal."""
    seen = SEEN_VALUES
    if known == "variables":
        seen = {"loss": SEEN_VALUES["loss"], f"{METRIC_VARIABLE}auc/total": np.float32(1)}
    a, b, near = (evaluating(auc, seen=seen, recomputed=0) for auc in (0.8, 0.79, 0.8 * NEXT))
    other = {"engine": "stock"}
    result = judged(tmp_path / "1", a, b, settings=other)
    assert named(result) == ["metric"]
    assert only(result).name == "auc"
    assert judged(tmp_path / "2", a, near, settings=other).equal
    assert not judged(tmp_path / "3", a, near).equal


def test_a_metric_follows_its_values(tmp_path: pathlib.Path) -> None:
    """A metric may differ by the effect of tolerated differences in its values."""
    off = evaluating(0.75, seen=LOGITS, recomputed=0.75)
    other = {"engine": "stock"}
    result = judged(tmp_path / "1", evaluating(0.8), off, settings=other)
    assert result.equal, str(result)
    assert {one.name: one.why for one in result.outcomes}["auc"] == evaluation_metrics.FOLLOWS

    far = {**SEEN_VALUES, "argument/logits": SEEN_VALUES["argument/logits"] * np.float32(1.1)}
    result = judged(
        tmp_path / "2", evaluating(0.8), evaluating(0.75, seen=far, recomputed=0.75), settings=other
    )
    assert named(result) == ["evaluated model"]
    unequal = {one.name for one in result.outcomes if not one.equal}
    assert unequal == {f"{evaluation_metrics.SEEN_BY}argument/logits", "auc"}


def exporting(values: dict[str, Any], checkpoint: dict[str, Any]) -> Follow:
    """Returns a writer of an export of some values, and of the checkpoint's values."""

    def follow(writer: OutcomeWriter) -> None:
        name = writer.begin("export")
        writer.write(name, values)
        writer.about(name, about(checkpoint))

    return follow


def test_an_export_holds_what_the_checkpoint_holds(tmp_path: pathlib.Path) -> None:
    """A side whose export differs from its own checkpoint is named, however close they are."""
    near = {**VARIABLES, "words": rows() * NEXT}
    for number, sides in enumerate(((VARIABLES, near), (near, VARIABLES))):
        follow = [exporting(values, VARIABLES) for values in sides]
        result = judged(tmp_path / str(number), *follow, settings={"engine": "stock"})
        at_fault = "AB"[sides[1] is near]
        assert f"side {at_fault} exports values that its checkpoint" in only(result).note
        assert named(result) == ["export"]
    trained = [exporting(values, values) for values in (VARIABLES, near)]
    assert judged(tmp_path / "3", *trained, off=2**-24).equal


def failing(error: str) -> Follow:
    def follow(writer: OutcomeWriter) -> None:
        writer.about(writer.begin("evaluation"), {"failed": error})

    return follow


def test_a_side_that_fails_alone_leaves_no_verdict(tmp_path: pathlib.Path) -> None:
    """If an evaluation fails on one side, the verdict is neither equal nor different."""
    result = judged(tmp_path / "1", evaluating(0.8), failing("ValueError: on purpose"))
    assert result.status == Status.UNKNOWN
    assert not result.equal
    assert not result.causes
    assert "After its training the program does not predict and exports no model." in (
        result.not_compared
    )
    assert text.verdict(result).startswith(
        "NO VERDICT: ValueError: on purpose: side B failed in evaluation-0, and side A did not."
    )
    both = judged(tmp_path / "2", failing("OSError: disk"), failing("OSError: disk"))
    assert both.status == Status.EQUAL
    assert "evaluation-0: it failed (OSError: disk)." in both.not_compared
    assert "and nothing else" in text.verdict(both)
    # A difference of the training counts more.
    off = judged(tmp_path / "3", evaluating(0.8), failing("ValueError"), off=0.5)
    assert off.status == Status.DIFFERENT


def test_other_data_come_before_metrics(tmp_path: pathlib.Path) -> None:
    """Other data, types or orders of an evaluation are differences with their own names."""

    def fed(*batches: Any) -> Follow:
        def follow(writer: OutcomeWriter) -> None:
            evaluating(0.8, replayed=False)(writer)
            for batch in batches:
                writer.batch("evaluation-0", 0, {"features/x": batch})

        return follow

    one, two = np.arange(3), np.arange(3) + 1
    for name, others, note in (
        ("data", (one, one), "the sides read different data, from batch 1 on"),
        ("order", (two, one), "the same batches in another order, from batch 0 on"),
        ("type", (one.astype(np.int32), two), "features/x is int64 [3] on A, int32 [3] on B"),
    ):
        result = judged(tmp_path / name, fed(one, two), fed(*others))
        first = result.outcomes[0]
        assert (first.name, first.equal) == ("data", False)
        assert note in first.note
        assert named(result) == ["evaluation data"]
    assert judged(tmp_path / "same", fed(one, two), fed(one, two)).equal


@pytest.mark.parametrize("stopped", [False, True])
def test_a_final_export_waits_for_the_last_step(tmp_path: pathlib.Path, stopped: bool) -> None:
    """An export is missing on side A only if `verify` did not stop side A before its last step."""

    def exporting(writer: OutcomeWriter) -> None:
        writer.write(writer.begin("export"), VARIABLES)

    a = recordings.record(tmp_path / "a", steps=(step(rows()),))
    b = recordings.record(tmp_path / "b", steps=(step(rows()),))
    exporting(OutcomeWriter(b.directory))
    if stopped:
        write_json(a.directory / "stopped_before.json", 20)
    result = comparison.compare(a, b)

    assert result.equal == stopped
    assert any("max_steps=20" in each for each in result.not_compared) == stopped


def test_the_perturbed_start_moves_outcomes_too(tmp_path: pathlib.Path) -> None:
    """Predictions may differ by as much as a perturbed start moves them, and not much more."""
    ones = np.ones(5, np.float32)
    a = recordings.record(tmp_path / "a", steps=(step(rows()),))
    predicting(ones)(OutcomeWriter(a.directory))
    sides: dict[float, Recording] = {}
    for moved in (1e-3, 4e-3, 1e-1):
        sides[moved] = recordings.record(
            tmp_path / str(moved), settings={"engine": "stock"}, steps=(step(rows()),)
        )
        predicting(ones + np.float32(moved))(OutcomeWriter(sides[moved].directory))
    measured = sides[1e-3]
    assert not comparison.compare(a, sides[4e-3]).equal
    assert comparison.compare(a, sides[4e-3], measured).equal
    assert not comparison.compare(a, sides[1e-1], measured).equal

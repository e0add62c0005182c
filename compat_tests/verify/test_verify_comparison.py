"""The verdict of `verify` on handmade recordings."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from compat_tests.references import tolerance as reference
from compat_tests.support import recordings
from compat_tests.support.recordings import batch, judged, rows, state, step
from estimator_bridge.progress_line import no_progress
from estimator_bridge.recording.files import VARIABLES, Recording, RecordingWriter
from estimator_bridge.verification import procedure
from estimator_bridge.verification.compare import comparison, free_run
from estimator_bridge.verification.record import description
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import PERTURBED, B, RecordingRequest
from tf2_engine import tf_compat


def named(result: Result) -> set[str]:
    return {cause.name for cause in result.causes}


def changed(row: int, by: float) -> Any:
    table = rows()
    table[row] += np.float32(by)
    return table


def test_large_tables_are_stored_by_changed_rows(tmp_path: pathlib.Path) -> None:
    """A step's file holds the rows that changed, and reading gives back every table in full."""
    writer = RecordingWriter(tmp_path / "a")
    table = np.zeros([5000, 4], np.float32)
    written = []
    for number in range(3):
        table = table.copy()
        table[[number, 7]] += 1
        written.append(table)
        writer.step(number, {VARIABLES: {"t": table}})

    tables = [one.values[VARIABLES]["t"] for one in Recording(tmp_path / "a").steps()]
    for expected, actual in zip(written, tables, strict=True):
        np.testing.assert_array_equal(expected, actual)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob("step-*.npz"))]
    assert max(sizes[1:]) < sizes[0] / 20


def test_a_difference_is_located_and_measured(tmp_path: pathlib.Path) -> None:
    """The first divergence has a step, row, id, element, and absolute, relative and ULP sizes."""
    off = rows()
    off[4, 1] = np.float32(1.25) + np.float32(2**-10)  # floats near 1.25 are 2^-23 apart
    same, other = step(rows()), step(off)
    result = judged(tmp_path, {"steps": (same, same)}, {"steps": (same, other)})

    assert not result.equal
    assert (result.first.table, result.first.role) == (recordings.TABLE, "table")
    assert result.first.first[:3] == (2, 4, [1])
    assert str(result.first.first).startswith("step 2, row 4 (id 4), element [1]: ")
    point = result.first.points[-1]
    assert (point.difference, point.ulps) == (2**-10, 2**13)
    assert point.relative == 2**-10 / 1.5  # the largest magnitude of the table is 12 / 8


def test_a_divergence_of_an_activation_names_the_ids_of_its_sample(tmp_path: pathlib.Path) -> None:
    activation = rows()[[4, 5, 1]]
    off = activation.copy()
    off[1] += 1
    sides = [
        {"steps": (step(rows(), activation=one),), "batches": (batch(4, 5, 1),)}
        for one in (activation, off)
    ]
    result = judged(tmp_path, *sides)
    assert str(result.first.first).startswith("step 1, row 1 (id 5), element [0]: ")


def test_rounding_is_allowed_and_no_more(tmp_path: pathlib.Path) -> None:
    """Differences within the model of docs/numerics.md are equal; twice that is not."""
    allowed = free_run.allowed(1, 1, 1.5)
    for share, equal in ((0.9, True), (2.0, False)):
        off = rows().astype(np.float64)
        off[5, 1] -= share * allowed
        sides = {"steps": (step(rows()),)}, {"steps": (step(off.astype(np.float32)),)}
        result = judged(tmp_path / str(share), *sides)
        assert result.equal == equal, str(result)


@pytest.mark.parametrize("num_terms, steps", [(1, 0), (6, 1), (40, 20)])
def test_the_tolerance_is_that_of_the_references(num_terms: int, steps: int) -> None:
    """Two sides may differ by twice the allowed error against the float64 reference."""
    expected = 2 * reference.allowed(num_terms, steps, 3.0)
    assert free_run.allowed(num_terms, steps, 3.0) == pytest.approx(expected, rel=1e-12)


def test_terms_are_counted_in_the_batches() -> None:
    """The longest sum has either a row's occurrences or a sample's ids."""
    assert free_run.terms(batch(3, 3, 3, 1), {"word": None}) == 3
    sample = {**batch(0, 1, 2, 3, 4), "features/word.indices": np.zeros([5, 2], np.int64)}
    assert free_run.terms(sample, {"word": None}) == 5


def test_a_perturbed_start_widens_the_tolerance(tmp_path: pathlib.Path) -> None:
    """An array may differ by as much as a perturbed start moves it, and not much more."""
    good, off, moved = rows(), changed(2, 1e-3), changed(2, 2e-4)
    a, b, perturbed, far = (
        recordings.record(tmp_path / name, steps=(step(table),))
        for name, table in (("a", good), ("b", off), ("n", moved), ("f", changed(2, 1e-2)))
    )

    assert not comparison.compare(a, b).equal
    assert comparison.compare(a, b, perturbed).equal
    assert not comparison.compare(a, far, perturbed).equal


SETTINGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "use_tpu": ({"use_tpu": False}, {"optimizer substitution"}),
    "cores": ({"cores": 4}, {"core count"}),
    "quirks": ({"quirks": "documented"}, {"quirks"}),
    "value": (
        {"settings": [["spec", "optimization_parameters", "AdamParameters", ""]]},
        {"setting optimization_parameters", "setting clipping_limit"},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_difference_of_settings_is_named(name: str, tmp_path: pathlib.Path) -> None:
    settings, expected = SETTINGS[name]
    steps = {"steps": (step(rows()),)}, {"steps": (step(changed(1, 0.1)),), "settings": settings}
    assert expected <= named(judged(tmp_path, *steps))


def test_combiner_none_and_sequences_are_named_between_modes(tmp_path: pathlib.Path) -> None:
    """With use_tpu on one side alone, None means two things, and sequences are cut once."""
    table = {
        **recordings.SETTINGS["tables"][0],
        "combiner": None,
        "features": {"word": [3, None]},
        "rule": None,
    }
    on_cpu = {"settings": {"tables": [table], "use_tpu": False}, "steps": (step(changed(0, 1.0)),)}
    named_causes = named(
        judged(tmp_path, {"settings": {"tables": [table]}, "steps": (step(rows()),)}, on_cpu)
    )
    assert named_causes >= {"optimizer substitution", "combiner None", "sequence length"}


def test_reordered_data_are_no_other_data(tmp_path: pathlib.Path) -> None:
    """The same batches in another order are named "data order"; other batches are named "data"."""
    batches = (batch(1), batch(2), batch(3))
    cases = {"data order": batches[::-1], "data": (batch(1), batch(5), batch(3))}
    for name, others in cases.items():
        result = judged(tmp_path / name, {"batches": batches}, {"batches": others})
        assert not result.equal
        assert named(result) == {name}
    assert judged(tmp_path / "same", {"batches": batches}, {"batches": batches}).equal


def test_what_differs_first_names_the_cause(tmp_path: pathlib.Path) -> None:
    """Another start is due to the initializers; if all but the loss agrees, it is the model."""
    result = judged(tmp_path / "start", {}, {"start": state(rows() * np.float32(1.5))})
    assert result.first.first.step == 0
    assert named(result) == {"initializers"}

    a, b = (step(rows(), activation=rows()[[1, 2]], loss=loss) for loss in (0.5, 0.6))
    assert named(judged(tmp_path / "loss", {"steps": (a,)}, {"steps": (b,)})) == {"model"}


def test_missing_arrays_and_steps_are_differences(tmp_path: pathlib.Path) -> None:
    less = {name: value for name, value in state(rows()).items() if name != "dense/kernel"}
    assert judged(tmp_path / "1", {}, {"start": less}).only == (["variables dense/kernel"], [])
    result = judged(tmp_path / "2", {"steps": (step(rows()),)}, {})
    assert not result.equal
    assert result.remarks == ["side A ran more steps"]


def test_a_configuration_is_compared_field_by_field(tmp_path: pathlib.Path) -> None:
    """Fields that differ have their path and both values; without a device there are no fields."""
    other = {"settings": {"config": {"table_descriptor.tbl_words.dimension": "3"}}}
    result = judged(tmp_path / "1", {}, other)
    assert not result.equal
    assert [tuple(one) for one in result.config or ()] == [
        ("table_descriptor.tbl_words.dimension", "2", "3")
    ]
    assert judged(tmp_path / "2", {}, {"settings": {"config": {}}}).config is None


def test_the_order_of_tables_is_no_difference() -> None:
    """A configuration names the table of a feature, whichever number the table has."""

    def fields(tables: list[str], table_of_features: list[str]) -> dict[str, str]:
        config = tf_compat.TPUEmbeddingConfiguration()
        for name in tables:
            config.table_descriptor.add(name=name, dimension=2)
        for name in table_of_features:
            config.feature_descriptor.add(table_id=tables.index(name))
        return description._fields(config)

    ours = fields(["a", "b", "c"], ["a", "c", "c"])
    assert ours == fields(["c", "a", "b"], ["a", "c", "c"])
    assert ours != fields(["c", "a", "b"], ["a", "b", "c"])


def test_the_order_of_computed_rates_is_no_difference(tmp_path: pathlib.Path) -> None:
    """Sides may number computed rates in any order; only which tables share a rate counts."""
    rate = "table_descriptor.{}.optimization_parameters.learning_rate.dynamic"

    def with_tags(**tags: int) -> dict[str, Any]:
        # A tag of 0 is not written: the field exists but has no parts.
        written = {
            f"{rate.format(table)}{'.tag' if tag else ''}": str(tag) if tag else "set"
            for table, tag in tags.items()
        }
        return {"settings": {"config": written}}

    a = with_tags(items=0, users=1, words=0)
    others = {"numbered": with_tags(items=1, users=0, words=1), "the same": a}
    for name, b in others.items():
        assert judged(tmp_path / name, a, b).config == []
    result = judged(tmp_path / "shared", a, with_tags(items=0, users=0, words=1))
    assert [one.name for one in result.config or ()] == [
        f"{rate.format('users')}.tag",
        f"{rate.format('words')}.tag",
    ]
    assert judged(tmp_path / "constant", a, with_tags(items=0, users=1)).config


OTHER_SIDES: dict[str, dict[str, Any]] = {
    "alike": {},
    "another setting": {"settings": [["spec", "pipeline_execution", "True", ""]]},
    "another configuration": {"config": {"table_descriptor.tbl_words.dimension": "3"}},
}


def run_freely(
    place: pathlib.Path, name: str, loss: float, num_steps: int = 1, progress: Any = no_progress
) -> tuple[set[str], Result]:
    """Compares side A, whose losses are 0.5, with another side; returns the recorded roles, too."""
    asked: set[str] = set()

    def record(request: RecordingRequest) -> None:
        asked.add(request.role)
        is_b = request.side == B
        recordings.record(
            pathlib.Path(request.directory),
            settings=OTHER_SIDES[name] if is_b else {},
            steps=(step(rows(), activation=rows()[[1, 2]], loss=loss if is_b else 0.5),)
            * num_steps,
        )

    options = procedure.ComparisonOptions(free_run=True)
    return asked, procedure.side_by_side(record, place, options, progress)


@pytest.mark.parametrize("name", OTHER_SIDES)
def test_a_setting_that_differs_does_not_make_rounding_a_fault(
    name: str, tmp_path: pathlib.Path
) -> None:
    """Rounding is measured whatever settings differ, unless the sides are far apart."""
    assert PERTURBED in run_freely(tmp_path / "near", name, 0.50005)[0]
    assert (PERTURBED in run_freely(tmp_path / "far", name, 0.6)[0]) == (name == "alike")


@pytest.mark.parametrize("loss", [0.50005, 0.6])
def test_all_steps_are_compared_once(loss: float, tmp_path: pathlib.Path) -> None:
    """Whether rounding is to be measured is known behind the first step that differs.

    So it is whether the difference may be rounding or, beside another setting, may not.
    """
    compared: list[int] = []

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "comparing":
            compared.append(done)

    _, result = run_freely(tmp_path, "another setting", loss, 9, progress)

    assert compared == [0, 1, 2, 10, *range(10), 10]
    assert result.complete
    assert result.steps == [*range(10)]
    assert result.measured == (loss < 0.6)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not valid JSON")


def test_numbers_that_are_not_finite_are_valid_json(tmp_path: pathlib.Path) -> None:
    """An infinite difference is a string in JSON: other readers refuse a bare `Infinity`."""
    a, b = (step(rows(), loss=loss) for loss in (0.5, float("nan")))
    result = judged(tmp_path, {"steps": (a,)}, {"steps": (b,)})
    written = json.dumps(result.as_dict(), allow_nan=False)
    report = json.loads(written, parse_constant=refuse)

    assert report["first"]["name"] == "loss"
    assert report["first"]["points"][0]["difference"] == "Infinity"
    assert report["first"]["first"]["b"] == "nan"
    assert {len(s["points"]) for s in report["series"] if s["group"] == "variables"} == {2}
    assert report["sides"]["a"]["where"] == "host driver"
    assert report["causes"]

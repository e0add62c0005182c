"""`verify` stores and compares arrays of every type by the rules of that type."""

from __future__ import annotations

import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from estimator_bridge.recording.array_files import as_array, digest, read_arrays, write_arrays
from estimator_bridge.recording.files import Outcomes, OutcomeWriter
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.evaluation_metrics import SampleDifferences
from estimator_bridge.verification.record.outcome_recorder import (
    SAMPLES_OF_CHUNK,
    PredictionWriter,
    flat,
)

FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
COMPLEX = (np.complex64, np.complex128)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
NUMBERS = (*FLOATS, *COMPLEX, *INTEGERS, np.bool_)

STRINGS = as_array([b"", b"a", b"a\0", b"a\0\0", b"\xff\x00\xfe", "ä", "ä\0", "\x1b[2J"])
RAGGED = as_array([np.array([1, 2]), np.array([], np.int64), as_array([b"x\0", b""])])


def near(dtype: Any) -> tuple[Any, Any]:
    """Returns 1 and the next number of a type."""
    if dtype is np.bool_:
        return np.array(True), np.array(False)
    if dtype in INTEGERS:
        return np.array(1, dtype), np.array(2, dtype)
    step = ml_dtypes.finfo(dtype).eps
    return np.array(1, dtype), np.array(1 + np.float64(step)).astype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_are_read_back_to_the_bit(dtype: Any, tmp_path: pathlib.Path) -> None:
    """A file preserves the type, shape and bytes of every array, including NaN and -0."""
    numbers = [0, 1, 1, 0] if dtype in (*INTEGERS, np.bool_) else [-0.0, 1.5, np.nan, 1e-2]
    array = np.array(numbers).astype(dtype).reshape(2, 2)
    empty = array[:0]
    write_arrays(tmp_path / "a.npz", {"x": array, "none": empty, "one": array[0, 1]})
    arrays = read_arrays(tmp_path / "a.npz")
    for name, expected in (("x", array), ("none", empty), ("one", array[0, 1])):
        assert arrays[name].dtype == expected.dtype
        assert arrays[name].shape == expected.shape
        assert arrays[name].tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [STRINGS, STRINGS.reshape(4, 2), STRINGS[:0], RAGGED, b"a\0", ""])
def test_strings_and_lists_are_read_back(value: Any, tmp_path: pathlib.Path) -> None:
    """Strings keep their NULs and their kind, and lists of arrays keep their shapes."""
    write_arrays(tmp_path / "a.npz", {"x": value})
    array, expected = read_arrays(tmp_path / "a.npz")["x"], as_array(value)
    assert array.shape == expected.shape
    for one, other in zip(array.ravel(), expected.ravel(), strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("dtype", NUMBERS)
def test_the_next_number_of_a_type_is_another(dtype: Any) -> None:
    """Equal numbers are 0 apart and neighbors are not; neighboring floats are one ULP apart."""
    one, other = near(dtype)
    assert elements.differences(one, one) == 0
    assert elements.differences(one, other) > 0
    if elements.is_float(np.dtype(dtype)):
        assert elements.ulps(one, other) == 1
        assert elements.ulps(-one, other) > 1
        apart = float(elements.differences(one, other))
        assert apart == pytest.approx(2 * elements.unit_roundoff(np.dtype(dtype)))
    else:
        assert elements.unit_roundoff(np.dtype(dtype)) == 0
    assert digest({"x": one}) != digest({"x": other})


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_a_nan_equals_a_nan_in_the_same_place(dtype: Any) -> None:
    """Two NaNs are equal, and a NaN is infinitely far from every number."""
    values = np.array([1, np.nan, np.nan, 1]).astype(dtype)
    others = np.array([1, np.nan, 1, np.nan]).astype(dtype)
    assert elements.differences(values, others).tolist() == [0, 0, np.inf, np.inf]
    assert elements.ulps(values[2], others[2]) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_infinities_equal_themselves(dtype: Any) -> None:
    """An infinity equals itself, but neither the other infinity nor a number."""
    values = np.array([np.inf, -np.inf, np.inf, np.inf], dtype)
    others = np.array([np.inf, -np.inf, -np.inf, 1], dtype)
    assert elements.differences(values, others).tolist() == [0, 0, np.inf, np.inf]


@pytest.mark.parametrize(
    "one, other",
    [
        (np.array(2**62), np.array(2**62 + 200)),
        (np.array(-(2**63)), np.array(2**63 - 1)),
        (np.array(2**64 - 1, np.uint64), np.array(2**64 - 2, np.uint64)),
        (np.array(2**64 - 1, np.uint64), np.array(-1)),
        (np.array(2**53 + 1), np.array(2**53)),
    ],
)
def test_large_integers_are_compared_exactly(one: Any, other: Any) -> None:
    """Integers that float64 cannot distinguish differ by their exact distance."""
    apart = abs(int(one) - int(other))
    assert float(elements.differences(one, other)) == float(apart)
    assert elements.differences(one, one) == 0


def test_strings_are_compared_to_the_last_byte() -> None:
    """Each string differs from every other one, and text differs from bytes."""
    apart = elements.differences(STRINGS[:, None].repeat(8, 1), STRINGS[None].repeat(8, 0))
    np.testing.assert_array_equal(apart == 0, np.eye(8, dtype=bool))
    assert digest({"x": np.array([b"a"], object)}) != digest({"x": np.array(["a"], object)})


@pytest.mark.parametrize(
    "one, other, note",
    [
        (np.int32(1), np.int64(1), "int32 on A, int64 on B"),
        (np.float32([1]), np.float64([1]), "float32 on A, float64 on B"),
        (np.float32([1]), as_array([b"1"]), "float32 on A, string on B"),
        (np.zeros([2, 1]), np.zeros([2]), "shapes (2, 1) and (2,)"),
        (None, np.zeros([2]), "only on side B"),
        (RAGGED, RAGGED[:2], "3 samples on A, 2 on B"),
    ],
)
def test_types_and_shapes_are_differences_with_names(one: Any, other: Any, note: str) -> None:
    """Another type or shape is reported as such, not as a difference of numbers."""
    differences = SampleDifferences()
    differences.add(*(None if each is None else np.asarray(each) for each in (one, other)))
    outcome = differences.outcome("prediction-0", "p", 1.0, "")
    assert not outcome.equal
    assert note in outcome.note


def predictions_of(tmp_path: pathlib.Path, predictions: list[Any]) -> list[dict[str, Any]]:
    """Writes predictions; returns the chunks of the files."""
    directory = tmp_path / "p"
    directory.mkdir()
    writer = PredictionWriter(OutcomeWriter(directory), "prediction-0")
    for one in predictions:
        writer.add(one)
    writer.close()
    assert writer.count == len(predictions)
    return list(Outcomes(directory).chunks("prediction-0"))


class Ragged:
    """The value of a ragged tensor."""

    flat_values = np.array([1, 2, 3])
    nested_row_splits = (np.array([0, 1, 3]),)


@pytest.mark.parametrize(
    "prediction",
    [
        1.5,
        b"a\0",
        np.float32([1, 2]),
        [[1], [1, 2]],
        {"a": {"b": np.int32(1)}, "c": [b"x", b""]},
        Ragged(),
        None,
    ],
)
def test_predictions_of_any_structure_are_written(prediction: Any, tmp_path: pathlib.Path) -> None:
    """Nested structures, strings, ragged lists and non-arrays are read back unchanged."""
    (predictions,) = predictions_of(tmp_path, [prediction, prediction])
    expected = dict(flat(prediction))
    assert predictions.keys() == expected.keys()
    for name, array in expected.items():
        differences = SampleDifferences()
        both = as_array([array, array])
        differences.add(predictions[name], both)
        assert not differences.note
        assert not differences.largest


def test_predictions_may_change_their_shape(tmp_path: pathlib.Path) -> None:
    """Samples of different shapes are stored and compared one by one.

    A difference has the number of its sample, counted over all chunks.
    """
    grown = [{"p": np.arange(n)} for n in (1, 3, 2)]
    (predictions,) = predictions_of(tmp_path, grown)
    assert [one.tolist() for one in predictions["p"]] == [[0], [0, 1, 2], [0, 1]]
    other = predictions["p"].copy()
    other[1] = np.array([0, 1, 9])
    differences = SampleDifferences()
    differences.add(predictions["p"], predictions["p"])
    differences.add(predictions["p"], other)
    where = differences.outcome("", "", 0, "").where
    assert where.startswith("sample 4, element [2]: 2 on A, 9 on B")
    assert where.endswith("; 1 of 6 samples differs")


def test_all_predictions_are_written(tmp_path: pathlib.Path) -> None:
    """Predictions that do not fit into memory go to several files, and none is lost."""
    count = 2 * SAMPLES_OF_CHUNK + 5
    chunks = predictions_of(tmp_path, [np.int64(i) for i in range(count)])
    assert len(chunks) == 3
    values = np.concatenate([chunk["prediction"] for chunk in chunks])
    np.testing.assert_array_equal(values, np.arange(count))

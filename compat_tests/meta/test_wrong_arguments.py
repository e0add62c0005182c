"""Wrong arguments of constructors are refused by errors that name them, or fit the annotation."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from compat_tests.support import wrong_arguments
from estimator_bridge import errors, estimator
from tf2_engine import OPTIMIZERS, SGD, Adam, TPUEmbedding, arguments
from tf2_engine.specs import TableSpec

PARTS = 10
"""The quick tier has one of so many parts, always the same; the thorough one has all."""


def check(part: slice) -> None:
    """Fails for each combination that is not as it should be."""
    outcomes = list(wrong_arguments.outcomes(part))
    defects = [each.defect for each in outcomes if each.defect]
    assert not defects, "\n".join(defects)
    counts = collections.Counter(each.error is None for each in outcomes)
    assert counts[False] > counts[True] > 0, counts


def test_some_wrong_arguments_are_refused() -> None:
    """Each combination raises an error of the project that names the argument, or is taken."""
    check(slice(0, None, PARTS))


@pytest.mark.full
def test_all_wrong_arguments_are_refused() -> None:
    check(slice(None))


@pytest.mark.parametrize("name", wrong_arguments.constructors())
def test_the_other_arguments_are_right(name: str) -> None:
    """The valid arguments, into which each wrong one is put, are accepted."""
    constructor, valid = wrong_arguments.constructors()[name]
    constructor(**valid)


def test_every_kind_of_wrong_value_is_tried() -> None:
    """Each kind of annotation accepts fewer than half of the wrong values."""
    for name, kind in arguments.KINDS.items():
        taken = [wrong for wrong, value in wrong_arguments.WRONG.items() if kind.contains(value)]
        assert len(taken) < len(wrong_arguments.WRONG) / 2, name


@pytest.mark.parametrize(
    "annotation, taken, refused",
    [
        ("int | None", (3, np.int64(3), None, True), (1.5, "3", [])),
        ("float", (1, 1.5, np.float32(2), np.array(1.0)), ("1", np.ones(1), None, 1j)),
        ("bool", (True, np.bool_(False), 1, 0, None), ("False", 2, 1.0, [])),
        ("Sequence[Object] | None", ([], (1,), None, {1}), ("ab", {"a": 1}, 3)),
        ("Rate", (0.1, lambda: 0.1), ("x", None)),
        ("Mapping[str, Callable[[int], str]]", ({},), ([], None)),
        ("Object", (object(), "x", None), (np.ones(2),)),
    ],
)
def test_annotations_mean_what_they_say(
    annotation: str, taken: tuple[object, ...], refused: tuple[object, ...]
) -> None:
    """Values of numpy and flags as 0 and 1 are taken; texts of numbers and arrays are not."""
    for value in taken:
        arguments.check("Owner", {"setting": value}, {"setting": annotation})
    for value in refused:
        for stock_type in (TypeError, ValueError):
            with pytest.raises(stock_type, match=r"^`Owner`: `setting` must be .*got"):
                arguments.check("Owner", {"setting": value}, {"setting": annotation})


def test_what_passed_before_is_refused() -> None:
    """A fraction of a sample, a spec that is none, and infinite settings are named."""
    make, valid = wrong_arguments.constructors()["TPUEstimator"]
    for use_tpu in (False, True):
        with pytest.raises(errors.WrongType, match=r"`train_batch_size` must be int.*1\.5"):
            make(**{**valid, "train_batch_size": 1.5, "use_tpu": use_tpu})
        with pytest.raises(errors.WrongSetting, match=r"`embedding_config_spec` must be.*-1"):
            make(**{**valid, "embedding_config_spec": -1, "use_tpu": use_tpu})
    with pytest.raises(errors.InvalidSpec, match="`epsilon` must be positive and finite, got inf"):
        Adam(epsilon=float("inf"))
    with pytest.raises(errors.WrongSetting, match="`lazy_adam` must be a bool, got 'no'"):
        Adam(lazy_adam="no")  # type: ignore[arg-type]
    _, of_engine = wrong_arguments.constructors()["TPUEmbedding"]
    with pytest.raises(errors.InvalidSpec, match="`num_cores` must be positive, got 0"):
        TPUEmbedding(**of_engine, num_cores=0)
    with pytest.raises(errors.WrongSetting, match="`use_tpu` must be a bool, got 'False'"):
        make(**{**valid, "use_tpu": "False"})


def test_infinite_limits_are_limits() -> None:
    for kind in OPTIMIZERS.values():
        if "clip_weight_max" in wrong_arguments.arguments_of(kind):
            needed = wrong_arguments._needed(kind)
            assert kind(**needed, clip_weight_max=float("inf")).clips_weights


def test_numbers_of_numpy_are_taken() -> None:
    assert TableSpec("t", 4, 2, "sum", SGD(np.float32(0.5))).dim == 2
    config = estimator.tpu.TPUConfig(num_shards=np.int64(2), iterations_per_loop=3)
    assert config.num_shards == 2

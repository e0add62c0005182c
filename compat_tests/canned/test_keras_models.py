"""`model_to_estimator`: its estimators compared with stock's and with the Keras models."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import converted, convertible_models
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge import errors, estimator
from estimator_bridge.canned.keras_models import model_to_estimator
from tf2_engine import tf_compat

if HAS_STOCK:
    from compat_tests.support import stock

keras: Any = tf_compat.keras2()
export: Any = estimator.export

WEIGHTED = [pytest.param(weighted, id="weighted" * weighted or "plain") for weighted in (0, 1)]


@pytest.mark.stock
@pytest.mark.full
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("case", converted.JOBS)
def test_values_are_those_of_stock(case: str, weighted: bool, tmp_path: pathlib.Path) -> None:
    """Checkpoints, metrics, predictions and signatures are stock's by 0.0, and so are all names.

    A new optimizer is tried in a process without tf_keras, since stock takes none beside it.
    """
    if case == "new optimizer":
        fresh.module(converted.__name__, case, weighted, tmp_path, check=True, cwd=ROOT)
    else:
        converted.compare_with_stock(case, bool(weighted), tmp_path)


@pytest.mark.stock
def test_a_new_optimizer_beside_tf_keras_is_named(tmp_path: pathlib.Path) -> None:
    """Where tf_keras is imported, Keras 2.15 converts the optimizer to a class of tf_keras.

    The bridge's message names tf_keras and the way out; stock's has neither.
    """
    assert "tf_keras" in sys.modules
    with pytest.raises(
        errors.InvalidInput, match=r"tf_keras.*tf\.keras\.optimizers\.legacy\.Adagrad,"
    ):
        model_to_estimator(convertible_models.make("new optimizer"), model_dir=tmp_path / "ours")
    with pytest.raises(ValueError, match="Could not interpret optimizer identifier"):
        stock.model_to_estimator(
            convertible_models.make("new optimizer"), model_dir=str(tmp_path / "stock")
        )


@pytest.mark.full
@pytest.mark.parametrize("case", ["sequential", "functional", "sequential by name"])
def test_the_estimator_continues_from_the_model(case: str, tmp_path: pathlib.Path) -> None:
    """Without training it predicts as the Keras model does; Keras reads what training saves."""
    name, options = converted.JOBS[case]
    model = convertible_models.make(name)
    data = convertible_models.input_fn(name, epochs=1)
    expected = model.predict(data.map(lambda features, _: features), verbose=0)
    weights = model.get_weights()
    job = model_to_estimator(model, model_dir=tmp_path, **options)
    predicted = list(job.predict(lambda: convertible_models.input_fn(name, epochs=1)))

    for number, output in enumerate(model.output_names):
        wanted = expected[number] if isinstance(expected, list) else expected
        # Both are float32 of the same ops, in one graph fused and in the other not: three layers of
        # sums of at most 16 products are off by 3 * (2 * 16 + 4) roundings, 7e-6 of their terms.
        np.testing.assert_allclose(
            [each[output] for each in predicted], wanted, rtol=1e-5, atol=1e-6
        )
    job.train(lambda: convertible_models.input_fn(name), steps=2)
    if not options:
        copy = convertible_models.make(name)
        copy.load_weights(job.latest_checkpoint()).expect_partial()
        kernel = next(each for each in copy.weights if "kernel" in each.name)
        assert not np.array_equal(kernel.numpy(), weights[0])


def unsaved() -> Any:
    return keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])


class WithoutConfig(keras.Model):  # type: ignore[misc]
    def get_config(self) -> dict[str, Any]:
        """Raises what older versions of Keras raise themselves."""
        raise NotImplementedError


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "nothing": (dict, "Either `keras_model` or `keras_model_path`"),
    "both": (lambda: {"keras_model": unsaved(), "keras_model_path": "x"}, "but not both"),
    "not compiled": (lambda: {"keras_model": unsaved()}, "not been compiled"),
    "format": (
        lambda: {"keras_model": convertible_models.make("sequential"), "checkpoint_format": "h5"},
        "Checkpoint format must be one of",
    ),
    "own class by object": (
        lambda: {"keras_model": convertible_models.make("own class")},
        "not supported with subclassed models",
    ),
    "no config": (
        lambda: {"keras_model": WithoutConfig(), "checkpoint_format": "saver"},
        "must implement `Model.get_config`",
    ),
    "not Keras 2": (lambda: {"keras_model": object()}, "not a Keras 2 model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(case: str, tmp_path: pathlib.Path) -> None:
    """A model that cannot be converted is a ValueError, as with stock, with the way out."""
    arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        model_to_estimator(model_dir=tmp_path, **arguments())
    assert isinstance(caught.value, errors.EngineError)


def of_functional() -> Any:
    return convertible_models.input_fn("functional")


IN_TRAINING: dict[str, tuple[dict[str, Any], Callable[[], Any], type[Exception], str]] = {
    "a feature is missing": (
        {},
        lambda: ({"a": np.zeros([2, 4], np.float32)}, np.zeros([2, 1], np.float32)),
        KeyError,
        "does not cover requested inputs keys",
    ),
    "a metric is unknown": (
        {"metric_names_map": {"amount_mae": "x", "kind_accuracy": "y", "z": "z"}},
        *(of_functional, ValueError),
        "unexpected keys.*'z'",
    ),
    "a metric has no name": (
        {"metric_names_map": {"amount_mae": "x"}},
        *(of_functional, ValueError),
        "'kind_accuracy'.* do not exist",
    ),
    "an output is unknown": (
        {"export_outputs": {"all": export.PredictOutput}},
        *(of_functional, KeyError),
        "not outputs of the model[^!]*missed keys: .'all'",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("case", IN_TRAINING)
def test_what_does_not_fit_the_model_is_named(case: str, tmp_path: pathlib.Path) -> None:
    options, input_fn, kind, message = IN_TRAINING[case]
    model = convertible_models.make("functional")
    job = model_to_estimator(model, model_dir=tmp_path, **options)
    with pytest.raises(kind, match=message):
        job.train(input_fn, steps=1)

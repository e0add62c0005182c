"""The Keras form of a canned estimator has the estimator's own default learning rates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import estimator as v1
from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.estimator import v2

APIS = {"tf.compat.v1.estimator": v1, "tf.estimator": v2}

KINDS = {
    "DNNRegressor": ("[2], [a]", ["optimizer"]),
    "LinearRegressor": ("[a]", ["optimizer"]),
    "DNNLinearCombinedRegressor": (
        "linear_feature_columns=[a], dnn_feature_columns=[a], dnn_hidden_units=[2]",
        ["dnn_optimizer", "linear_optimizer"],
    ),
}
"""The arguments of each class, and its optimizer arguments in the order of use."""

NAMES = ("", "Adagrad", "Adam", "Ftrl", "SGD")
"""The optimizer names that the Keras form accepts; "" is the estimator's default."""

PROGRAM = """\
import tensorflow as tf

a = tf.feature_column.numeric_column('a')
job = API.CLASS(ARGUMENTS)
job.train(lambda: tf.data.Dataset.from_tensors(({'a': [[1.]]}, [1.])).repeat(), steps=1)
"""

Made = list[tuple[str, float]]
"""Optimizers in the order of use: the Keras class and the rate of each."""


def made_by_the_estimator(job: Any, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Returns the optimizers that an estimator creates for a training."""
    recorded: Made = []

    def recording(make: Callable[..., Any]) -> Callable[..., Any]:
        def made_and_kept(optimizer: Any, learning_rate: Any = None) -> Any:
            new = make(optimizer, learning_rate)
            config = new.get_config() if hasattr(new, "get_config") else {}
            # In TensorFlow 1 a missing rate is not a number, and float() raises an error.
            recorded.append((optimizer, float(config.get("learning_rate", learning_rate))))
            return new

        return made_and_kept

    for name in ("v1_optimizer", "keras_optimizer"):
        monkeypatch.setattr(arguments, name, recording(getattr(arguments, name)))
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        job.model_fn({"a": tf.ones([1, 1])}, tf.ones([1]), "train", job.config)
    return recorded


def written(source: str) -> Made:
    text = migrate_to_keras(source, "train.py").source
    calls = re.findall(r"tf\.keras\.optimizers\.(\w+)\(([\d.]+)", text)
    return [(name, float(rate)) for name, rate in calls]


@pytest.mark.full
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_the_rate_of_the_estimator(
    api: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each class, part and API creates the same optimizer with the same rate."""
    arguments, parts = KINDS[kind]
    # Two Adams of TensorFlow 1 are refused, so each part is tested alone.
    for part in parts if name else [""]:
        all_arguments = f"{arguments}, {part}={name!r}" if name else arguments
        a = tf.feature_column.numeric_column("a")
        job = eval(f"module.{kind}({all_arguments})", {"module": APIS[api], "a": a})
        with monkeypatch.context() as patch:
            expected = made_by_the_estimator(job, patch)
        source = (
            PROGRAM.replace("API", api).replace("CLASS", kind).replace("ARGUMENTS", all_arguments)
        )
        assert written(source) == expected
        assert len(expected) == len(parts)

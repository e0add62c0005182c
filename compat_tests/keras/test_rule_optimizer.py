"""`RuleOptimizer` computes the same numbers as the optimizers of estimators."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.references.tolerance import allowed
from tf2_engine import errors, tf_compat
from tf2_engine import keras as ours

STEPS = 4
train = tf.compat.v1.train
legacy = tf_compat.keras2().optimizers.legacy

RULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "squares, TensorFlow 1": (
        lambda: ours.RuleOptimizer(tf2_engine.RMSProp(0.1, epsilon=1e-10), {"ms": 1.0}),
        lambda: train.RMSPropOptimizer(0.1),
    ),
    "squares with momentum, TensorFlow 1": (
        lambda: ours.RuleOptimizer(
            tf2_engine.RMSProp(0.1, rho=0.8, momentum=0.5, epsilon=1e-10), {"ms": 1.0}
        ),
        lambda: train.RMSPropOptimizer(0.1, 0.8, 0.5),
    ),
    "momentum, TensorFlow 1": (
        lambda: ours.RuleOptimizer(tf2_engine.Momentum(0.1, momentum=0.9, use_nesterov=True)),
        lambda: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    ),
    "leader, TensorFlow 1": (
        lambda: ours.RuleOptimizer(tf2_engine.FTRL(0.1, l1_regularization_strength=0.01)),
        lambda: train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    ),
    "squares, Keras": (
        lambda: ours.RuleOptimizer(ours.KerasRMSProp(0.1, rho=0.8)),
        lambda: legacy.RMSprop(0.1, 0.8),
    ),
    "squares with momentum, Keras": (
        lambda: ours.RuleOptimizer(tf2_engine.RMSProp(0.1, momentum=0.5)),
        lambda: legacy.RMSprop(0.1, momentum=0.5),
    ),
    "momentum, Keras": (
        lambda: ours.RuleOptimizer(ours.KerasMomentum(0.1, momentum=0.9)),
        lambda: legacy.SGD(0.1, 0.9),
    ),
    "momentum of Nesterov, Keras": (
        lambda: ours.RuleOptimizer(ours.KerasMomentum(0.1, momentum=0.9, nesterov=True)),
        lambda: legacy.SGD(0.1, 0.9, nesterov=True),
    ),
    "leader, Keras": (
        lambda: ours.RuleOptimizer(tf2_engine.FTRL(0.1, l2_regularization_strength=0.1)),
        lambda: legacy.Ftrl(0.1, l2_regularization_strength=0.1),
    ),
}
"""A rule, and the optimizer that has it."""


def trained(optimizer: Any) -> list[np.ndarray]:
    """Trains a table and a bias; some rows of the table occur twice in a step."""
    rng = np.random.default_rng(3)
    table = tf.Variable(rng.normal(size=[6, 2]).astype(np.float32), name="table")
    bias = tf.Variable(rng.normal(size=[2]).astype(np.float32), name="bias")
    for _ in range(STEPS):
        rows = tf.constant(rng.normal(size=[3, 2]).astype(np.float32))
        first = int(rng.integers(4))
        of_table = tf.IndexedSlices(rows, tf.constant([first, first + 1, first]), [6, 2])
        of_bias = tf.constant(rng.normal(size=[2]).astype(np.float32))
        optimizer.apply_gradients([(of_table, table), (of_bias, bias)])
    return [table.numpy(), bias.numpy()]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_the_numbers_of_the_optimizer(name: str) -> None:
    """A rule updates tables and whole variables like the optimizer, also rows outside the batch."""
    rule, optimizer = RULES[name]
    for here, there in zip(trained(rule()), trained(optimizer()), strict=True):
        # The gradient of a row is the sum of up to two.
        atol = allowed(n_terms=2, steps=STEPS, scale=max(1.0, float(np.abs(there).max())))
        np.testing.assert_allclose(here, there, rtol=0, atol=atol)


def test_the_rate_may_be_a_schedule() -> None:
    """The schedule gets the number of steps that the optimizer has counted."""
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = ours.RuleOptimizer(ours.KerasMomentum(schedule))
    variable = tf.Variable([1.0])
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_array_equal(variable, [1.0 - 0.5 - 0.25])


def test_a_copy_has_the_rule() -> None:
    """An optimizer made from the config, in a program or a file, has the same rule and slots."""
    optimizer = ours.RuleOptimizer(tf2_engine.RMSProp(0.1), {"ms": 1.0})
    text = json.dumps(tf.keras.saving.serialize_keras_object(optimizer))
    copies = [
        type(optimizer).from_config(optimizer.get_config()),
        tf.keras.saving.deserialize_keras_object(json.loads(text)),
    ]
    expected = trained(optimizer)
    for copy in copies:
        assert copy.rule == optimizer.rule
        for here, there in zip(trained(copy), expected, strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    ("rule", "starts", "kind", "message"),
    [
        ("RMSProp", {}, errors.WrongType, "'RMSProp' is not an optimizer"),
        (tf2_engine.RMSProp(0.1), {"rms": 1.0}, errors.InvalidSpec, r"no slot \['rms'\]"),
        (tf2_engine.SGD(0.1, clip_weight_max=1.0), {}, errors.InvalidSpec, "clip_weight_max of"),
        (tf2_engine.SGD(lambda: 0.1), {}, errors.InvalidSpec, "is the function"),
    ],
)
def test_what_is_no_rule_is_refused(rule: Any, starts: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        ours.RuleOptimizer(rule, starts)

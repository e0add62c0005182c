"""Names the slots of a Keras model's optimizers in checkpoints as estimators do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf2_engine.types import Object, Variable

_SLOTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Adam": {
        "m": ("Adam", "m"),
        "momentum": ("Adam", "m"),
        "v": ("Adam_1", "v"),
        "velocity": ("Adam_1", "v"),
    },
    "Adagrad": {"accumulator": ("Adagrad", "accumulator")},
    "Ftrl": {"accumulator": ("Ftrl", "accumulator"), "linear": ("Ftrl_1", "linear")},
}
"""By class of Keras optimizer and its name for a slot: that of `tf.compat.v1.train`, and that of
`tf.keras.optimizers.legacy`."""

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "Adam": ("learning_rate", "decay", "beta_1", "beta_2"),
    "Adagrad": ("learning_rate", "decay"),
    "Ftrl": (
        *("learning_rate", "decay", "beta", "learning_rate_power"),
        *("l1_regularization_strength", "l2_regularization_strength"),
    ),
    "SGD": ("learning_rate", "decay", "momentum"),
}
"""The settings that `tf.keras.optimizers.legacy` has in variables."""


def slots(optimizer: Object) -> Iterator[tuple[tuple[str, str], list[Variable]]]:
    """Yields the names of each slot, see `_SLOTS`, and its variables in the order of training."""
    known = _SLOTS.get(type(optimizer).__name__, {})
    variables_of: dict[tuple[str, str], list[Variable]] = {}
    for variable in _variables_of(optimizer):
        slot = _slot_of(variable, known)
        if slot is not None:
            variables_of.setdefault(slot, []).append(value_of(variable))
    yield from variables_of.items()


def numbers(optimizer: Object) -> Iterator[tuple[str, float]]:
    """Yields the settings that a legacy optimizer of Keras has in variables, by their names."""
    config = optimizer.get_config()
    for name in _NUMBERS.get(type(optimizer).__name__, ()):
        value = config.get(name) or 0.0
        if not isinstance(value, Mapping):  # which is a schedule
            yield name, float(value)


def iterations(optimizer: Object) -> Variable:
    """Returns the steps that an optimizer has counted."""
    return value_of(optimizer.iterations)


def value_of(variable: Object) -> Variable:
    """Returns TensorFlow's variable of one of Keras 3."""
    return variable.value if hasattr(variable, "path") else variable


def constant(value: float) -> Variable:
    """Returns a float32 variable that no step changes, for checkpoints."""
    return tf.Variable(value, trainable=False, dtype=tf.float32)


def _variables_of(optimizer: Object) -> list[Object]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _slot_of(variable: Object, known: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Returns the names of a slot: Keras 2 has "m/...", Keras 3 "adam/..._momentum"."""
    path = getattr(variable, "path", None)
    if path is None:
        # Below the optimizer's name, or not.
        return next((known[part] for part in variable.name.split("/")[:2] if part in known), None)
    return known.get(path.rpartition("_")[2])

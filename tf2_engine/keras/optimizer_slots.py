"""Names the slots of a Keras model's optimizers in checkpoints as estimators do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tf2_engine.keras.rule_optimizer import RuleOptimizerBase, value_of
from tf2_engine.types import Object, Variable


class SlotRow(NamedTuple):
    """The slots of a Keras optimizer.

    Attributes:
        slots: for each slot, its names in `tf.compat.v1.train` and in `tf.keras.optimizers.legacy`.
        numbers: settings that the legacy Keras optimizer stores as variables.
        name: the class in Keras, for a rule of the engine.
    """

    slots: Mapping[str, tuple[str, str]]
    numbers: tuple[str, ...]
    name: str = ""


_FTRL = (
    *("learning_rate", "decay", "beta", "learning_rate_power"),
    *("l1_regularization_strength", "l2_regularization_strength"),
)
_SGD = ("learning_rate", "decay", "momentum")
_RMSPROP = ("learning_rate", "decay", "rho", "momentum")

_ROWS: Mapping[str, SlotRow] = {
    "Adam": SlotRow(
        {
            "m": ("Adam", "m"),
            "momentum": ("Adam", "m"),
            "v": ("Adam_1", "v"),
            "velocity": ("Adam_1", "v"),
        },
        ("learning_rate", "decay", "beta_1", "beta_2"),
    ),
    "Adagrad": SlotRow({"accumulator": ("Adagrad", "accumulator")}, ("learning_rate", "decay")),
    "Ftrl": SlotRow(
        {"accumulator": ("Ftrl", "accumulator"), "linear": ("Ftrl_1", "linear")}, _FTRL
    ),
    "SGD": SlotRow({}, _SGD),
    "FTRL": SlotRow(
        {"accumulators": ("Ftrl", "accumulator"), "linears": ("Ftrl_1", "linear")}, _FTRL, "Ftrl"
    ),
    "KerasMomentum": SlotRow({"momenta": ("", "momentum")}, _SGD, "SGD"),
    "KerasRMSProp": SlotRow({"ms": ("", "rms")}, _RMSPROP, "RMSprop"),
    "Momentum": SlotRow({"momenta": ("Momentum", "")}, (), "Momentum"),
    "RMSProp": SlotRow(
        {"ms": ("RMSProp", "rms"), "mom": ("RMSProp_1", "momentum")}, _RMSPROP, "RMSprop"
    ),
}
"""By the class of a Keras optimizer, or of the rule in a `RuleOptimizer`."""


def name_of(optimizer: Object) -> str:
    kind = type(_rule_of(optimizer)).__name__
    return _ROWS[kind].name or kind if kind in _ROWS else kind


def slots(optimizer: Object) -> Iterator[tuple[tuple[str, str], list[Variable]]]:
    """Yields the names of each slot (see `SlotRow`), and its variables in the order of training."""
    row = _ROWS.get(type(_rule_of(optimizer)).__name__)
    known = {} if row is None else row.slots
    variables_of: dict[tuple[str, str], list[Variable]] = {}
    if isinstance(optimizer, RuleOptimizerBase):
        pairs = optimizer.slots().items()
        variables_of = {
            known.get(name, (name, name)): [value_of(each) for each in of] for name, of in pairs
        }
    else:
        variables = optimizer.variables
        for variable in variables() if callable(variables) else variables:
            slot = _slot_of(variable, known)
            if slot is not None:
                variables_of.setdefault(slot, []).append(value_of(variable))
    yield from variables_of.items()


def numbers(optimizer: Object) -> Iterator[tuple[str, float]]:
    rule = _rule_of(optimizer)
    config = optimizer.get_config() if rule is optimizer else vars(rule)
    row = _ROWS.get(type(rule).__name__)
    for name in () if row is None else row.numbers:
        value = config.get(name) or 0.0
        if not isinstance(value, Mapping) and not callable(value):  # not a schedule
            yield name, float(value)


def _rule_of(optimizer: Object) -> Object:
    return optimizer.rule if isinstance(optimizer, RuleOptimizerBase) else optimizer


def iterations(optimizer: Object) -> Variable:
    return value_of(optimizer.iterations)


def _slot_of(variable: Object, known: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    path = getattr(variable, "path", None)
    if path is None:
        # With or without the optimizer's name in front.
        return next((known[part] for part in variable.name.split("/")[:2] if part in known), None)
    return known.get(path.rpartition("_")[2])

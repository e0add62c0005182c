"""`RuleOptimizer`, a Keras optimizer with a rule of the engine, and the rate `RateByStep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.keras.layer_settings import Setting, argument_of, package_of
from tf2_engine.keras.legacy_rules import KerasMomentum, KerasRMSProp
from tf2_engine.optimizers import Optimizer
from tf2_engine.types import Object, Tensor, Variable

TableOptimizer: TypeAlias = Optimizer | KerasMomentum | KerasRMSProp

_NEUTRAL = {
    "clip_weight_min": None,
    "clip_weight_max": None,
    "clip_gradient_min": None,
    "clip_gradient_max": None,
    "weight_decay_factor": None,
}
"""Settings of the engine's optimizers that are not part of a rule. They must have these values."""


class RuleOptimizerBase:
    """A Keras optimizer that applies the update rule of one of the engine's optimizers.

        optimizer = RuleOptimizer(tf2_engine.RMSProp(0.05), {"ms": 1.0})

    As in `tf.estimator`, only the rows of the batch change if rows of a variable are looked up.
    Current Keras optimizers change all rows.

    Args:
        rule: an optimizer of the engine, a `KerasMomentum` or a `KerasRMSProp`, whose learning rate
            is a number or a Keras schedule.
        slot_initial_values: maps names of slots to initial values. By default slots get the
            rule's values.

    Raises:
        InvalidSpec: the rule has a setting that this optimizer cannot apply, or a slot is unknown.
    """

    apply_gradients: Object
    learning_rate: Object

    def __init__(
        self,
        rule: TableOptimizer,
        slot_initial_values: Mapping[str, float] | None = None,
        name: str | None = None,
    ) -> None:
        starts = dict(slot_initial_values or {})
        _check(rule, starts)
        start, rate = super().__init__, rule.learning_rate
        tf_compat.start_keras_optimizer(self, start, rate, name or "rule_optimizer")
        self._of_slots = _Slots(rule, rule.slot_initial_values() | starts)

    @property
    def rule(self) -> TableOptimizer:
        return self._of_slots.rule

    def build(self, variables: Sequence[Variable]) -> None:
        if self._of_slots.variables:
            return
        super().build(variables)  # type: ignore[misc]
        with tf.init_scope():
            for name, start in self._of_slots.starts.items():
                slot = [self.add_variable_from_reference(each, name) for each in variables]  # type: ignore[attr-defined]
                for each in slot:
                    each.assign(tf.fill(each.shape, tf.constant(start, each.dtype)))
                self._of_slots.variables[name] = slot

    def slots(self) -> dict[str, list[Variable]]:
        return self._of_slots.variables

    def update_step(self, gradient: Object, variable: Object, learning_rate: Object = None) -> None:
        rate = tf.cast(self.learning_rate if learning_rate is None else learning_rate, tf.float32)
        number = tf_compat.keras_variable_index(self, variable)
        slots = {name: value_of(each[number]) for name, each in self._of_slots.variables.items()}
        rule, weights = self._of_slots.rule, value_of(variable)
        if isinstance(gradient, tf.IndexedSlices) and not rule.updates_all_rows:
            _update_rows(rule, weights, slots, gradient, rate)
            return
        gradient = tf.convert_to_tensor(gradient)
        w = tf.convert_to_tensor(weights)
        tensors = {name: tf.convert_to_tensor(each) for name, each in slots.items()}
        new, of_slots = rule.update(w, tensors, gradient, rate)
        weights.assign(new)
        for name, value in of_slots.items():
            slots[name].assign(value)

    def get_config(self) -> dict[str, Object]:
        package = package_of(self)
        return {
            "rule": Setting(self._of_slots.rule, package),
            "slot_initial_values": Setting(self._of_slots.starts, package),
            "name": self.name,  # type: ignore[attr-defined]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Object], *_: Object, **__: Object) -> Object:
        known = ("rule", "slot_initial_values", "name")
        return cls(**{key: argument_of(config[key]) for key in known})


class _Slots:
    def __init__(self, rule: TableOptimizer, starts: Mapping[str, float]) -> None:
        self.rule, self.starts = rule, dict(starts)
        self.variables: dict[str, list[Variable]] = {}


def _check(rule: TableOptimizer, starts: Mapping[str, float]) -> None:
    kind = type(rule).__name__
    if not isinstance(rule, TableOptimizer):
        raise errors.WrongType(
            f"`rule`: {rule!r} is not an optimizer of the engine. Give one, such as "
            "tf2_engine.RMSProp."
        )
    unknown = [name for name in starts if name not in rule.slot_names]
    if unknown:
        raise errors.InvalidSpec(
            f"`slot_initial_values`: {kind} has no slot {unknown}. Its slots are "
            f"{list(rule.slot_names)}."
        )
    set_ = [name for name, neutral in _NEUTRAL.items() if getattr(rule, name, None) != neutral]
    if set_:
        raise errors.InvalidSpec(
            f"`rule`: a RuleOptimizer does not apply {', '.join(set_)} of {kind}. Leave these "
            "settings out. To clip gradients, call the model's `gradients`, and clip before "
            "`apply_gradients`."
        )
    if callable(rule.learning_rate) and not hasattr(rule.learning_rate, "get_config"):
        raise errors.InvalidSpec(
            f"`rule`: the learning rate of {kind} is the function {rule.learning_rate!r}. Set it "
            "to a number, or to a schedule of `tf.keras.optimizers.schedules`."
        )


def _update_rows(
    rule: TableOptimizer,
    weights: Variable,
    slots: Mapping[str, Variable],
    gradient: tf.IndexedSlices,
    rate: Tensor,
) -> None:
    ids, places = tf.unique(gradient.indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
    rows = {name: tf.gather(each, ids) for name, each in slots.items()}
    new, of_slots = rule.update(tf.gather(weights, ids), rows, summed, rate)
    weights.scatter_update(tf.IndexedSlices(new, ids))
    for name, value in of_slots.items():
        slots[name].scatter_update(tf.IndexedSlices(value, ids))


def value_of(variable: Object) -> Variable:
    return variable.value if hasattr(variable, "path") else variable


Instance = TypeVar("Instance", bound="RateByStepBase")


class RateByStepBase:
    """A learning rate that is a function of the step, for a Keras optimizer.

        optimizer = tf.keras.optimizers.Adam(RateByStep(warmed_up))

    Args:
        function: computes the rate, a scalar, from the number of earlier steps, an int64 scalar.
            Register the function with Keras if models are written to Keras files.
    """

    def __init__(self, function: Callable[[Tensor], Object]) -> None:
        self.function = function
        if not callable(self.function):
            raise errors.WrongType(
                f"`function`: {self.function!r} is not a function of the step. For a constant "
                "rate, pass the number to the optimizer directly."
            )

    def __call__(self, step: Object) -> Tensor:
        return tf.cast(self.function(tf.cast(step, tf.int64)), tf.float32)

    def get_config(self) -> dict[str, Object]:
        return {"function": Setting(self.function, package_of(self))}

    @classmethod
    def from_config(cls: type[Instance], config: Mapping[str, Object]) -> Instance:
        return cls(argument_of(config["function"]))

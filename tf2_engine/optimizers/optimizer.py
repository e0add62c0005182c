"""The base class of optimizers: settings, slots, one update rule, proto fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf2_engine import arguments, errors
from tf2_engine.types import Initializer, Object, Op, Rate, Tensor, TensorLike, Variable


class Range(NamedTuple):
    """The allowed values of a setting: `contains` tests a value, and messages quote `rule`.

    `contains` must return False for NaN.
    """

    contains: Callable[[Object], bool]
    rule: str


def _is_number(value: Object, test: Callable[[float], bool] = lambda x: not math.isnan(x)) -> bool:
    if isinstance(value, (str, bytes)):  # float() would parse these.
        return False
    try:
        return test(float(value))
    except (TypeError, ValueError):
        return False


def _is_finite(value: Object) -> bool:
    return _is_number(value, math.isfinite)


POSITIVE = Range(lambda x: 0.0 < x < math.inf, "must be positive and finite")
NOT_NEGATIVE = Range(lambda x: 0.0 <= x < math.inf, "must be at least 0 and finite")
NOT_POSITIVE = Range(lambda x: -math.inf < x <= 0.0, "must be at most 0 and finite")
FINITE = Range(math.isfinite, "must be finite")
FRACTION = Range(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]")
BELOW_ONE = Range(lambda x: 0.0 <= x < 1.0, "must be in [0, 1)")
INSIDE_UNIT = Range(lambda x: 0.0 < x < 1.0, "must be in (0, 1)")

# Settings that all optimizers share.
RATE = Range(lambda x: callable(x) or _is_finite(x), "must be a finite number")
FACTOR = Range(lambda x: x is None or _is_finite(x), "must be a finite number")
LIMIT = Range(lambda x: x is None or _is_number(x), "must be a number or None")
# Stock takes a bool. The values of the proto's enum, 0 and 1, are equal to bools.
FLAG = Range(lambda x: x in (False, True), "must be a bool")
FUNCTION = Range(lambda x: x is None or callable(x), "must be callable")


REQUIRED = dataclasses.MISSING
"""The `default` of a setting that has no default value and must be passed."""


def setting(
    default: Object, allowed: Range | None, proto: str | None = None, *, slot: str | None = None
) -> Object:
    """Declares a field of an optimizer's class. A `REQUIRED` field must be passed by name.

    `allowed=None` allows any value. `proto` is the field of the optimizer's proto message. If the
    setting is the initial value of a slot, `slot` is the name of this slot.
    """
    metadata = {"range": allowed, "proto": proto, "slot": slot}
    return dataclasses.field(default=default, kw_only=default is REQUIRED, metadata=metadata)


SlotFunction: TypeAlias = Callable[[Variable, list[str], list[Initializer]], dict[str, Variable]]
"""Creates slots, given the table's variable, the names of the slots and their initializers."""

Slots: TypeAlias = Mapping[str, Tensor]
"""Maps the name of each slot to its values, [rows, dim] float32."""

Updated: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The rows and the slots after a step."""

KEEPING = frozenset({"low_dimensional_packing_status", "slot_variable_creation_fn"})
"""Settings that only affect how rows and slots are stored. Legacy optimizers do not have them."""


@dataclass(frozen=True)
class Optimizer:
    """The settings that all optimizers share.

    An optimizer is a frozen dataclass whose fields come from `setting`. The proto with these fields
    is TensorFlow's optimization_parameters.proto.

    Attributes:
        learning_rate: a constant, or a callable without arguments that returns a scalar. The
            callable is called once per trace, and its ops run in every step.
        use_gradient_accumulation: sums the gradients of a row over the global batch and updates the
            row once. If False, each core updates the row with its own sum, first the core that owns
            the row.
        clip_weight_min, clip_weight_max: limits for each weight after its update, or None.
        weight_decay_factor: for decoupled decay: `w <- w - factor * w` is computed before the rule.
            0 and None mean no decay.
        multiply_weight_decay_factor_by_learning_rate: multiplies the factor by the learning rate.
        clip_gradient_min, clip_gradient_max: limits for the accumulated gradient. They require
            `use_gradient_accumulation`.
        low_dimensional_packing_status: asks a TPU to pack rows with few columns into chunks. An
            update of a row then also updates its chunk's other rows, with a zero gradient. On a
            host this has no effect.
        slot_variable_creation_fn: creates the variables of the slots, if any, for instance with the
            `add_slot` of a Keras optimizer. By default the engine creates them.
    """

    learning_rate: Rate = setting(0.01, RATE)
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = setting(None, LIMIT)
    clip_weight_max: float | None = setting(None, LIMIT)
    weight_decay_factor: float | None = setting(None, FACTOR)
    multiply_weight_decay_factor_by_learning_rate: bool = False
    clip_gradient_min: float | None = setting(None, LIMIT)
    clip_gradient_max: float | None = setting(None, LIMIT)
    low_dimensional_packing_status: bool = setting(False, FLAG)
    slot_variable_creation_fn: SlotFunction | None = setting(None, FUNCTION)

    op_name: ClassVar[str]
    """The optimizer's part of op names, as in `LoadTPUEmbedding<op_name>Parameters`."""
    proto_field: ClassVar[str]
    """The member of the `parameters` oneof of `OptimizationParameters`."""
    slot_names: ClassVar[tuple[str, ...]] = ()
    """The names of the slots, in the order of the Load op."""
    only_dim: ClassVar[int | None] = None
    """The only `dim` that tables may have; None means any."""
    no_rule: ClassVar[str | None] = None
    """Why tables can only be looked up, loaded and retrieved; None if they can be trained."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            allowed = each.metadata.get("range")
            if allowed is not None:
                value = getattr(self, each.name)
                self._require(each.name, _contains(allowed, value), allowed.rule)
        annotations = {each.name: each.type for each in dataclasses.fields(self)}
        arguments.check(type(self).__name__, vars(self), annotations)
        for name in ("clip_weight", "clip_gradient"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            ordered = low is None or high is None or low <= high
            self._require(f"{name}_min", ordered, f"must not exceed `{name}_max`, which is {high}")
        if self.clips_gradients and not self.use_gradient_accumulation:
            raise errors.InvalidSpec(
                f"`{type(self).__name__}`: the limits clip_gradient_min="
                f"{self.clip_gradient_min} and clip_gradient_max={self.clip_gradient_max} apply "
                "only to accumulated gradients, but use_gradient_accumulation=False. Set it to "
                "True, or drop the limits."
            )

    @property
    def clips_gradients(self) -> bool:
        return self.clip_gradient_min is not None or self.clip_gradient_max is not None

    @property
    def clips_weights(self) -> bool:
        return self.clip_weight_min is not None or self.clip_weight_max is not None

    @property
    def updates_all_rows(self) -> bool:
        """Whether rows outside the batch are updated too, with a zero gradient."""
        return False

    @property
    def looks_up_rows(self) -> bool:
        """Whether `activation` returns the rows unchanged."""
        return True

    @property
    def row_initial_value(self) -> float | None:
        """The initial value of rows without an initializer. None means `default_initializer`."""
        return None

    def slot_initial_values(self) -> dict[str, float]:
        return dict.fromkeys(self.slot_names, 0.0) | self._settings_by("slot")

    def activation(self, rows: Tensor) -> Tensor:
        """Turns stored rows into the embeddings that lookups combine, [num_ids, dim] float32."""
        return rows

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        """Computes the rows and slots after one step, all [rows, dim] float32.

        Args:
            w: the weights, to which the decay is already applied.
            g: the accumulated and clipped gradient.
            lr: the rate of this step, scalar float32.
        """
        raise NotImplementedError

    def update_rows(
        self, w: Variable, slots: Mapping[str, Variable], rows: Tensor, g: Tensor, lr: Tensor
    ) -> list[Op]:
        """Applies `update` to rows of variables with a single TensorFlow op.

        Returns [] if no TensorFlow op gives the same bits as `update`. Called only for tables that
        have neither weight decay nor weight limits. `rows` are distinct, [num_rows] int64; `g` is
        [num_rows, dim] float32.
        """
        return []

    def proto_fields(self) -> dict[str, float]:
        return self._settings_by("proto")

    def _settings_by(self, key: str) -> dict[str, float]:
        return {
            each.metadata[key]: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.metadata.get(key)
        }

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise errors.InvalidSpec(
                f"`{type(self).__name__}`: `{name}` {rule}, got {getattr(self, name)!r}."
            )


def _contains(allowed: Range, value: object) -> bool:
    try:
        return bool(allowed.contains(value))
    except (TypeError, ValueError):  # For example, `value` is an array.
        return False


def one_minus(beta: float) -> np.float32:
    return np.float32(1.0) - np.float32(beta)


def root(x: Tensor) -> Tensor:
    """Computes sqrt(x) with the same bits eagerly and in graphs. Graphs would use rsqrt instead."""
    return optimization_barrier(tf.sqrt(x))


def power(x: Tensor, exponent: float) -> Tensor:
    """Computes x ** exponent for x >= 0, with the same bits eagerly and in graphs."""
    return tf.pow(x, optimization_barrier(np.float32(exponent)))


def shrink(w: Tensor, eta: Tensor, l1: float, l2: float) -> Tensor:
    """Applies the proximal step of L1 and L2 terms with the strengths `l1` and `l2`.

        w <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    eta is the learning rate of each element. Reference: Duchi and Singer, 2009.
    """
    left = tf.maximum(tf.abs(w) - eta * np.float32(l1), np.float32(0.0))
    return tf.sign(w) * left / (np.float32(1.0) + eta * np.float32(l2))


def optimization_barrier(x: TensorLike) -> Tensor:
    """Hides x from the graph optimizer, which would reorder arithmetic on constants."""
    tensor: Tensor = tf.convert_to_tensor(x)
    if tf.executing_eagerly():
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)

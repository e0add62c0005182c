"""The base class of optimizers: settings, slots, one update rule, proto fields.

An optimizer is a frozen dataclass, and `ranges.setting` describes a field of it. The order in which
clipping, decay and the rule are applied is the same for all of them and is in the backends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import tensorflow as tf

from tf2_engine import arguments, errors
from tf2_engine.optimizers import ranges
from tf2_engine.optimizers.ranges import setting
from tf2_engine.types import Initializer, Op, Rate, Tensor, TensorLike, Variable

SlotFunction: TypeAlias = Callable[[Variable, list[str], list[Initializer]], dict[str, Variable]]
"""Makes slots: called with the table's variable, the slots' names and their initializers."""

Slots: TypeAlias = Mapping[str, Tensor]
"""For each slot [rows, dim] float32."""

Updated: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The rows and the slots after a step."""

KEEPING = frozenset({"low_dimensional_packing_status", "slot_variable_creation_fn"})
"""Settings of how rows are stored: no number depends on them, and legacy optimizers have none."""


@dataclass(frozen=True)
class Optimizer:
    """The settings that all optimizers share (`OptimizationParameters` in the proto).

    Attributes:
        learning_rate: a constant, or a callable without arguments that returns a scalar; it is
            called once per trace and its ops run every step.
        use_gradient_accumulation: sum the gradients of a row over the global batch, then update
            the row once. When off, each core's sum is applied on its own, the core that owns
            the row first.
        clip_weight_min, clip_weight_max: limits of a weight after its update; None is no limit.
        weight_decay_factor: decoupled decay, `w <- w - factor * w` before the rule; 0 and None
            are no decay.
        multiply_weight_decay_factor_by_learning_rate: the factor is multiplied by the rate.
        clip_gradient_min, clip_gradient_max: limits of an accumulated gradient before it is
            used; need accumulation.
        low_dimensional_packing_status: asks a TPU to pack rows of few columns closely. It then
            updates the rows that share a chunk with a row of the batch as well, with a zero
            gradient; on a host nothing changes.
        slot_variable_creation_fn: makes the variables of the slots, for instance with the
            `add_slot` of a Keras optimizer; None leaves it to the engine. Not called where no
            slots are needed.

    Raises:
        InvalidSpec: a setting is outside its range; the message names it and its value.
    """

    learning_rate: Rate = setting(0.01, ranges.RATE)
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = setting(None, ranges.LIMIT)
    clip_weight_max: float | None = setting(None, ranges.LIMIT)
    weight_decay_factor: float | None = setting(None, ranges.FACTOR)
    multiply_weight_decay_factor_by_learning_rate: bool = False
    clip_gradient_min: float | None = setting(None, ranges.LIMIT)
    clip_gradient_max: float | None = setting(None, ranges.LIMIT)
    low_dimensional_packing_status: bool = setting(False, ranges.FLAG)
    slot_variable_creation_fn: SlotFunction | None = setting(None, ranges.FUNCTION)

    op_name: ClassVar[str]
    """The middle of `LoadTPUEmbedding<op_name>Parameters`."""
    proto_field: ClassVar[str]
    """The member of the `parameters` oneof of `OptimizationParameters`."""
    slot_names: ClassVar[tuple[str, ...]] = ()
    """Names of the slots, in the order of the Load op."""
    only_dim: ClassVar[int | None] = None
    """The only `dim` that its tables may have; None is any."""
    no_rule: ClassVar[str | None] = None
    """Why there is no update rule: tables are looked up, loaded and retrieved, but not trained."""

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
                f"`{type(self).__name__}`: gradients are clipped (clip_gradient_min="
                f"{self.clip_gradient_min}, clip_gradient_max={self.clip_gradient_max}) after they "
                "are accumulated, but use_gradient_accumulation=False. Set it to True, or drop the "
                "limits."
            )

    @property
    def clips_gradients(self) -> bool:
        """Whether a limit of the gradient is set."""
        return self.clip_gradient_min is not None or self.clip_gradient_max is not None

    @property
    def clips_weights(self) -> bool:
        """Whether a limit of the weights is set."""
        return self.clip_weight_min is not None or self.clip_weight_max is not None

    @property
    def updates_all_rows(self) -> bool:
        """Whether rows that the batch does not touch are updated too, with a zero gradient."""
        return False

    @property
    def looks_up_rows(self) -> bool:
        """Whether `activation` returns the rows as they are."""
        return True

    @property
    def row_initial_value(self) -> float | None:
        """The initial value of rows, unless the table has an initializer; None leaves it to it."""
        return None

    def slot_initial_values(self) -> dict[str, float]:
        """Returns the initial value of each slot: a setting, else 0."""
        return dict.fromkeys(self.slot_names, 0.0) | self._settings_by("slot")

    def activation(self, rows: Tensor) -> Tensor:
        """Returns the embeddings that a lookup combines for rows, [num_ids, dim] float32."""
        return rows

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        """Returns the rows and the slots after one step, all [rows, dim] float32.

        Args:
            w: the weights, decayed already.
            g: the accumulated and clipped gradient.
            lr: scalar float32, the rate of this step.
        """
        raise NotImplementedError

    def update_rows(
        self, w: Variable, slots: Mapping[str, Variable], rows: Tensor, g: Tensor, lr: Tensor
    ) -> list[Op]:
        """Applies `update` to rows of variables by one op of TensorFlow's; returns it in a list.

        Such an op goes through memory once, where those of `update` write each of their results.
        The list is empty where TensorFlow has none that gives the same numbers to the bit.

        Args:
            w: [rows, dim] float32, of a table without decay or limits of weights.
            slots: by name, each as `w`.
            rows: [num_rows] int64, which of them; distinct.
            g: [num_rows, dim] float32, as `update` takes it.
            lr: scalar float32, the rate of this step.
        """
        return []

    def proto_fields(self) -> dict[str, float]:
        """Returns the fields of this optimizer's own proto message."""
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


def _contains(allowed: ranges.Range, value: object) -> bool:
    try:
        return bool(allowed.contains(value))
    except (TypeError, ValueError):  # an array, say
        return False


def one_minus(beta: float) -> np.float32:
    """Returns 1 - beta as the device does: both are float32, as the proto carries them."""
    return np.float32(1.0) - np.float32(beta)


def root(x: Tensor) -> Tensor:
    """Returns sqrt(x), the same to the bit eagerly and in graphs.

    Graph optimisation turns x / sqrt(y) into x * rsqrt(y), which rounds differently; it does not
    look through a placeholder.
    """
    return optimization_barrier(tf.sqrt(x))


def power(x: Tensor, exponent: float) -> Tensor:
    """Returns x ** exponent for x of at least 0, the same to the bit eagerly and in graphs.

    Graph optimisation turns some powers, such as those of -1, 0.5 and 2, into other ops.
    """
    return tf.pow(x, optimization_barrier(np.float32(exponent)))


def shrink(w: Tensor, eta: Tensor, l1: float, l2: float) -> Tensor:
    """Returns w after the proximal step of its L1 and L2 terms, by their strengths.

        w <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    The learning rate eta is that of each element. Reference: Duchi and Singer, 2009.
    """
    left = tf.maximum(tf.abs(w) - eta * np.float32(l1), np.float32(0.0))
    return tf.sign(w) * left / (np.float32(1.0) + eta * np.float32(l2))


def optimization_barrier(x: TensorLike) -> Tensor:
    """Returns x, hidden from graph optimisation, which would reorder arithmetic on constants."""
    tensor: Tensor = tf.convert_to_tensor(x)
    if tf.executing_eagerly():
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)

"""The optimizers of legacy TPU embeddings, with stock's arguments, defaults and attributes.

If TensorFlow has a class of the same name, the bridge's class derives from it, so that stock's
estimator accepts it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from estimator_bridge import errors
from estimator_bridge.legacy import requirements
from estimator_bridge.legacy.requirements import FRACTION, NOT_ABOVE_ZERO, NOT_NEGATIVE, POSITIVE
from tf2_engine import arguments
from tf2_engine.types import Object

_Class = TypeVar("_Class", bound=type)


class OptimizationParameters:
    """The settings that every legacy optimizer has.

    Attributes:
        learning_rate: a constant; a table may have its own rate, or a rate function, instead.
        use_gradient_accumulation: sum the gradients of a row over the batch, then update once.
        clip_weight_min, clip_weight_max: limits for a weight after its update; None means no limit.
        weight_decay_factor: decoupled weight decay; None and 0 turn it off.
        multiply_weight_decay_factor_by_learning_rate: multiply `weight_decay_factor` by the current
            learning rate.
        clip_gradient_min, clip_gradient_max: limits for accumulated gradients; None means no limit.

    Raises:
        InvalidSpec: a setting is out of range; the message names it.
    """

    learning_rate: float
    use_gradient_accumulation: bool
    clip_weight_min: float | None
    clip_weight_max: float | None
    weight_decay_factor: float | None
    multiply_weight_decay_factor_by_learning_rate: bool | None
    clip_gradient_min: float | None
    clip_gradient_max: float | None

    if TYPE_CHECKING:

        def __init__(self, *args: object, **settings: object) -> None: ...

    rules: ClassVar[Mapping[str, requirements.Requirement]] = {}
    """Maps the name of each setting to the requirement on its value."""

    def __post_init__(self) -> None:
        annotations = {each.name: each.type for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        arguments.check(type(self).__name__, vars(self), annotations)
        limits = (self.clip_gradient_min, self.clip_gradient_max)
        if not self.use_gradient_accumulation and any(limit is not None for limit in limits):
            raise errors.InvalidSpec(
                f"`{type(self).__name__}`: the limits clip_gradient_min={limits[0]} and "
                f"clip_gradient_max={limits[1]} apply only to accumulated gradients, but "
                f"use_gradient_accumulation={self.use_gradient_accumulation}. Set it to True, or "
                "drop the limits."
            )
        requirements.check_settings(type(self).__name__, vars(self), self.rules)


# The shared settings, which follow an optimizer's own settings.
_SHARED = (
    *("use_gradient_accumulation", "clip_weight_min", "clip_weight_max", "weight_decay_factor"),
    "multiply_weight_decay_factor_by_learning_rate",
)
_SHARED_LAST = ("clip_gradient_min", "clip_gradient_max")
"""Shared settings that stock added later. They are the last arguments."""


def _parameters(
    *, settable: bool = True, regularized: bool = False, **rules: requirements.Requirement
) -> Callable[[_Class], _Class]:
    """Adds the shared settings to a class, in stock's order; constant if not `settable`."""
    if regularized:
        rules |= {f"{norm}_regularization_strength": NOT_NEGATIVE for norm in ("l1", "l2")}

    def decorate(kind: Object) -> Object:
        annotated = kind.__annotations__
        late = [each for each in annotated if getattr(vars(kind).get(each), "metadata", {})]
        for name in (*_SHARED, *_SHARED_LAST):
            default = True if name == "use_gradient_accumulation" else None
            setattr(kind, name, dataclasses.field(default=default) if settable else _fixed(default))
        first = [name for name in annotated if name not in late]
        annotations = {**OptimizationParameters.__annotations__, **annotated}
        order = (*first, *_SHARED, *late, *_SHARED_LAST)
        kind.__annotations__ = {name: annotations[name] for name in order}
        kind.rules = rules
        # As in stock, parameters compare by identity and are mutable.
        kind = dataclasses.dataclass(eq=False)(kind)
        stock = _stock_class(kind.__name__)
        if stock is None:
            return kind
        members = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
        return type(kind.__name__, (kind, stock), members)

    return decorate


def _stock_class(name: str) -> type | None:
    if importlib.util.find_spec("tensorflow") is None:
        return None
    from tf2_engine import tf_compat

    return tf_compat.legacy_tpu_class(name)


def _fixed(value: object) -> Any:
    return dataclasses.field(default_factory=lambda: value, init=False)


def _late(default: object) -> Any:
    return dataclasses.field(default=default, metadata={"after": "the shared ones"})


@_parameters(initial_accumulator=POSITIVE)
class AdagradParameters(OptimizationParameters):
    """Adagrad; `initial_accumulator` must be positive."""

    learning_rate: float
    initial_accumulator: float = 0.1


@_parameters(epsilon=POSITIVE, exponent=POSITIVE)
class AdagradMomentumParameters(OptimizationParameters):
    """Adagrad with momentum on the preconditioned gradient."""

    learning_rate: float
    momentum: float
    use_nesterov: bool = False
    exponent: float = 2
    beta2: float = 1
    epsilon: float = 1e-10


@_parameters(initial_accumulator=POSITIVE, regularized=True)
class ProximalAdagradParameters(OptimizationParameters):
    """Adagrad with proximal L1 and L2 terms."""

    learning_rate: float
    initial_accumulator: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0


@_parameters(beta1=FRACTION, beta2=FRACTION, epsilon=POSITIVE)
class AdamParameters(OptimizationParameters):
    """Adam without bias correction. With `lazy_adam=False`, every step updates every row."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.use_gradient_accumulation and not self.lazy_adam:
            raise errors.InvalidSpec(
                f"`AdamParameters`: lazy_adam={self.lazy_adam} needs gradient accumulation, but "
                f"use_gradient_accumulation={self.use_gradient_accumulation}. Set one of them to "
                "True."
            )


@_parameters(
    learning_rate_power=NOT_ABOVE_ZERO, initial_accumulator_value=NOT_NEGATIVE, regularized=True
)
class FtrlParameters(OptimizationParameters):
    """Follow the regularized leader. The accumulator may start at 0."""

    learning_rate: float
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    multiply_linear_by_learning_rate: bool = _late(False)
    beta: float = _late(0)
    allow_zero_accumulator: bool = _late(False)
    initial_linear_value: float = _fixed(0.0)


@_parameters(beta1=FRACTION, beta2=FRACTION, epsilon=POSITIVE, regularized=True)
class ProximalYogiParameters(OptimizationParameters):
    """Yogi with proximal L1 and L2 terms."""

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-3
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    initial_accumulator_value: float = 1e-6


@_parameters()
class MomentumParameters(OptimizationParameters):
    """Stochastic gradient descent with momentum."""

    learning_rate: float
    momentum: float
    use_nesterov: bool = False


@_parameters()
class RMSPropParameters(OptimizationParameters):
    """RMSProp with momentum."""

    learning_rate: float
    rho: float
    momentum: float
    epsilon: float


@_parameters()
class StochasticGradientDescentParameters(OptimizationParameters):
    """Stochastic gradient descent."""

    learning_rate: float


@_parameters(settable=False)
class FrequencyEstimatorParameters(OptimizationParameters):
    """Estimates how often each row is looked up. The table has one column.

    The table's learning rate must be the global step, given by a `learning_rate_fn`.
    """

    tau: float
    max_delta: float
    outlier_threshold: float
    weight_exponent: float
    learning_rate: float = _fixed(1.0)


def is_parameters(thing: object) -> bool:
    names = {"OptimizationParameters", "_OptimizationParameters"}
    return not names.isdisjoint(requirements.class_names(thing)) and hasattr(thing, "learning_rate")

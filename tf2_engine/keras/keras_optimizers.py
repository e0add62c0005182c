"""Converts the arguments of a layer, including Keras optimizers, to an engine's spec."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, specs, tf_compat
from tf2_engine.optimizers import FTRL, OPTIMIZERS, SGD, Adagrad, Adam, Optimizer
from tf2_engine.types import Nest, Object, Tensor, Variable

Settings = dict[str, Object]

NEUTRAL: dict[str, tuple[float | None, ...]] = {
    "momentum": (0.0,),
    "amsgrad": (False,),
    "l2_shrinkage_regularization_strength": (0.0,),
    "weight_decay": (None, 0.0, False),
    "clipnorm": (None,),
    "clipvalue": (None,),
    "global_clipnorm": (None,),
    "use_ema": (False,),
    "loss_scale_factor": (None,),
    "gradient_accumulation_steps": (None,),
}
"""For each setting that cannot be translated, the values with which it has no effect."""

WAY_OUT = {
    "momentum": "tf2_engine.Momentum has it",
    "weight_decay": "Keras decays all rows, a TPU only the batch's rows; see `weight_decay_factor`",
    "clipvalue": "a TPU clips summed gradients; see `clip_gradient_min` and `clip_gradient_max`",
}

EPSILON_OF_ADAGRAD = 2.0**-17
"""Epsilons up to this fraction of the accumulator are ignored; they change steps by < 8e-6."""


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerRate:
    """Reads a Keras optimizer's learning rate, with decay, in every step: a float32 scalar."""

    optimizer: Object
    decay: float = 0.0

    def __post_init__(self) -> None:
        # Legacy optimizers create these variables when they are first read. That should not happen
        # inside a tf.function.
        _ = self.optimizer.iterations, self.optimizer.learning_rate

    @property
    def iterations(self) -> Tensor:
        return tf.convert_to_tensor(self.optimizer.iterations)

    def __call__(self) -> Tensor:
        rate = tf_compat.keras_learning_rate(self.optimizer)
        iterations = self.iterations
        if callable(rate) and not hasattr(rate, "dtype"):
            # A schedule takes the number of steps; other callables have no arguments.
            rate = rate(iterations) if hasattr(rate, "get_config") else rate()
        rate = tf.cast(tf.convert_to_tensor(rate), tf.float32)
        return rate / (1.0 + self.decay * tf.cast(iterations, tf.float32)) if self.decay else rate


@dataclasses.dataclass(frozen=True, eq=False)
class BiasCorrectedRate:
    """Multiplies a rate by Adam's bias correction, sqrt(1 - beta_2^t) / (1 - beta_1^t).

    The step t is `iterations` + 1, because `iterations` grows after the update. Reference: Kingma
    and Ba, 2014, the end of section 2.
    """

    rate: OptimizerRate
    beta_1: float
    beta_2: float

    def __call__(self) -> Tensor:
        step = tf.cast(self.rate.iterations, tf.float32) + 1.0
        power_1 = tf.pow(tf.constant(self.beta_1, tf.float32), step)
        power_2 = tf.pow(tf.constant(self.beta_2, tf.float32), step)
        return self.rate() * tf.sqrt(1.0 - power_2) / (1.0 - power_1)


def is_keras_optimizer(optimizer: Object) -> bool:
    return all(hasattr(optimizer, name) for name in ("get_config", "apply_gradients", "iterations"))


def translate_keras_optimizer(
    optimizer: Object, *, bias_correction: bool = True, lazy_adam: bool | None = None
) -> Optimizer:
    """Translates a Keras optimizer to an optimizer of the engine with the same update rule.

    The learning rate is a number, a schedule or a callable. It is read from the Keras optimizer in
    every step, and includes the legacy `decay`.

    Args:
        optimizer: SGD, Adagrad, Adam or Ftrl from any version of Keras. Optimizers of the engine
            are returned unchanged, and those of `tf.tpu.experimental.embedding` are converted.
        bias_correction: True means Adam as in Keras: the rate includes the bias correction, epsilon
            is added to the square root, and all rows change in every step. False means Adam with
            the defaults of a TPU: no bias correction, epsilon under the square root, and only rows
            of the batch change.
        lazy_adam: whether Adam changes only rows of the batch. `bias_correction` sets the default.

    Raises:
        InvalidSpec: a setting cannot be translated.
        WrongType: the optimizer is not one of these.
    """
    if not is_keras_optimizer(optimizer):
        translated = specs.read_optimizer(optimizer)
        if translated is None:
            raise errors.WrongType("`translate_keras_optimizer` needs an optimizer, got None.")
        return translated
    name = type(optimizer).__name__
    if name not in _TRANSLATIONS:
        raise errors.WrongType(
            f"The Keras optimizer {name} has no counterpart; known: {', '.join(_TRANSLATIONS)}. "
            f"Optimizers of the engine can be used instead: {', '.join(OPTIMIZERS)}."
        )
    settings = _settings(optimizer, name)
    _refuse_uncarried(name, settings)
    rate = OptimizerRate(optimizer, float(settings.get("decay") or 0.0))
    lazy_adam = not bias_correction if lazy_adam is None else lazy_adam
    chosen = {"bias_correction": bias_correction, "lazy_adam": lazy_adam}
    return _TRANSLATIONS[name](rate, settings | chosen)


def _settings(optimizer: Object, name: str) -> Settings:
    try:
        return dict(optimizer.get_config())
    except NotImplementedError as error:
        raise errors.InvalidSpec(
            f"The settings of the Keras optimizer {name} cannot be read, because its learning rate "
            "schedule has no `get_config`. Define this method in the schedule's class."
        ) from error


def _refuse_uncarried(name: str, settings: Settings) -> None:
    for setting, neutral in NEUTRAL.items():
        value = settings.get(setting, neutral[0])
        if value not in neutral:
            hint = f" ({WAY_OUT[setting]})" if setting in WAY_OUT else ""
            raise errors.InvalidSpec(
                f"The Keras optimizer {name}: `{setting}`={value!r} cannot be translated. Drop it, "
                f"or use an optimizer of the engine{hint}."
            )


def _adagrad(rate: OptimizerRate, settings: Settings) -> Optimizer:
    accumulator, epsilon = settings["initial_accumulator_value"], settings["epsilon"]
    if accumulator <= 0 or epsilon > EPSILON_OF_ADAGRAD * accumulator:
        raise errors.InvalidSpec(
            f"The Keras optimizer Adagrad: `epsilon`={epsilon!r} cannot be translated, because a "
            f"TPU's Adagrad has no epsilon. Set `initial_accumulator_value` (now {accumulator!r}) "
            "to a positive number, and `epsilon` to at most "
            f"{EPSILON_OF_ADAGRAD:.1e} times that number."
        )
    return Adagrad(rate, initial_accumulator_value=accumulator)


def _adam(rate: OptimizerRate, settings: Settings) -> Optimizer:
    beta_1, beta_2 = settings["beta_1"], settings["beta_2"]
    bias_correction = settings["bias_correction"]
    return Adam(
        BiasCorrectedRate(rate, beta_1, beta_2) if bias_correction else rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=settings["epsilon"],
        lazy_adam=settings["lazy_adam"],
        sum_inside_sqrt=not bias_correction,
    )


def _ftrl(rate: OptimizerRate, settings: Settings) -> Optimizer:
    same = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
    )
    return FTRL(rate, **{name: settings[name] for name in same})


_TRANSLATIONS: dict[str, Callable[[OptimizerRate, Settings], Optimizer]] = {
    "SGD": lambda rate, _: SGD(rate),
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Ftrl": _ftrl,
}


ARITHMETICS = ("tpu", "sparsecore", "keras")

_NOT_PIPELINED = (
    "`pipeline_execution_with_tensor_core`=True is ignored: without a TPU, Keras optimizers train "
    "the tables, and activations are never one step old. `arithmetic`='tpu' trains as a TPU does."
)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The checked arguments of a layer. The optimizers in the spec are optimizers of the engine."""

    spec: specs.EngineSpec
    tables: tuple[Object, ...]
    arithmetic: str
    trains: bool

    def by_table(self, parameters: Mapping[str, Variable]) -> dict[Object, Variable]:
        names = (table.name or "" for table in self.spec.tables)
        return {table: parameters[name] for table, name in zip(self.tables, names, strict=True)}


def configure(
    feature_config: Nest,
    optimizer: Object,
    *,
    arithmetic: str | None,
    on_tpu: bool,
    made_here: bool,
    bias_correction: bool,
    pipelined: bool,
) -> Configuration:
    tables = tuple(specs.table_configs(feature_config))
    optimizers = [table.optimizer or optimizer for table in tables]
    trains = all(each is not None for each in optimizers)
    if on_tpu and not trains:
        raise errors.InvalidSpec(
            "`optimizer`=None is not possible under a TPUStrategy; pass the optimizer that trains "
            "the tables."
        )
    by_keras = trains and all(map(is_keras_optimizer, optimizers))
    arithmetic = _arithmetic(arithmetic, on_tpu, by_keras and not made_here)
    if arithmetic == "keras":
        _check_keras_optimizers(optimizers if trains else ())
        if pipelined:
            warnings.warn(_NOT_PIPELINED, stacklevel=3)
        pipelined = False
    # Each optimizer is translated once, so that its tables share one rate.
    translated = {
        id(optimizer): translate_keras_optimizer(optimizer, bias_correction=bias_correction)
        if arithmetic != "keras" and trains
        else specs.NO_UPDATES
        for optimizer in optimizers
    }
    copies = {
        id(table): _with(table, optimizer=translated[id(optimizer)])
        for table, optimizer in zip(tables, optimizers, strict=True)
    }
    engine_config = tf.nest.map_structure(
        lambda feature: _with(feature, table=copies[id(feature.table)]), feature_config
    )
    spec = specs.from_feature_config(engine_config, pipeline_execution_with_tensor_core=pipelined)
    return Configuration(spec, tables, arithmetic, trains)


def _arithmetic(choice: str | None, on_tpu: bool, by_keras: bool) -> str:
    if choice is None:
        return "keras" if by_keras and not on_tpu else "tpu"
    specs.check_choice("", "arithmetic", choice, ARITHMETICS)
    # A program chooses "keras" for machines without a TPU, but may also run on a TPU.
    return "tpu" if on_tpu and choice == "keras" else choice


def _check_keras_optimizers(optimizers: Sequence[Object]) -> None:
    for optimizer in optimizers:
        if not is_keras_optimizer(optimizer):
            raise errors.InvalidSpec(
                f"`arithmetic`='keras', but {optimizer!r} is not a Keras optimizer. Pass a Keras "
                "optimizer, or leave `arithmetic` out."
            )


def _with(config: Object, **changes: Object) -> Object:
    changed = copy.copy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed

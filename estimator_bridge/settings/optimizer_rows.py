"""Maps legacy optimizers and their settings to optimizers of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tf2_engine.types import Object

if TYPE_CHECKING:
    from tf2_engine import optimizers


@dataclasses.dataclass(frozen=True)
class OptimizerRow:
    """The translation of one legacy optimizer.

    Attributes:
        plain: settings that have the same name and meaning in the engine, separated by spaces.
        slots: for each slot of the engine, its suffix in a legacy TPU checkpoint, such as `Adam/m`.
        cpu_slots: the suffixes in a checkpoint of TensorFlow 1's optimizer, if they differ.
        keras_scope, keras_slots: the scope and suffixes in a checkpoint of
            `tf.keras.optimizers.legacy`; empty if there is no such optimizer.
        renamed: legacy settings that have another name in the engine.
        only: for each setting without a counterpart, the only value that can be translated.
        for_columns: whether a spec with `feature_columns` may use this optimizer.
        on_sparse_cores: whether stock's TPUEmbeddingV2 supports this optimizer.
    """

    engine_name: str
    plain: str = ""
    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cpu_slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keras_scope: str = ""
    keras_slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Object] = dataclasses.field(default_factory=dict)
    for_columns: bool = True
    on_sparse_cores: bool = False

    @property
    def engine(self) -> type[optimizers.Optimizer]:
        from tf2_engine import optimizers

        return optimizers.OPTIMIZERS[self.engine_name]

    @property
    def names(self) -> dict[str, str]:
        from tf2_engine.optimizers.optimizer import KEEPING

        legacy = {engine: legacy for legacy, engine in self.renamed.items()}
        fields = {field.name for field in dataclasses.fields(self.engine)} - KEEPING
        return {legacy.get(name, name): name for name in sorted(fields)}


_ACCUMULATOR = {"initial_accumulator": "initial_accumulator_value"}
_REGULARIZATION = "l1_regularization_strength l2_regularization_strength"
_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}

OPTIMIZERS: Mapping[str, OptimizerRow] = {
    "AdagradParameters": OptimizerRow(
        "Adagrad",
        "initial_accumulator",
        {"accumulators": "Adagrad"},
        keras_scope="training/Adagrad",
        keras_slots={"accumulators": "accumulator"},
        renamed=_ACCUMULATOR,
        on_sparse_cores=True,
    ),
    "AdamParameters": OptimizerRow(
        "Adam",
        "beta1 beta2 sum_inside_sqrt",
        {"momenta": "Adam/m", "velocities": "Adam/v"},
        cpu_slots={"momenta": "Adam", "velocities": "Adam_1"},
        keras_scope="training/Adam",
        keras_slots={"momenta": "m", "velocities": "v"},
        renamed=_BETAS,
        on_sparse_cores=True,
    ),
    "StochasticGradientDescentParameters": OptimizerRow("SGD", on_sparse_cores=True),
    "ProximalAdagradParameters": OptimizerRow(
        "ProximalAdagrad",
        f"initial_accumulator {_REGULARIZATION}",
        {"accumulators": "ProximalAdagrad"},
        renamed=_ACCUMULATOR,
    ),
    "FtrlParameters": OptimizerRow(
        "FTRL",
        f"learning_rate_power {_REGULARIZATION} multiply_linear_by_learning_rate beta "
        "allow_zero_accumulator initial_linear_value",
        {"accumulators": "Ftrl", "linears": "Ftrl_1"},
        keras_scope="training/Ftrl",
        keras_slots={"accumulators": "accumulator", "linears": "linear"},
        # This is not an argument of stock's class, but an attribute that a program may change.
        only={"initial_linear_value": 0.0},
        on_sparse_cores=True,
    ),
    "MomentumParameters": OptimizerRow(
        "Momentum",
        "momentum use_nesterov",
        {"momenta": "Momentum"},
        keras_scope="training/SGD",
        keras_slots={"momenta": "momentum"},
    ),
    "RMSPropParameters": OptimizerRow(
        "RMSProp",
        "rho momentum epsilon",
        {"ms": "RMSProp/ms", "mom": "RMSProp/mom"},
        cpu_slots={"ms": "RMSProp", "mom": "RMSProp_1"},
        keras_scope="training/RMSprop",
        keras_slots={"ms": "rms", "mom": "momentum"},
    ),
    "AdagradMomentumParameters": OptimizerRow(
        "AdagradMomentum",
        "momentum use_nesterov exponent beta2 epsilon",
        {"accumulators": "AdagradMomentum/Accumulator", "momenta": "AdagradMomentum/Momentum"},
        for_columns=False,
        on_sparse_cores=True,
    ),
    "ProximalYogiParameters": OptimizerRow(
        "ProximalYogi",
        f"beta1 beta2 epsilon {_REGULARIZATION} initial_accumulator_value",
        {"v": "ProximalYogi", "m": "ProximalYogi_1"},
        renamed=_BETAS,
        for_columns=False,
    ),
    # Stock has no setting `weighted`; an attribute of this name sets the engine's switch.
    "FrequencyEstimatorParameters": OptimizerRow(
        "FrequencyEstimator",
        "tau max_delta outlier_threshold weight_exponent",
        {"last_hit_step": "FrequencyEstimator"},
        for_columns=False,
    ),
}
"""Maps the class name of every legacy optimizer to its row."""

ON_SPARSE_CORES = tuple(name for name, row in OPTIMIZERS.items() if row.on_sparse_cores)
"""Legacy optimizers that stock's TPUEmbeddingV2 supports. No two of these have the same slots."""


def kind_of(optimizer: Object) -> str | None:
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    return next((name for name in names if name in OPTIMIZERS), None)

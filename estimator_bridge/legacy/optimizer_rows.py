"""The optimizers: one row says which optimizer of the engine a legacy one becomes, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from estimator_bridge.legacy.requirements import class_names
from tf2_engine import optimizers
from tf2_engine.optimizers.optimizer import KEEPING
from tf2_engine.types import Object


@dataclasses.dataclass(frozen=True)
class OptimizerRow:
    """The translation of one legacy optimizer.

    Attributes:
        engine: the engine's class.
        slots: for each slot of the engine, the end of its name in a legacy TPU checkpoint, as
            `Adam/m` in `<table>/Adam/m`.
        renamed: the engine's name of each legacy setting that the engine calls otherwise.
        only: legacy settings without a counterpart, and the one value that each may have.
        for_columns: whether a spec with `feature_columns` may have it.
        on_sparse_cores: whether stock's TPUEmbeddingV2 has it.
    """

    engine: type[optimizers.Optimizer]
    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Object] = dataclasses.field(default_factory=dict)
    for_columns: bool = True
    on_sparse_cores: bool = False

    @property
    def names(self) -> dict[str, str]:
        """The engine's name of each legacy setting: all settings of the engine's class."""
        legacy = {engine: legacy for legacy, engine in self.renamed.items()}
        fields = {field.name for field in dataclasses.fields(self.engine)} - KEEPING
        return {legacy.get(name, name): name for name in sorted(fields)}


_ACCUMULATOR = {"initial_accumulator": "initial_accumulator_value"}
_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}

OPTIMIZERS: Mapping[str, OptimizerRow] = {
    "AdagradParameters": OptimizerRow(
        optimizers.Adagrad,
        {"accumulators": "Adagrad"},
        _ACCUMULATOR,
        on_sparse_cores=True,
    ),
    "AdamParameters": OptimizerRow(
        optimizers.Adam,
        {"momenta": "Adam/m", "velocities": "Adam/v"},
        _BETAS,
        on_sparse_cores=True,
    ),
    "StochasticGradientDescentParameters": OptimizerRow(optimizers.SGD, on_sparse_cores=True),
    "ProximalAdagradParameters": OptimizerRow(
        optimizers.ProximalAdagrad, {"accumulators": "ProximalAdagrad"}, _ACCUMULATOR
    ),
    "FtrlParameters": OptimizerRow(
        optimizers.FTRL,
        {"accumulators": "Ftrl", "linears": "Ftrl_1"},
        # Not an argument of stock's class, but an attribute that a program may change.
        only={"initial_linear_value": 0.0},
        on_sparse_cores=True,
    ),
    "MomentumParameters": OptimizerRow(optimizers.Momentum, {"momenta": "Momentum"}),
    "RMSPropParameters": OptimizerRow(
        optimizers.RMSProp, {"ms": "RMSProp/ms", "mom": "RMSProp/mom"}
    ),
    "AdagradMomentumParameters": OptimizerRow(
        optimizers.AdagradMomentum,
        {"accumulators": "AdagradMomentum/Accumulator", "momenta": "AdagradMomentum/Momentum"},
        for_columns=False,
        on_sparse_cores=True,
    ),
    "ProximalYogiParameters": OptimizerRow(
        optimizers.ProximalYogi,
        {"v": "ProximalYogi", "m": "ProximalYogi_1"},
        _BETAS,
        for_columns=False,
    ),
    # Stock has no setting `weighted`; an attribute of this name turns the engine's switch.
    "FrequencyEstimatorParameters": OptimizerRow(
        optimizers.FrequencyEstimator, {"last_hit_step": "FrequencyEstimator"}, for_columns=False
    ),
}
"""Every legacy optimizer, by class name."""

ON_SPARSE_CORES = tuple(name for name, row in OPTIMIZERS.items() if row.on_sparse_cores)
"""Those that stock's TPUEmbeddingV2 has, by class name; no two have the same slots."""


def kind_of(optimizer: Object) -> str | None:
    """Returns the row's name for a legacy optimizer, stock's or ours; None if there is no row."""
    return next((name for name in class_names(optimizer) if name in OPTIMIZERS), None)

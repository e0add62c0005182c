"""The optimizers; the table below is the list of them, one file each."""

from __future__ import annotations

from tf2_engine.optimizers.adadelta import Adadelta
from tf2_engine.optimizers.adagrad import Adagrad
from tf2_engine.optimizers.adagrad_momentum import AdagradMomentum
from tf2_engine.optimizers.adam import Adam
from tf2_engine.optimizers.centered_rms_prop import CenteredRMSProp
from tf2_engine.optimizers.frequency_estimator import FrequencyEstimator
from tf2_engine.optimizers.ftrl import FTRL
from tf2_engine.optimizers.mdl_adagrad_light import MDLAdagradLight
from tf2_engine.optimizers.momentum import Momentum
from tf2_engine.optimizers.optimizer import Optimizer
from tf2_engine.optimizers.proximal_adagrad import ProximalAdagrad
from tf2_engine.optimizers.proximal_yogi import ProximalYogi
from tf2_engine.optimizers.rms_prop import RMSProp
from tf2_engine.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    row.__name__: row
    for row in (
        SGD,
        Adagrad,
        AdagradMomentum,
        Adam,
        FTRL,
        Momentum,
        RMSProp,
        CenteredRMSProp,
        ProximalAdagrad,
        ProximalYogi,
        Adadelta,
        FrequencyEstimator,
        MDLAdagradLight,
    )
}
"""Every optimizer by name; tests, drivers and translation read this table."""

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "CenteredRMSProp",
    "FrequencyEstimator",
    "MDLAdagradLight",
    "Momentum",
    "Optimizer",
    "ProximalAdagrad",
    "ProximalYogi",
    "RMSProp",
]

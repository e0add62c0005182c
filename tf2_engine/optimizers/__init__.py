"""The optimizers, one per module. To add an optimizer, add an import here."""

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
    name: value
    for name, value in sorted(globals().items(), key=lambda item: item[0].lower())
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}
"""Maps the name of every optimizer to its class, for tests, backends and translation."""

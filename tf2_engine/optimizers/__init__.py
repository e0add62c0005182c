"""The optimizers. To add an optimizer, add an import here."""

from __future__ import annotations

from tf2_engine.optimizers.adagrad import Adagrad, AdagradMomentum, MDLAdagradLight, ProximalAdagrad
from tf2_engine.optimizers.adam import Adam, ProximalYogi
from tf2_engine.optimizers.frequency_estimator import FrequencyEstimator
from tf2_engine.optimizers.ftrl import FTRL
from tf2_engine.optimizers.optimizer import Optimizer
from tf2_engine.optimizers.rms_prop import Adadelta, CenteredRMSProp, RMSProp
from tf2_engine.optimizers.sgd import SGD, Momentum

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name: value
    for name, value in sorted(globals().items(), key=lambda item: item[0].lower())
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}
"""Maps the name of every optimizer to its class, for tests, backends and translation."""

"""The optimizers by their kin. The imports are the list of them: a new one is a new line."""

from __future__ import annotations

from tf2_engine.optimizers.adagrad import Adagrad as Adagrad
from tf2_engine.optimizers.adagrad import AdagradMomentum as AdagradMomentum
from tf2_engine.optimizers.adagrad import MDLAdagradLight as MDLAdagradLight
from tf2_engine.optimizers.adagrad import ProximalAdagrad as ProximalAdagrad
from tf2_engine.optimizers.adam import Adam as Adam
from tf2_engine.optimizers.adam import ProximalYogi as ProximalYogi
from tf2_engine.optimizers.frequency_estimator import FrequencyEstimator as FrequencyEstimator
from tf2_engine.optimizers.ftrl import FTRL as FTRL
from tf2_engine.optimizers.optimizer import Optimizer as Optimizer
from tf2_engine.optimizers.rms_prop import Adadelta as Adadelta
from tf2_engine.optimizers.rms_prop import CenteredRMSProp as CenteredRMSProp
from tf2_engine.optimizers.rms_prop import RMSProp as RMSProp
from tf2_engine.optimizers.sgd import SGD as SGD
from tf2_engine.optimizers.sgd import Momentum as Momentum

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name: value
    for name, value in sorted(globals().items(), key=lambda item: item[0].lower())
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}
"""Every optimizer by name; tests, backends and translation read this table."""

"""The update rule of each optimizer, in float64.

Every rule is `update(w, slots, g, lr, settings) -> (w, slots)` for one row: `w`, `g` and each
slot are [dim] float64, `lr` is this step's learning rate, and nothing passed in is changed.
`g` is the finished gradient (summed and clipped) and `w` the decayed weight; what happens
before and after the rule is in training.py.

Settings are plain numbers and flags under the keys each rule documents. There are no defaults:
the two Python stacks disagree on some of them (Adam's epsilon is 1e-8 in one, 1e-7 in the
other), so a reference that supplied one would hide a mistake.

Source, unless a rule says otherwise: the optimizer messages in optimization_parameters.proto
and the papers and CPU kernels their comments name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Slots = dict[str, Array]
Settings = Mapping[str, float]
Update = Callable[[Array, Slots, Array, float, Settings], tuple[Array, Slots]]


def sgd(w: Array, slots: Slots, g: Array, lr: float, settings: Settings) -> tuple[Array, Slots]:
    """Plain gradient descent; no slots, no settings.

    w <- w - lr * g
    """
    return w - lr * g, {}


def adagrad(w: Array, slots: Slots, g: Array, lr: float, settings: Settings) -> tuple[Array, Slots]:
    """Adagrad without an epsilon; slot `accumulators`.

        a <- a + g^2
        w <- w - lr * g / sqrt(a)

    Settings: `initial_accumulator_value` (the starting slot only).

    Source: AdagradParameters; Duchi et al., 2011.
    """
    a = slots["accumulators"] + g * g
    return w - lr * g / np.sqrt(a), {"accumulators": a}


def adagrad_momentum(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Adagrad whose scaled gradient goes through momentum; slots `accumulators`, `momenta`.

        a <- a + g^2                              if beta_2 is 1
        a <- beta_2 * a + (1 - beta_2) * g^2      otherwise
        s  = g * (a + epsilon)^(-1 / exponent)
        m <- momentum * m + s
        w <- w - lr * m                           or, with Nesterov,
        w <- w - lr * (momentum * m + s)          with the new m

    Settings: `momentum`, `use_nesterov`, `exponent`, `beta_2`, `epsilon`.

    Source: AdagradMomentumParameters and the reference in TensorFlow's
    tpu_embedding_base_test.py. The proto comment multiplies by g once more outside the
    momentum; the test puts g inside, as here.
    """
    mu, beta_2 = settings["momentum"], settings["beta_2"]
    if beta_2 == 1:
        a = slots["accumulators"] + g * g
    else:
        a = beta_2 * slots["accumulators"] + (1 - beta_2) * g * g
    s = g * (a + settings["epsilon"]) ** (-1 / settings["exponent"])
    m = mu * slots["momenta"] + s
    step = mu * m + s if settings["use_nesterov"] else m
    return w - lr * step, {"accumulators": a, "momenta": m}


def adam(w: Array, slots: Slots, g: Array, lr: float, settings: Settings) -> tuple[Array, Slots]:
    """Adam without bias correction; slots `momenta`, `velocities`.

        m <- beta_1 * m + (1 - beta_1) * g
        v <- beta_2 * v + (1 - beta_2) * g^2
        w <- w - lr * m / (sqrt(v) + epsilon)     or, with `sum_inside_sqrt`,
        w <- w - lr * m / sqrt(v + epsilon^2)

    Settings: `beta_1`, `beta_2`, `epsilon`, `sum_inside_sqrt`, `lazy_adam`. The last says
    which rows are updated, not how, and is not read here.

    Source: AdamParameters; Kingma and Ba, 2014. Its comment tells the user to fold the bias
    correction into a dynamic learning rate.
    """
    beta_1, beta_2, epsilon = settings["beta_1"], settings["beta_2"], settings["epsilon"]
    m = beta_1 * slots["momenta"] + (1 - beta_1) * g
    v = beta_2 * slots["velocities"] + (1 - beta_2) * g * g
    if settings["sum_inside_sqrt"]:
        denominator = np.sqrt(v + epsilon * epsilon)
    else:
        denominator = np.sqrt(v) + epsilon
    return w - lr * m / denominator, {"momenta": m, "velocities": v}


def ftrl(w: Array, slots: Slots, g: Array, lr: float, settings: Settings) -> tuple[Array, Slots]:
    """Follow the regularized leader; slots `accumulators` a, `linears` z.

    With p = -learning_rate_power, a' = a + g^2 and clip(z) = z held within -l1 .. l1:

        z <- z + g - (a'^p - a^p) * w / lr
        w <- (clip(z) - z) / ((a'^p + beta) / lr + 2 * l2)

    With `multiply_linear_by_learning_rate` the slot z, and with it l1, is lr times larger:

        z <- z + lr * g - (a'^p - a^p) * w
        w <- (clip(z) - z) / (a'^p + beta + 2 * lr * l2)      clip at -lr * l1 .. lr * l1

    Settings: `learning_rate_power` (at most 0), `l1_regularization_strength`,
    `l2_regularization_strength`, `beta`, `multiply_linear_by_learning_rate`,
    `initial_accumulator_value` (the starting slot only).

    Source: FtrlParameters; McMahan et al., 2013; the reference in TensorFlow's
    tpu_embedding_base_test.py.
    """
    p = -settings["learning_rate_power"]
    l1, l2 = settings["l1_regularization_strength"], settings["l2_regularization_strength"]
    old, z = slots["accumulators"], slots["linears"]
    a = old + g * g
    grown = a**p - old**p
    if settings["multiply_linear_by_learning_rate"]:
        z = z + lr * g - grown * w
        limit = lr * l1
        denominator = a**p + settings["beta"] + 2 * lr * l2
    else:
        z = z + g - grown * w / lr
        limit = l1
        denominator = (a**p + settings["beta"]) / lr + 2 * l2
    return (np.clip(z, -limit, limit) - z) / denominator, {"accumulators": a, "linears": z}


def momentum(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Momentum as TensorFlow's CPU kernel has it; slot `momenta`.

        m <- momentum * m + g
        w <- w - lr * m                           or, with Nesterov,
        w <- w - lr * (g + momentum * m)          with the new m

    Settings: `momentum`, `use_nesterov`.

    Source: MomentumParameters, which refers to tf.train.MomentumOptimizer.
    """
    mu = settings["momentum"]
    m = mu * slots["momenta"] + g
    step = g + mu * m if settings["use_nesterov"] else m
    return w - lr * step, {"momenta": m}


def rms_prop(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """RMSProp with momentum; slots `ms`, `mom`.

        ms  <- rho * ms + (1 - rho) * g^2
        mom <- momentum * mom + lr * g / sqrt(ms + epsilon)
        w   <- w - mom

    Settings: `rho`, `momentum`, `epsilon`.

    Source: RmsPropParameters, which refers to tf.train.RMSPropOptimizer.
    """
    rho = settings["rho"]
    ms = rho * slots["ms"] + (1 - rho) * g * g
    mom = settings["momentum"] * slots["mom"] + lr * g / np.sqrt(ms + settings["epsilon"])
    return w - mom, {"ms": ms, "mom": mom}


def centered_rms_prop(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """RMSProp that divides by the variance of the gradient; slots `ms`, `mom`, `mg`.

        ms  <- rho * ms + (1 - rho) * g^2
        mg  <- rho * mg + (1 - rho) * g
        mom <- momentum * mom + lr * g / sqrt(ms - mg^2 + epsilon)
        w   <- w - mom

    Settings: `rho`, `momentum`, `epsilon`.

    Source: CenteredRmsPropParameters, which refers to tf.train.RMSPropOptimizer(centered=True).
    """
    rho = settings["rho"]
    ms = rho * slots["ms"] + (1 - rho) * g * g
    mg = rho * slots["mg"] + (1 - rho) * g
    variance = ms - mg * mg + settings["epsilon"]
    mom = settings["momentum"] * slots["mom"] + lr * g / np.sqrt(variance)
    return w - mom, {"ms": ms, "mom": mom, "mg": mg}


def proximal_adagrad(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Adagrad followed by a proximal step; slot `accumulators`.

        a   <- a + g^2
        eta  = lr / sqrt(a)
        w   <- proximal(w - eta * g, eta)         see `_proximal`

    Settings: `l1_regularization_strength`, `l2_regularization_strength`,
    `initial_accumulator_value` (the starting slot only).

    Source: ProximalAdagradParameters; Duchi and Singer, 2009.
    """
    a = slots["accumulators"] + g * g
    eta = lr / np.sqrt(a)
    return _proximal(w - eta * g, eta, settings), {"accumulators": a}


def proximal_yogi(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Yogi followed by a proximal step; slots `v`, `m`.

        m   <- beta_1 * m + (1 - beta_1) * g
        v   <- v - (1 - beta_2) * sign(v - g^2) * g^2
        eta  = lr / (sqrt(v) + epsilon)
        w   <- proximal(w - eta * m, eta)         see `_proximal`

    Settings: `beta_1`, `beta_2`, `epsilon`, `l1_regularization_strength`,
    `l2_regularization_strength`, `initial_accumulator_value` (starting v only).

    Source: ProximalYogiParameters; Zaheer et al., 2018. The device's own formula is not
    public: this one is inferred from the paper and the names of the settings.
    """
    beta_1, beta_2 = settings["beta_1"], settings["beta_2"]
    m = beta_1 * slots["m"] + (1 - beta_1) * g
    v = slots["v"] - (1 - beta_2) * np.sign(slots["v"] - g * g) * g * g
    eta = lr / (np.sqrt(v) + settings["epsilon"])
    return _proximal(w - eta * m, eta, settings), {"v": v, "m": m}


def adadelta(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Adadelta; slots `accumulators` a, `updates` d.

        a <- rho * a + (1 - rho) * g^2
        u  = g * sqrt(d + epsilon) / sqrt(a + epsilon)      with the old d
        d <- rho * d + (1 - rho) * u^2
        w <- w - lr * u

    Settings: `rho`, `epsilon`.

    Source: AdadeltaParameters; Zeiler, 2012.
    """
    rho, epsilon = settings["rho"], settings["epsilon"]
    a = rho * slots["accumulators"] + (1 - rho) * g * g
    u = g * np.sqrt(slots["updates"] + epsilon) / np.sqrt(a + epsilon)
    d = rho * slots["updates"] + (1 - rho) * u * u
    return w - lr * u, {"accumulators": a, "updates": d}


def frequency_estimator(
    w: Array, slots: Slots, g: Array, lr: float, settings: Settings
) -> tuple[Array, Slots]:
    """Running estimate of the steps between two hits of a row; slot `last_hit_step`.

        delta = lr - last_hit_step                lr carries the global step, in steps
        c     = min(delta, max_delta)
        w    <- c                                 if delta >= outlier_threshold * w
        w    <- w * (1 - tau) + c * tau           otherwise
        last_hit_step <- lr

    The gradient is not used. Tables have dim 1 and rows that start at `max_delta`.

    Settings: `tau`, `max_delta`, `outlier_threshold`, `weight_exponent`. The last concerns
    reading the table, not updating it, and is not read here.

    Source: FrequencyEstimatorParameters.
    """
    tau, max_delta = settings["tau"], settings["max_delta"]
    delta = lr - slots["last_hit_step"]
    c = np.minimum(delta, max_delta)
    is_outlier = delta >= settings["outlier_threshold"] * w
    w = np.where(is_outlier, c, w * (1 - tau) + c * tau)
    return w, {"last_hit_step": np.full_like(w, lr)}


def _proximal(w: Array, eta: Array, settings: Settings) -> Array:
    """Shrinks `w` towards zero by eta * l1, stopping there, then divides by 1 + eta * l2."""
    l1, l2 = settings["l1_regularization_strength"], settings["l2_regularization_strength"]
    return np.sign(w) * np.maximum(np.abs(w) - eta * l1, 0) / (1 + eta * l2)


@dataclass(frozen=True)
class Reference:
    """What a test needs to know about one optimizer.

    Attributes:
        update: the rule.
        keys: the settings the rule's docstring names; all are required.
        slots: the starting value of each slot, in the order of the load ops: a number, or
            the key of the setting that holds it.
    """

    update: Update
    keys: tuple[str, ...]
    slots: Mapping[str, float | str]

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The slots in the order of the load ops."""
        return tuple(self.slots)

    def initial_slots(self, settings: Settings) -> dict[str, float]:
        """Returns the value every element of each slot starts with."""
        return {
            name: float(settings[start] if isinstance(start, str) else start)
            for name, start in self.slots.items()
        }

    def check(self, settings: Settings) -> None:
        """Refuses settings that lack a key or have one that no rule would read.

        Raises:
            ValueError: naming the keys.
        """
        missing, unknown = set(self.keys) - set(settings), set(settings) - set(self.keys)
        if missing or unknown:
            raise ValueError(
                f"`{self.update.__name__}` lacks {sorted(missing)} "
                f"and does not know {sorted(unknown)}."
            )


_L1_L2 = ("l1_regularization_strength", "l2_regularization_strength")
_START = "initial_accumulator_value"

OPTIMIZERS: dict[str, Reference] = {
    "SGD": Reference(sgd, (), {}),
    "Adagrad": Reference(adagrad, (_START,), {"accumulators": _START}),
    "AdagradMomentum": Reference(
        adagrad_momentum,
        ("momentum", "use_nesterov", "exponent", "beta_2", "epsilon"),
        {"accumulators": 0.0, "momenta": 0.0},
    ),
    "Adam": Reference(
        adam,
        ("beta_1", "beta_2", "epsilon", "lazy_adam", "sum_inside_sqrt"),
        {"momenta": 0.0, "velocities": 0.0},
    ),
    "FTRL": Reference(
        ftrl,
        ("learning_rate_power", *_L1_L2, "beta", "multiply_linear_by_learning_rate", _START),
        {"accumulators": _START, "linears": 0.0},
    ),
    "Momentum": Reference(momentum, ("momentum", "use_nesterov"), {"momenta": 0.0}),
    "RMSProp": Reference(rms_prop, ("rho", "momentum", "epsilon"), {"ms": 0.0, "mom": 0.0}),
    "CenteredRMSProp": Reference(
        centered_rms_prop,
        ("rho", "momentum", "epsilon"),
        {"ms": 0.0, "mom": 0.0, "mg": 0.0},
    ),
    "ProximalAdagrad": Reference(proximal_adagrad, (*_L1_L2, _START), {"accumulators": _START}),
    "ProximalYogi": Reference(
        proximal_yogi,
        ("beta_1", "beta_2", "epsilon", *_L1_L2, _START),
        {"v": _START, "m": 0.0},
    ),
    "Adadelta": Reference(adadelta, ("rho", "epsilon"), {"accumulators": 0.0, "updates": 0.0}),
    "FrequencyEstimator": Reference(
        frequency_estimator,
        ("tau", "max_delta", "outlier_threshold", "weight_exponent"),
        {"last_hit_step": 0.0},
    ),
}

"""Adagrad and its variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import tensorflow as tf

from tf2_engine import errors
from tf2_engine.optimizers.optimizer import (
    FACTOR,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Optimizer,
    Slots,
    Updated,
    one_minus,
    power,
    root,
    setting,
    shrink,
)
from tf2_engine.types import Op, Tensor, Variable


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad as the TPU applies it.

        a <- a + g^2
        w <- w - lr * g / sqrt(a)

    Slots:
        accumulators: the running sum a; starts at `initial_accumulator_value`, which must be
            positive.

    Unlike tf.keras there is no epsilon.

    Reference: Duchi et al., 2011.
    """

    initial_accumulator_value: float = setting(0.1, POSITIVE, slot="accumulators")

    op_name = "Adagrad"
    proto_field = "adagrad"
    slot_names = ("accumulators",)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        return w - lr * g / root(a), {"accumulators": a}

    def update_rows(
        self, w: Variable, slots: Mapping[str, Variable], rows: Tensor, g: Tensor, lr: Tensor
    ) -> list[Op]:
        # The op computes w - lr * g / (sqrt(a) + epsilon). With an epsilon of 0, this is the rule
        # above.
        update = tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=w.handle,
            accum=slots["accumulators"].handle,
            lr=lr,
            epsilon=0.0,
            grad=g,
            indices=rows,
            use_locking=True,
        )
        return [update]


@dataclass(frozen=True)
class AdagradMomentum(Optimizer):
    """Adagrad with momentum of the scaled gradient, as the TPU applies it.

        a <- a + g^2                              if beta2 is 1
        a <- beta2 * a + (1 - beta2) * g^2        otherwise
        s  = g * (a + epsilon)^(-1 / exponent)
        m <- momentum * m + s
        w <- w - lr * (momentum * m + s)          if use_nesterov, with the new m
        w <- w - lr * m                           otherwise

    Slots:
        accumulators: a, starts at 0.
        momenta: m, starts at 0.

    The proto's comment multiplies the momentum by g. Here only s has the factor g, as in
    TensorFlow's tpu_embedding_base_test.py and in the SparseCore kernel.
    """

    momentum: float = setting(0.0, FRACTION, "momentum")
    use_nesterov: bool = setting(False, None, "use_nesterov")
    exponent: float = setting(2.0, POSITIVE, "exponent")
    beta2: float = setting(1.0, FRACTION, "beta2")
    epsilon: float = setting(1e-10, POSITIVE, "epsilon")

    op_name = "AdagradMomentum"
    proto_field = "adagrad_momentum"
    slot_names = ("accumulators", "momenta")

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a, mu, beta2 = slots["accumulators"], np.float32(self.momentum), np.float32(self.beta2)
        if beta2 == 1.0:
            a = a + tf.square(g)
        else:
            a = beta2 * a + one_minus(self.beta2) * tf.square(g)
        s = g * power(a + np.float32(self.epsilon), np.float32(-1.0) / np.float32(self.exponent))
        m = mu * slots["momenta"] + s
        step = mu * m + s if self.use_nesterov else m
        return w - lr * step, {"accumulators": a, "momenta": m}


@dataclass(frozen=True)
class ProximalAdagrad(Optimizer):
    """Adagrad with proximal L1 and L2 terms, as in the CPU kernel to which the TPU's proto refers.

        a   <- a + g^2
        eta  = lr / sqrt(a)
        w   <- w - eta * g
        w   <- sign(w) * max(|w| - eta * l1, 0) / (1 + eta * l2)

    Slots:
        accumulators: a, starts at `initial_accumulator_value`, which must be positive.

    Reference: Duchi et al., 2011; Duchi and Singer, 2009.
    """

    initial_accumulator_value: float = setting(0.1, POSITIVE, slot="accumulators")
    l1_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l1")
    l2_regularization_strength: float = setting(0.0, NOT_NEGATIVE, "l2")

    op_name = "ProximalAdagrad"
    proto_field = "proximal_adagrad"
    slot_names = ("accumulators",)

    def update(self, w: Tensor, slots: Slots, g: Tensor, lr: Tensor) -> Updated:
        a = slots["accumulators"] + tf.square(g)
        eta = lr / root(a)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return shrink(w - eta * g, eta, l1, l2), {"accumulators": a}


@dataclass(frozen=True)
class MDLAdagradLight(Optimizer):
    """The settings and slots of MDL Adagrad light, whose update formula is not public.

    Tables can be configured, loaded, looked up and retrieved, but `apply_gradients` raises an
    error. The settings are the proto's fields, which the proto does not explain. All are numbers,
    except for the last two, which are flags. There is no weight decay.

    Slots:
        accumulators: starts at `initial_accumulator_value`, which must be positive.
        weights, benefits: start at 0.

    Reference: the proto, which calls it a variant of the algorithm in Shamir, 2015.
    """

    initial_accumulator_value: float = setting(0.1, POSITIVE, slot="accumulators")
    l2: float = 0.0
    lr_power: float = 0.0
    min_servable_mdl_benefit: float = 0.0
    mdl_mix_in_margin: float = 0.0
    mdl_benefit_rampup_coeff: float = 0.0
    mdl_min_weight: float = 0.0
    benefit_revisit_scale: float = 0.0
    max_event_benefit: float = 0.0
    max_total_benefit: float = 0.0
    mdl_hard_limit: float = 0.0
    hard_limit_min_benefit: bool = False
    mdl_regularize: bool = False

    op_name = "MDLAdagradLight"
    proto_field = "mdl_adagrad_light"
    slot_names = ("accumulators", "weights", "benefits")
    no_rule = (
        "the formula of `MDLAdagradLight` is not public. Look the table up without gradients, or "
        "give the table another optimizer."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.proto_fields():
            self._require(name, FACTOR.contains(getattr(self, name)), "must be finite")
        if self.weight_decay_factor:
            raise errors.InvalidSpec(
                "`MDLAdagradLight`: a TPU does not support weight decay for it, but "
                f"weight_decay_factor={self.weight_decay_factor}. Leave this setting out."
            )

    def proto_fields(self) -> dict[str, float]:
        settings = {field.name for field in fields(self)}
        shared = {field.name for field in fields(Optimizer)}
        names = sorted(settings - shared - {"initial_accumulator_value"})
        return {name: getattr(self, name) for name in names}

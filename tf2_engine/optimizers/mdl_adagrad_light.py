"""MDL Adagrad light, without an update rule."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tf2_engine import errors
from tf2_engine.optimizers.optimizer import Optimizer
from tf2_engine.optimizers.ranges import FACTOR, POSITIVE, setting


@dataclass(frozen=True)
class MDLAdagradLight(Optimizer):
    """The settings and slots of MDL Adagrad light, whose update formula is not public.

    Tables can be configured, loaded, looked up and retrieved, but `apply_gradients` raises an error
    that names the table. The settings have the names of the proto's fields, which the proto does
    not explain. The fields from `l2` to `mdl_hard_limit` are numbers; the last two fields are
    flags. There is no weight decay.

    Slots:
        accumulators: starts at `initial_accumulator_value`, which must be positive.
        weights: starts at 0.
        benefits: starts at 0.

    Reference: MdlAdagradLightParameters in optimization_parameters.proto, which calls it a variant
    of the algorithm in Shamir, 2015.
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
        "give it another optimizer."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.proto_fields():
            self._require(name, FACTOR.contains(getattr(self, name)), "must be finite")
        if self.weight_decay_factor:
            raise errors.InvalidSpec(
                "`MDLAdagradLight`: a TPU does not support weight decay for it, but "
                f"weight_decay_factor={self.weight_decay_factor}. Leave it out."
            )

    def proto_fields(self) -> dict[str, float]:
        settings = {field.name for field in fields(self)}
        shared = {field.name for field in fields(Optimizer)}
        names = sorted(settings - shared - {"initial_accumulator_value"})
        return {name: getattr(self, name) for name in names}

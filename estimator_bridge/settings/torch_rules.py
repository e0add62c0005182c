"""Maps update rules to rules of torch.optim, FBGEMM and optax, and settings to effects in PyTorch.

The tables of docs/torch.md, `audit --target torch` and the tests of these libraries use the maps.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tf2_engine.types import Object

LIBRARIES = ("torch.optim", "FBGEMM", "optax")

UNCORRECTED = 10_000_000
"""From this step on, bias corrections 1 - beta^step are 1 in float32, for beta up to 0.999998."""

Argument: TypeAlias = str | float | bool
"""A number, or the name of the engine's setting; "epsilon**2" is the square of a setting."""
OUTCOMES = {
    "equal": "equal",
    "settings": "equal with settings",
    "all rows": "equal only if every batch has every row",
    "untested": "its source computes the same with settings, but no test has confirmed this",
    "none": "none",
}
"""The possible outcomes for a rule in a library, best first."""
EPSILON_OUTSIDE = "epsilon is added to the root, not under it"
ROW_WISE = "it has one accumulator per row, which sums the mean of the row's squared gradients"
CORRECTED = "while its count of steps is low, it corrects the bias of its averages"
_NO_PROXIMAL_STEP = "no rule has the proximal step"
_PLAIN = "l1_regularization_strength=0.0 l2_regularization_strength=0.0"


@dataclasses.dataclass(frozen=True)
class TorchRule:
    """A library's rule that is equal to a rule of the engine, or comes nearest to it.

    Attributes:
        name: the library's name for the rule; empty if the library has no similar rule. "a + b" is
            a chain of two optax transformations.
        arguments: the values to pass, keyed by the names of the rule's arguments.
        state: the values to set before the first step, keyed by the names of optimizer states.
        only: the values of the engine's settings for which this counterpart is right.
        rows: whether rows outside the batch are unchanged.
        cause: why the rules differ; empty if they are equal.
        note: a condition that is not a setting of the optimizer.
        tested: whether the tests compare the rule's results with the engine's.
    """

    name: str = ""
    arguments: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    state: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Object] = dataclasses.field(default_factory=dict)
    rows: bool = True
    cause: str = ""
    note: str = ""
    tested: bool = True

    @property
    def outcome(self) -> str:
        if self.cause:
            return "none"
        if not self.tested:
            return "untested"
        if not self.rows:
            return "all rows"
        given = (*self.arguments.values(), *self.state)
        return "settings" if self.state or any(not isinstance(v, str) for v in given) else "equal"

    def fits(self, settings: Mapping[str, Object]) -> bool:
        return all(settings[name] == value for name, value in self.only.items())


def _pairs(text: str) -> dict[str, Argument]:
    """Parses "eps=0.0 lr=learning_rate", where lr has the value of the setting learning_rate."""
    pairs = {}
    for name, _, value in (each.partition("=") for each in text.split()):
        is_name = value[0].isalpha() and value not in ("True", "False")
        pairs[name] = value if is_name else ast.literal_eval(value)
    return pairs


def _rule(
    name: str = "",
    arguments: str = "",
    state: str = "",
    *,
    only: str = "",
    rows: bool = True,
    cause: str = "",
    note: str = "",
    tested: bool = True,
) -> TorchRule:
    return TorchRule(
        name,
        _pairs(arguments),
        _pairs(state),
        _pairs(only),
        rows=rows,
        cause=cause,
        note=note,
        tested=tested,
    )


def _none(cause: str = "the library has no such rule") -> tuple[TorchRule, ...]:
    return (_rule(cause=cause),)


def _row(
    torch: Sequence[TorchRule] = _none(),
    fbgemm: Sequence[TorchRule] = _none(),
    optax: Sequence[TorchRule] = _none(),
) -> dict[str, tuple[TorchRule, ...]]:
    return dict(zip(LIBRARIES, map(tuple, (torch, fbgemm, optax)), strict=True))


def _adagrads(only: str) -> list[list[TorchRule]]:
    start = "initial_accumulator_value=initial_accumulator_value"
    filled = "momentum1=initial_accumulator_value"
    return [
        [_rule("Adagrad", f"lr=learning_rate {start} eps=0.0", only=only)],
        [_rule("EXACT_ADAGRAD", "learning_rate=learning_rate eps=0.0", filled, only=only)],
        [_rule("adagrad", f"learning_rate=learning_rate {start} eps=0.0", only=only)],
    ]


def _adams_of_torch(name: str, lazy: str) -> list[TorchRule]:
    arguments = "lr=learning_rate betas[0]=beta_1 betas[1]=beta_2 eps=epsilon"
    state, outside = f"step={UNCORRECTED}", f"{lazy} sum_inside_sqrt=False"
    return [
        _rule(name, arguments, state, only=outside),
        _rule(name, arguments, state, only=f"{lazy} sum_inside_sqrt=True", cause=EPSILON_OUTSIDE),
        _rule(name, arguments, only=outside, cause=CORRECTED),
    ]


def _adams_of_optax(inside: str, epsilon: str) -> list[TorchRule]:
    arguments = f"learning_rate=learning_rate b1=beta_1 b2=beta_2 {epsilon}"
    state = f"count={UNCORRECTED}"
    return [
        _rule("adam", arguments, state, only=f"{inside} lazy_adam=False"),
        _rule("adam", arguments, state, only=f"{inside} lazy_adam=True", rows=False),
        _rule("adam", arguments, only=inside, cause=CORRECTED),
    ]


def _rms_props(centered: bool) -> tuple[TorchRule, TorchRule]:
    of_torch = f"lr=learning_rate alpha=rho momentum=momentum eps=epsilon centered={centered}"
    of_optax = (
        "learning_rate=learning_rate decay=rho momentum=momentum eps=epsilon initial_scale=0.0 "
        f"eps_in_sqrt=True centered={centered}"
    )
    return (
        _rule("RMSprop", of_torch, rows=False, cause=EPSILON_OUTSIDE),
        _rule("rmsprop", of_optax, rows=False),
    )


_TORCH_ADAGRAD, _FBGEMM_ADAGRAD, _OPTAX_ADAGRAD = _adagrads(only="")
_RMS_PROP, _CENTERED = _rms_props(centered=False), _rms_props(centered=True)

RULES: Mapping[str, Mapping[str, tuple[TorchRule, ...]]] = {
    "SGD": _row(
        torch=[_rule("SGD", "lr=learning_rate")],
        fbgemm=[_rule("EXACT_SGD", "learning_rate=learning_rate")],
        optax=[_rule("sgd", "learning_rate=learning_rate")],
    ),
    "Adagrad": _row(
        torch=_TORCH_ADAGRAD,
        fbgemm=[
            *_FBGEMM_ADAGRAD,
            _rule(
                "EXACT_ROWWISE_ADAGRAD",
                "learning_rate=learning_rate eps=0.0",
                "momentum1=initial_accumulator_value",
                cause=ROW_WISE,
            ),
        ],
        optax=_OPTAX_ADAGRAD,
    ),
    "AdagradMomentum": _row(
        optax=[
            _rule(
                "scale_by_rss + trace",
                "learning_rate=learning_rate initial_accumulator_value=0.0 eps=epsilon "
                "decay=momentum nesterov=use_nesterov",
                only="beta2=1.0 exponent=2.0",
                rows=False,
            ),
            *_none("the exponent is 2, and the squares are added without decay"),
        ],
    ),
    "Adam": _row(
        torch=[
            *_adams_of_torch("SparseAdam", "lazy_adam=True"),
            *_adams_of_torch("Adam", "lazy_adam=False"),
        ],
        fbgemm=[
            _rule(
                "ADAM",
                "learning_rate=learning_rate beta1=beta_1 beta2=beta_2 eps=epsilon",
                f"iter={UNCORRECTED}",
                only="sum_inside_sqrt=False lazy_adam=True",
                note="GPUs only",
                tested=False,
            ),
            *_none(f"{EPSILON_OUTSIDE}, and only rows of the batch are updated"),
        ],
        optax=[
            *_adams_of_optax("sum_inside_sqrt=True", "eps=0.0 eps_root=epsilon**2"),
            *_adams_of_optax("sum_inside_sqrt=False", "eps=epsilon eps_root=0.0"),
        ],
    ),
    "FTRL": _row(),
    "Momentum": _row(
        torch=[
            _rule("SGD", "lr=learning_rate momentum=momentum nesterov=use_nesterov", rows=False)
        ],
        optax=[
            _rule(
                "sgd",
                "learning_rate=learning_rate momentum=momentum nesterov=use_nesterov",
                rows=False,
            )
        ],
    ),
    "RMSProp": _row(
        torch=[
            _rule(
                "RMSprop",
                "lr=learning_rate alpha=rho momentum=momentum eps=0.0",
                only="epsilon=0.0",
                rows=False,
                note="with a momentum, the rate must be constant",
            ),
            _RMS_PROP[0],
        ],
        optax=_RMS_PROP[1:],
    ),
    "CenteredRMSProp": _row(torch=_CENTERED[:1], optax=_CENTERED[1:]),
    "ProximalAdagrad": _row(
        *([*rules, *_none(_NO_PROXIMAL_STEP)] for rules in _adagrads(only=_PLAIN))
    ),
    "ProximalYogi": _row(
        optax=[
            _rule(
                "yogi",
                "learning_rate=learning_rate b1=beta_1 b2=beta_2 eps=epsilon",
                f"count={UNCORRECTED} mu=0.0 nu=initial_accumulator_value",
                only=_PLAIN,
                rows=False,
            ),
            *_none(_NO_PROXIMAL_STEP),
        ],
    ),
    "Adadelta": _row(
        torch=[_rule("Adadelta", "lr=learning_rate rho=rho eps=epsilon", rows=False)],
        optax=[_rule("adadelta", "learning_rate=learning_rate rho=rho eps=epsilon", rows=False)],
    ),
    "FrequencyEstimator": _row(),
    "MDLAdagradLight": _row(*[_none("the formula is not public")] * 3),
}
"""Maps the engine's optimizer, then the library, to the counterparts that may fit, best first."""


def counterpart(optimizer: str, library: str, settings: Mapping[str, Object]) -> TorchRule:
    return next(each for each in RULES[optimizer][library] if each.fits(settings))


def value_of(argument: Argument, settings: Mapping[str, Object]) -> Object:
    if not isinstance(argument, str):
        return argument
    name, square, _ = argument.partition("**2")
    value = settings[name]
    return value * value if square else value


def call(rule: TorchRule, settings: Mapping[str, Object] | None = None) -> str:
    """Writes the call that creates an optimizer. Without `settings`, it shows names, not values."""

    def shown(argument: Argument) -> str:
        if settings is None or not isinstance(argument, str):
            return str(argument)
        return str(value_of(argument, settings))

    if not rule.name:
        return ""
    given = {name: shown(each) for name, each in rule.arguments.items()}
    if "betas[0]" in given:
        given["betas"] = f"({given.pop('betas[0]')}, {given.pop('betas[1]')})"
    arguments = ", ".join(f"{name}={each}" for name, each in given.items())
    state = ", ".join(f"{name} = {shown(each)}" for name, each in rule.state.items())
    return f"{rule.name}({arguments})" + (f", state {state}" if state else "")


def described(rule: TorchRule, settings: Mapping[str, Object] | None = None) -> str:
    made = call(rule, settings)
    if rule.cause:
        text = f"no equal optimizer, because {rule.cause}" + (
            f"; the nearest is {made}" if made else ""
        )
    else:
        text = f"{OUTCOMES[rule.outcome]}: {made}"
    if settings is None and rule.only:
        conditions = ", ".join(f"{name}={value}" for name, value in rule.only.items())
        text = f"with {conditions}: {text}"
    return f"{text} ({rule.note})" if rule.note else text


class TorchEffect(NamedTuple):
    """What PyTorch does in place of a legacy setting's effect, and the advice to users."""

    effect: str
    way_out: str = ""


_HASHING = TorchEffect(
    "PyTorch has no feature columns, and no FarmHash, with which TensorFlow hashes strings",
    "compute ids in the input pipeline: with TensorFlow, as to_tf2().preprocessing does, or store "
    "them in the data",
)
_DECAY = TorchEffect(
    "torch.optim adds weight_decay to the gradient, and AdamW lets all rows decay; FBGEMM silently "
    "ignores weight_decay for EXACT_SGD and EXACT_ADAGRAD",
    "decay the rows of the batch before the update, as in docs/torch.md",
)

EFFECTS: Mapping[str, TorchEffect] = {
    "clipping_limit": TorchEffect(
        "stock ignores it, so a port that limits weights computes different results", "leave it out"
    ),
    "learning_rate_zero": TorchEffect(
        "a rate of 0.0 is 0.0; in stock it counts as unset", "set the rate of the optimizer"
    ),
    "table_learning_rate": TorchEffect(
        "a rate belongs to an optimizer", "give the table its own parameter group or optimizer"
    ),
    "learning_rate_fn": TorchEffect(
        "use a scheduler, or call set_learning_rate of FBGEMM before each step",
        "call learning_rate_fn with the step before the update, which begins at 0",
    ),
    "no_gradient_accumulation": TorchEffect(
        "all libraries sum the gradients of a row before the update", "expect different results"
    ),
    "weight_decay": _DECAY,
    "weight_limits": TorchEffect(
        "no library limits weights", "limit the rows of the batch after the step"
    ),
    "gradient_limits": TorchEffect(
        "max_gradient of FBGEMM limits the gradients of activations before they are added",
        "limit the coalesced sparse gradient before the step",
    ),
    "table_size": TorchEffect(
        "nn.EmbeddingBag draws initial values from a normal distribution, TorchRec from a uniform "
        "distribution; FBGEMM needs a dimension that is a multiple of 4",
        "load a converted checkpoint; otherwise, draw from the same distribution",
    ),
    "combiner": TorchEffect(
        "the default is the mean in nn.EmbeddingBag, and the sum in TorchRec; both lack sqrtn, and "
        "nn.EmbeddingBag takes weights only with a sum",
        "use the sum, with weights that are divided by their sum (mean) or by the root of the sum "
        "of their squares (sqrtn)",
    ),
    "combiner_none": TorchEffect(
        "on a TPU None means the sum; the default of nn.EmbeddingBag is the mean", "use the sum"
    ),
    "mod_partitioning": TorchEffect(
        "a checkpoint has whole tables, which TorchRec shards",
        "use `convert --to torch`, which puts rows in the order of the ids; the stored tensors "
        "have a different order",
    ),
    "gradient_multiplier": TorchEffect(
        "no such setting", "multiply the gradient of the activations in a hook, not the loss"
    ),
    "pipelining": TorchEffect(
        "TorchRec's pipelines fetch inputs early, but each step includes the previous update",
        "expect different results",
    ),
    "column_transforms_on_cpu_only": _HASHING,
    "feature_columns": _HASHING,
    "weighted_feature": TorchEffect(
        "use per_sample_weights of nn.EmbeddingBag, or weights of a KeyedJaggedTensor. For mean "
        "and sqrtn a TPU divides by the weights, but FBGEMM's mean divides by the number of ids",
        "use the sum, and divide the weights first",
    ),
    "dense_ids": TorchEffect(
        "every id is looked up; stock skips id 0 of a dense tensor",
        "drop the padding before the lookup",
    ),
    "sequence": TorchEffect(
        "EmbeddingCollection returns all positions and their lengths, without cutting sequences",
        "cut at max_sequence_length and pad with zero rows",
    ),
    "ids_out_of_range": TorchEffect(
        "nn.EmbeddingBag raises an error; FBGEMM looks up row 0 instead and warns "
        "(BoundsCheckMode.WARNING)",
        "check the ids of the input pipeline, and use BoundsCheckMode.FATAL",
    ),
}
"""Maps names of rows to effects in PyTorch. The settings of other rows have no effect there."""

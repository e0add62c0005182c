"""The update rules of torch.optim, FBGEMM and optax beside those of the engine.

The tables of docs/torch.md, `audit --target torch` and the tests of these libraries read the map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from tf2_engine.types import Object

LIBRARIES = ("torch.optim", "FBGEMM", "optax")

UNCORRECTED = 10_000_000
"""A step at which a bias correction, 1 - beta^step, is 1 in float32, for beta up to 0.999998."""

Argument: TypeAlias = str | float | bool
"""A number, or the name of the engine's setting; "epsilon**2" is the square of one."""


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """A rule of a library that is equal to one of the engine, or the nearest that is not.

    Attributes:
        name: the library's name for it; "a + b" is a chain of two transformations of optax. Empty
            if no rule of the library is near.
        arguments: the arguments to give, by name.
        state: the states to set before the first step, by name.
        only: the engine's settings for which this holds.
        rows: whether rows outside of the batch stay as they are. Otherwise, the two are equal where
            every row is in every batch, and elsewhere the library also changes the other rows.
        cause: why it differs; empty if it is equal.
        note: a condition that is no setting of the optimizer.
    """

    name: str = ""
    arguments: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    state: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Object] = dataclasses.field(default_factory=dict)
    rows: bool = True
    cause: str = ""
    note: str = ""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        if self.cause:
            return "none"
        if not self.rows:
            return "all rows"
        given = (*self.arguments.values(), *self.state)
        return "settings" if self.state or any(not isinstance(v, str) for v in given) else "equal"

    def fits(self, settings: Mapping[str, Object]) -> bool:
        return all(settings[name] == value for name, value in self.only.items())


OUTCOMES = {
    "equal": "equal",
    "settings": "equal with settings",
    "all rows": "equal only if every batch has every row",
    "none": "none",
}
"""What a library has for a rule, best first."""

EPSILON_OUTSIDE = "epsilon is added to the root, not under it"
_NO_RULE = "the formula is not public"
_ABSENT = "the library has no such rule"
ROW_WISE = "it has one accumulator per row, which adds the mean of the row's squares"
CORRECTED = "while its count of steps is low, it corrects the bias of its averages"
_BETAS = {"betas[0]": "beta_1", "betas[1]": "beta_2"}
_PLAIN = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}

_ADAGRADS: Mapping[str, Mapping[str, Argument]] = {
    "torch.optim": {
        "lr": "learning_rate",
        "initial_accumulator_value": "initial_accumulator_value",
        "eps": 0.0,
    },
    "FBGEMM": {"learning_rate": "learning_rate", "eps": 0.0},
    "optax": {
        "learning_rate": "learning_rate",
        "initial_accumulator_value": "initial_accumulator_value",
        "eps": 0.0,
    },
}
_FILLED: Mapping[str, Argument] = {"momentum1": "initial_accumulator_value"}


def _adagrads(only: Mapping[str, Object]) -> dict[str, tuple[Counterpart, ...]]:
    names = {"torch.optim": "Adagrad", "FBGEMM": "EXACT_ADAGRAD", "optax": "adagrad"}
    return {
        library: (
            Counterpart(
                name, _ADAGRADS[library], _FILLED if library == "FBGEMM" else {}, only=only
            ),
            *((Counterpart(cause="no rule has the proximal step"),) if only else ()),
        )
        for library, name in names.items()
    }


_ROW_WISE_ADAGRAD = Counterpart(
    "EXACT_ROWWISE_ADAGRAD", _ADAGRADS["FBGEMM"], _FILLED, cause=ROW_WISE
)


def _torch_adam(name: str, *, lazy: bool) -> tuple[Counterpart, ...]:
    arguments: Mapping[str, Argument] = {"lr": "learning_rate", **_BETAS, "eps": "epsilon"}
    state: Mapping[str, Argument] = {"step": UNCORRECTED}
    only = {"lazy_adam": lazy}
    inside, outside = {**only, "sum_inside_sqrt": True}, {**only, "sum_inside_sqrt": False}
    return (
        Counterpart(name, arguments, state, only=outside),
        Counterpart(name, arguments, state, only=inside, cause=EPSILON_OUTSIDE),
        Counterpart(name, arguments, only=outside, cause=CORRECTED),
    )


def _optax_adam(**epsilon: Argument) -> Iterator[Counterpart]:
    inside = epsilon["eps_root"] != 0.0
    arguments: Mapping[str, Argument] = {
        "learning_rate": "learning_rate",
        "b1": "beta_1",
        "b2": "beta_2",
        **epsilon,
    }
    for lazy in (False, True):
        only = {"sum_inside_sqrt": inside, "lazy_adam": lazy}
        state = {"count": UNCORRECTED}
        yield Counterpart("adam", arguments, state, only=only, rows=not lazy)
    yield Counterpart("adam", arguments, only={"sum_inside_sqrt": inside}, cause=CORRECTED)


def _rms_props(*, centered: bool) -> dict[str, tuple[Counterpart, ...]]:
    of_torch: Mapping[str, Argument] = {
        "lr": "learning_rate",
        "alpha": "rho",
        "momentum": "momentum",
        "eps": "epsilon",
        "centered": centered,
    }
    of_optax: Mapping[str, Argument] = {
        "learning_rate": "learning_rate",
        "decay": "rho",
        "momentum": "momentum",
        "eps": "epsilon",
        "initial_scale": 0.0,
        "eps_in_sqrt": True,
        "centered": centered,
    }
    without = Counterpart(
        "RMSprop",
        {**of_torch, "eps": 0.0},
        only={"epsilon": 0.0},
        rows=False,
        note="with a momentum, the rate must be constant",
    )
    return {
        "torch.optim": (
            *(() if centered else (without,)),
            Counterpart("RMSprop", of_torch, rows=False, cause=EPSILON_OUTSIDE),
        ),
        "FBGEMM": (Counterpart(cause=_ABSENT),),
        "optax": (Counterpart("rmsprop", of_optax, rows=False),),
    }


def _absent(cause: str = _ABSENT) -> dict[str, tuple[Counterpart, ...]]:
    return {library: (Counterpart(cause=cause),) for library in LIBRARIES}


RULES: Mapping[str, Mapping[str, tuple[Counterpart, ...]]] = {
    "SGD": {
        "torch.optim": (Counterpart("SGD", {"lr": "learning_rate"}),),
        "FBGEMM": (Counterpart("EXACT_SGD", {"learning_rate": "learning_rate"}),),
        "optax": (Counterpart("sgd", {"learning_rate": "learning_rate"}),),
    },
    "Adagrad": {
        **_adagrads({}),
        "FBGEMM": (*_adagrads({})["FBGEMM"], _ROW_WISE_ADAGRAD),
    },
    "AdagradMomentum": {
        **_absent("no rule has the momentum of a scaled gradient"),
        "optax": (
            Counterpart(
                "scale_by_rss + trace",
                {
                    "learning_rate": "learning_rate",
                    "initial_accumulator_value": 0.0,
                    "eps": "epsilon",
                    "decay": "momentum",
                    "nesterov": "use_nesterov",
                },
                only={"beta2": 1.0, "exponent": 2.0},
                rows=False,
            ),
            Counterpart(cause="the exponent is 2, and the squares are added without decay"),
        ),
    },
    "Adam": {
        "torch.optim": (*_torch_adam("SparseAdam", lazy=True), *_torch_adam("Adam", lazy=False)),
        "FBGEMM": (
            Counterpart(
                "ADAM",
                {"learning_rate": "learning_rate", "beta1": "beta_1", "beta2": "beta_2"}
                | {"eps": "epsilon"},
                {"iter": UNCORRECTED},
                only={"sum_inside_sqrt": False, "lazy_adam": True},
                note="GPUs only",
            ),
            Counterpart(cause=f"{EPSILON_OUTSIDE}, and only rows of the batch are updated"),
        ),
        "optax": (
            *_optax_adam(eps=0.0, eps_root="epsilon**2"),
            *_optax_adam(eps="epsilon", eps_root=0.0),
        ),
    },
    "FTRL": _absent(),
    "Momentum": {
        "torch.optim": (
            Counterpart(
                "SGD",
                {"lr": "learning_rate", "momentum": "momentum", "nesterov": "use_nesterov"},
                rows=False,
            ),
        ),
        "FBGEMM": (Counterpart(cause=_ABSENT),),
        "optax": (
            Counterpart(
                "sgd",
                {"learning_rate": "learning_rate", "momentum": "momentum"}
                | {"nesterov": "use_nesterov"},
                rows=False,
            ),
        ),
    },
    "RMSProp": _rms_props(centered=False),
    "CenteredRMSProp": _rms_props(centered=True),
    "ProximalAdagrad": _adagrads(_PLAIN),
    "ProximalYogi": {
        **_absent(),
        "optax": (
            Counterpart(
                "yogi",
                {"learning_rate": "learning_rate", "b1": "beta_1", "b2": "beta_2"}
                | {"eps": "epsilon"},
                {"count": UNCORRECTED, "mu": 0.0, "nu": "initial_accumulator_value"},
                only=_PLAIN,
                rows=False,
            ),
            Counterpart(cause="no rule has the proximal step"),
        ),
    },
    "Adadelta": {
        "torch.optim": (
            Counterpart(
                "Adadelta", {"lr": "learning_rate", "rho": "rho", "eps": "epsilon"}, rows=False
            ),
        ),
        "FBGEMM": (Counterpart(cause=_ABSENT),),
        "optax": (
            Counterpart(
                "adadelta",
                {"learning_rate": "learning_rate", "rho": "rho", "eps": "epsilon"},
                rows=False,
            ),
        ),
    },
    "FrequencyEstimator": _absent(),
    "MDLAdagradLight": _absent(_NO_RULE),
}
"""By the engine's optimizer and library, the counterparts that may fit, best first."""


def counterpart(optimizer: str, library: str, settings: Mapping[str, Object]) -> Counterpart:
    """Finds what a library has for an optimizer of the engine with certain settings."""
    return next(each for each in RULES[optimizer][library] if each.fits(settings))


def value_of(argument: Argument, settings: Mapping[str, Object]) -> Object:
    """Computes the value of an argument for certain settings of the engine's optimizer."""
    if not isinstance(argument, str):
        return argument
    name, square, _ = argument.partition("**2")
    value = settings[name]
    return value * value if square else value


def call(rule: Counterpart, settings: Mapping[str, Object] | None = None) -> str:
    """Writes the call that makes a library's optimizer, and the states to set after it.

    Without `settings`, the engine's names of settings stand for their values.
    """

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


def described(rule: Counterpart, settings: Mapping[str, Object] | None = None) -> str:
    """Says in a line what a library has: the outcome, its conditions, the call and the cause."""
    made = call(rule, settings)
    if rule.cause:
        text = f"none: {rule.cause}" + (f"; the nearest is {made}" if made else "")
    else:
        text = f"{OUTCOMES[rule.outcome]}: {made}"
    if settings is None and rule.only:
        conditions = ", ".join(f"{name}={value}" for name, value in rule.only.items())
        text = f"with {conditions}: {text}"
    return f"{text} ({rule.note})" if rule.note else text

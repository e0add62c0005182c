"""Every optimizer with its settings, the common settings it is combined with, and thirty steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from compat_tests.cases import Pair, Row, every, in_turn, pairwise
from compat_tests.references.training import ReferenceTable
from tf2_engine import backends

MODES = ("eager", "function", "graph")
COMBINERS = ("sum", "mean", "sqrtn")
DRIVERS = tuple(
    dict.fromkeys(
        ("host", "native", *(n for n in backends.DRIVERS if n not in ("sparsecore", "ps")))
    )
)
"""The host driver on TensorFlow's ops, and on native ones; then the other drivers of the first
generation's arithmetic. The TPU driver runs on a software TPU. SparseCores have another arithmetic,
five optimizers and no graphs: their cases are in compat_tests/sparsecore. Parameter servers need a
cluster, and a process of their own: see compat_tests/cluster."""


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerCase:
    """One optimizer with settings of its own.

    Attributes:
        name: for ids and messages.
        kind: its key in `tf2_engine.OPTIMIZERS`.
        settings: arguments of the engine's class, every one that is not common to all.
        reference: its key in `references.optimizers.OPTIMIZERS`.
        reference_settings: the same settings under the reference's names.
        needs: levels of the factors below that it can only be combined with, by factor.
        dim: columns of its table.
        first: between which numbers its rows start.
        rate_is_step: whether the learning rate carries the number of the step, from 1 on.
        power_of: the rows are looked up as (row / scale)^exponent; (scale, exponent), or None.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    reference: str
    reference_settings: Mapping[str, Any]
    needs: Mapping[str, Sequence[str]]
    dim: int
    first: tuple[float, float]
    rate_is_step: bool
    power_of: tuple[float, float] | None

    def reference_of(
        self, held: Mapping[str, npt.ArrayLike], common: Mapping[str, Any]
    ) -> ReferenceTable:
        """Returns a reference that holds parameters, and slots unless they have initial values."""
        slots = {kind: values for kind, values in held.items() if kind != "parameters"}
        return ReferenceTable(
            held["parameters"], self.reference, self.reference_settings, common, slots=slots
        )

    def looked_up(self, rows: npt.ArrayLike) -> dict[str, Any]:
        """Returns `rows` and `steps` of `assert_step`: what lookups see of rows."""
        if self.power_of is None:
            return {"rows": rows, "steps": 0}
        scale, exponent = self.power_of
        return {"rows": (np.asarray(rows, np.float64) / scale) ** exponent, "steps": 1}


def _case(
    name: str,
    kind: str,
    settings: Mapping[str, Any] | None = None,
    *,
    renamed: Mapping[str, str] | None = None,
    unknown: Sequence[str] = (),
    needs: Mapping[str, Sequence[str]] | None = None,
    dim: int = 3,
    first: tuple[float, float] = (-1.0, 1.0),
    rate_is_step: bool = False,
    power_of: tuple[float, float] | None = None,
) -> OptimizerCase:
    """Returns a case whose reference has the same name and, mostly, the same settings.

    Args:
        renamed: settings that the reference calls otherwise.
        unknown: settings that the reference does not have.
    """
    settings, renamed = settings or {}, renamed or {}
    known = {renamed.get(key, key): settings[key] for key in settings if key not in unknown}
    return OptimizerCase(
        name, kind, settings, kind, known, needs or {}, dim, first, rate_is_step, power_of
    )


_ACCUMULATED = {"accumulation": ("accumulated",)}
_START = "initial_accumulator_value"
_L1, _L2 = "l1_regularization_strength", "l2_regularization_strength"


def _adam(name: str, beta_1: float, beta_2: float, epsilon: float, **forms: bool) -> OptimizerCase:
    settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, **forms}
    return _case(name, "Adam", settings, needs={} if forms["lazy_adam"] else _ACCUMULATED)


def _adagrad_momentum(name: str, *values: Any) -> OptimizerCase:
    keys = ("momentum", "use_nesterov", "exponent", "beta2", "epsilon")
    settings = dict(zip(keys, values, strict=True))
    return _case(name, "AdagradMomentum", settings, renamed={"beta2": "beta_2"})


def _frequency(
    name: str, tau: float, max_delta: float, threshold: float, weighted: bool
) -> OptimizerCase:
    # Thresholds that no number of steps equals: what happens at equality is a matter of rounding.
    settings = {
        "tau": tau,
        "max_delta": max_delta,
        "outlier_threshold": threshold,
        "weight_exponent": 2.0 if weighted else 0.5,
        "weighted": weighted,
    }
    return _case(
        name,
        "FrequencyEstimator",
        settings,
        unknown=("weighted",),
        # What a TPU looks up are the rows.
        needs={"rate": ("dynamic rate",), **({"driver": ("host", "native")} if weighted else {})},
        dim=1,
        first=(1.0, 6.5),
        rate_is_step=True,
        power_of=(max_delta, 2.0) if weighted else None,
    )


# Epsilons are not far below the gradients: what a rule makes of a rounding error that it divides
# by is no question of conformance.
CASES: dict[str, OptimizerCase] = {
    case.name: case
    for case in (
        _case("SGD", "SGD"),
        _case("Adagrad", "Adagrad", {_START: 0.1}),
        _case("Adagrad from 1", "Adagrad", {_START: 1.0}),
        _adagrad_momentum("AdagradMomentum", 0.75, False, 2.0, 1.0, 0.05),
        _adagrad_momentum("AdagradMomentum, forgetful", 0.5, True, 3.0, 0.9, 0.1),
        _adam("Adam", 0.9, 0.999, 0.01, lazy_adam=True, sum_inside_sqrt=True),
        _adam("Adam, outside", 0.8, 0.99, 0.05, lazy_adam=True, sum_inside_sqrt=False),
        _adam("Adam, every row", 0.8, 0.99, 0.05, lazy_adam=False, sum_inside_sqrt=True),
        _adam("Adam, every row, outside", 0.9, 0.999, 0.01, lazy_adam=False, sum_inside_sqrt=False),
        _case(
            "FTRL",
            "FTRL",
            {
                "learning_rate_power": -0.5,
                _L1: 0.25,
                _L2: 0.125,
                "beta": 0.5,
                _START: 0.1,
                "multiply_linear_by_learning_rate": False,
                "allow_zero_accumulator": False,
            },
            unknown=("allow_zero_accumulator",),
            needs={"rate": ("constant rate", "dynamic rate")},
        ),
        _case(
            "FTRL, linear times rate",
            "FTRL",
            {
                "learning_rate_power": -0.75,
                _L1: 0.5,
                _L2: 0.25,
                "beta": 0.25,
                _START: 0.5,
                "multiply_linear_by_learning_rate": True,
                "allow_zero_accumulator": True,
            },
            unknown=("allow_zero_accumulator",),
        ),
        _case(
            "FTRL from 0",
            "FTRL",
            {
                "learning_rate_power": -0.5,
                _L1: 0.0,
                _L2: 0.0,
                "beta": 0.25,
                _START: 0.0,
                "multiply_linear_by_learning_rate": True,
                "allow_zero_accumulator": True,
            },
            unknown=("allow_zero_accumulator",),
        ),
        _case("Momentum", "Momentum", {"momentum": 0.75, "use_nesterov": False}),
        _case("Momentum, Nesterov", "Momentum", {"momentum": 0.5, "use_nesterov": True}),
        _case("RMSProp", "RMSProp", {"rho": 0.9, "momentum": 0.75, "epsilon": 0.01}),
        _case("RMSProp, fast", "RMSProp", {"rho": 0.5, "momentum": 0.0, "epsilon": 0.05}),
        _case("CenteredRMSProp", "CenteredRMSProp", {"rho": 0.9, "momentum": 0.5, "epsilon": 0.25}),
        _case(
            "CenteredRMSProp, slow",
            "CenteredRMSProp",
            {"rho": 0.95, "momentum": 0.0, "epsilon": 0.125},
        ),
        _case("ProximalAdagrad", "ProximalAdagrad", {_START: 0.1, _L1: 0.25, _L2: 0.5}),
        _case("ProximalAdagrad from 1", "ProximalAdagrad", {_START: 1.0, _L1: 0.5, _L2: 0.0}),
        _case(
            "ProximalYogi",
            "ProximalYogi",
            {"beta_1": 0.9, "beta_2": 0.99, "epsilon": 0.25, _L1: 0.0, _L2: 0.25, _START: 0.5},
        ),
        _case(
            "ProximalYogi, l1",
            "ProximalYogi",
            {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.125, _L1: 0.125, _L2: 0.0, _START: 0.25},
        ),
        _case("Adadelta", "Adadelta", {"rho": 0.9, "epsilon": 0.05}),
        _case("Adadelta, fast", "Adadelta", {"rho": 0.5, "epsilon": 0.25}),
        _frequency("FrequencyEstimator", 0.3, 6.5, 1.37, False),
        _frequency("FrequencyEstimator, weighted", 0.6, 3.5, 2.23, True),
    )
}
"""Every case by name; a new optimizer needs a row here."""

KINDS = tuple(dict.fromkeys(case.kind for case in CASES.values()))

# The settings that all optimizers share, under the names that engine and references both have.

CLIPPING: dict[str, Mapping[str, float]] = {
    "unclipped": {},
    "weight min": {"clip_weight_min": -0.5},
    "weight max": {"clip_weight_max": 0.6},
    "weight": {"clip_weight_min": -0.5, "clip_weight_max": 0.6},
    "gradient min": {"clip_gradient_min": -0.7},
    "gradient max": {"clip_gradient_max": 0.8},
    "gradient and weight": {
        "clip_gradient_min": -0.7,
        "clip_gradient_max": 0.8,
        "clip_weight_min": -0.5,
        "clip_weight_max": 0.6,
    },
}
DECAY: dict[str, Mapping[str, Any]] = {
    "no decay": {},
    "decay": {
        "weight_decay_factor": 0.04,
        "multiply_weight_decay_factor_by_learning_rate": False,
    },
    "decay times rate": {
        "weight_decay_factor": 0.5,
        "multiply_weight_decay_factor_by_learning_rate": True,
    },
}
ACCUMULATION: dict[str, Mapping[str, bool]] = {
    "accumulated": {"use_gradient_accumulation": True},
    "per core": {"use_gradient_accumulation": False},
}
RATES = ("constant rate", "dynamic rate", "zero rate")

FACTORS: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "clipping": tuple(CLIPPING),
    "decay": tuple(DECAY),
    "accumulation": tuple(ACCUMULATION),
    "rate": RATES,
    "cores": (1, 2),
}
"""What is combined with what in the full tier; modes, combiners, drivers and cases take turns."""

GRADIENT_CLIPPING = ("gradient min", "gradient max", "gradient and weight")
QUICK_FACTORS: dict[str, tuple[Any, ...]] = {
    **FACTORS,
    "clipping": ("unclipped", "weight min", "weight max", "weight", "gradient"),
    "mode": MODES,
    "combiner": COMBINERS,
    "driver": DRIVERS,
}
"""Pairs of settings in the quick tier; cases take turns, and so do the ways to clip
gradients, which are one level here."""


def allows(case: OptimizerCase, row: Mapping[str, Any]) -> bool:
    return all(row[factor] in levels for factor, levels in case.needs.items() if factor in row)


def _no_case_allows(kind: str, factor: str, level: str) -> bool:
    return not any(allows(case, {factor: level}) for case in CASES.values() if case.kind == kind)


REFUSED: frozenset[Pair] = frozenset(
    {
        *[
            (("clipping", name), ("accumulation", "per core"))
            for name in ("gradient", *GRADIENT_CLIPPING)
        ],
        *[
            (("kind", kind), (factor, level))
            for kind in KINDS
            for factor in ("accumulation", "rate")
            for level in FACTORS[factor]
            if _no_case_allows(kind, factor, level)
        ],
    }
)
"""Pairs that cannot be: clipped gradients without accumulation, and what a whole kind refuses."""


@dataclasses.dataclass(frozen=True)
class Combination:
    """A case and a level of each factor; for the meaning see the tables above."""

    kind: str
    clipping: str
    decay: str
    accumulation: str
    rate: str
    cores: int
    mode: str
    combiner: str
    driver: str
    optimizer: str

    def __str__(self) -> str:
        levels = [self.optimizer, *dataclasses.astuple(self)[1:-1]]
        return "-".join(str(level) for level in levels)

    @property
    def case(self) -> OptimizerCase:
        return CASES[self.optimizer]

    @property
    def common(self) -> dict[str, Any]:
        return {
            **CLIPPING[self.clipping],
            **DECAY[self.decay],
            **ACCUMULATION[self.accumulation],
        }

    def rate_at(self, seed: int, step: int) -> float:
        """Returns the learning rate of a table at a step; the dynamic one is first / (1 + step)."""
        if self.case.rate_is_step:
            return float(step + 1)
        if self.rate == "dynamic rate":
            return float(np.float32(first_rate(seed)) / np.float32(1 + step))
        return {"constant rate": CONSTANT_RATE, "zero rate": 0.0}[self.rate]


def cases_of(row: Row) -> list[str]:
    """Returns the names of the cases of the kind in a row that go with its levels."""
    return [case.name for case in CASES.values() if case.kind == row["kind"] and allows(case, row)]


def clipping_of(row: Row) -> Sequence[str]:
    """Returns what a level of clipping in the quick tier stands for."""
    return GRADIENT_CLIPPING if row["clipping"] == "gradient" else (row["clipping"],)


def quick() -> list[Combination]:
    """Returns few combinations that hold every pair of levels."""
    rows = in_turn(pairwise(QUICK_FACTORS, REFUSED), "optimizer", cases_of)
    return [Combination(**row) for row in in_turn(rows, "clipping", clipping_of)]


def full() -> list[Combination]:
    """Returns every combination of the factors; modes, combiners, drivers and cases take turns."""
    rows = in_turn(every(FACTORS, REFUSED), "mode", lambda _: MODES)
    rows = in_turn(rows, "combiner", lambda _: COMBINERS)
    rows = in_turn(rows, "driver", lambda _: DRIVERS)
    return [Combination(**row) for row in in_turn(rows, "optimizer", cases_of)]


CONSTANT_RATE = 0.125
FIRST_RATES = (0.25, 0.5)


def first_rate(seed: int) -> float:
    """Returns what the dynamic rate of a table starts with: tables do not all have the same."""
    return FIRST_RATES[seed % len(FIRST_RATES)]


# Thirty steps: sparse features with duplicates, empty rows and weights.

ROWS = 24
"""Rows of a table; the last two are in no batch."""
BATCH = 5
"""Samples per core."""
MOST_IDS = 3
"""Ids of the longest sample."""
FEATURES = {"watched": True, "liked": False}
"""The two features of a table, and whether they have weights."""
NUM_STEPS = 30
SHARE_OF_ZEROS = 0.125
"""How many weights, and gradients of samples, are zero."""


class SparseIds(NamedTuple):
    """A sparse feature on one core.

    Attributes:
        indices: [num_ids, 2] int64, (sample, position).
        ids: [num_ids] int64.
        weights: [num_ids] float32, or None.
    """

    indices: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None


class Step(NamedTuple):
    """One global batch of one table, per core and feature, and what comes back for it."""

    inputs: tuple[dict[str, SparseIds], ...]
    gradients: tuple[dict[str, npt.NDArray[np.float32]], ...]


def initial_weights(case: OptimizerCase, seed: int) -> npt.NDArray[np.float32]:
    """Returns [ROWS, dim] float32."""
    chance = np.random.default_rng([seed, 0])
    return chance.uniform(*case.first, (ROWS, case.dim)).astype(np.float32)


def steps(case: OptimizerCase, seed: int, num_cores: int, count: int = NUM_STEPS) -> list[Step]:
    """Returns the steps of one table.

    Ids repeat within samples, across features and across cores; samples may be empty, weights and
    gradients may be zero. Gradients of one step and column have one sign, so that no sum cancels
    to a rounding error: what a rule such as Adam makes of such a sum is no question of conformance.
    """
    chance = np.random.default_rng([seed, 1])
    all_steps = []
    for _ in range(count):
        sign = chance.choice([-1.0, 1.0], case.dim)
        inputs = tuple(
            {name: _sparse_ids(chance, weighted) for name, weighted in FEATURES.items()}
            for _ in range(num_cores)
        )
        gradients = tuple(
            {name: _gradient(chance, sign) for name in FEATURES} for _ in range(num_cores)
        )
        all_steps.append(Step(inputs, gradients))
    return all_steps


def _gradient(
    chance: np.random.Generator, sign: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    gradient = sign * chance.uniform(0.25, 1.0, (BATCH, len(sign)))
    gradient[chance.uniform(0, 1, BATCH) < SHARE_OF_ZEROS] = 0.0
    return gradient.astype(np.float32)


def _sparse_ids(chance: np.random.Generator, weighted: bool) -> SparseIds:
    lengths = chance.permutation([0, MOST_IDS, *chance.integers(0, MOST_IDS + 1, BATCH - 2)])
    indices = [(sample, at) for sample, length in enumerate(lengths) for at in range(length)]
    # Squared, a uniform number prefers small ids: they repeat.
    ids = (chance.uniform(0, 1, len(indices)) ** 2 * (ROWS - 2)).astype(np.int64)
    longest = indices.index((int(np.argmax(lengths)), 0))
    ids[longest + 1] = ids[longest]
    weights = None
    if weighted:
        weights = chance.uniform(0.5, 2.0, len(indices)).astype(np.float32)
        weights[chance.uniform(0, 1, len(indices)) < SHARE_OF_ZEROS] = 0.0
    return SparseIds(np.array(indices, np.int64), ids, weights)

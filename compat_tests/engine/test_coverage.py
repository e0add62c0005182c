"""Every optimizer, every setting and every pair of settings has a test case."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from compat_tests.cases import optimizers as cases
from compat_tests.cases import pairs_of
from compat_tests.cases.optimizers import Combination, OptimizerCase
from compat_tests.engine import test_conformance as conformance
from compat_tests.references.inputs import sparse
from compat_tests.references.lookup import combine
from compat_tests.references.training import contributions
from tf2_engine import OPTIMIZERS, Optimizer
from tf2_engine.optimizers.optimizer import KEEPING

QUICK = cases.quick()
FULL = cases.full()
TRAINED = [name for name, kind in OPTIMIZERS.items() if kind.no_rule is None]
SHARED = {field.name for field in dataclasses.fields(Optimizer)} - KEEPING
ONE_VALUE = {
    # It is the step, whatever else is set.
    "FrequencyEstimator": {"learning_rate"},
}
"""Settings that are not varied, and why."""


def rate() -> float:
    """Stands for a rate that changes from step to step."""
    return 0.5


def optimizer_of(combination: Combination) -> Optimizer:
    constant = combination.rate != "dynamic rate"
    return OPTIMIZERS[combination.case.kind](
        learning_rate=combination.rate_at(0, 0) if constant else rate,
        **combination.case.settings,
        **combination.common,
    )


def test_every_optimizer_has_a_case() -> None:
    with_rule = {kind for kind, optimizer in OPTIMIZERS.items() if optimizer.no_rule is None}
    missing, unknown = with_rule - set(cases.KINDS), set(cases.KINDS) - with_rule

    assert set() == missing, f"add a row to cases/optimizers.py for {missing}"
    assert set() == unknown, f"cases/optimizers.py names {unknown}, which the engine does not train"


@pytest.mark.parametrize("kind", TRAINED)
def test_every_setting_is_varied(kind: str) -> None:
    """Each field of each optimizer takes two values at least, its own ones in the quick tier."""
    fields = {field.name for field in dataclasses.fields(OPTIMIZERS[kind])} - KEEPING
    quick = constant([row for row in QUICK if row.kind == kind], fields - SHARED)
    full = constant([row for row in FULL if row.kind == kind], fields)

    assert quick | full == ONE_VALUE.get(kind, set()), "vary it in cases/optimizers.py"


def test_every_shared_setting_is_varied_in_the_quick_tier() -> None:
    """Each field that all optimizers have takes two values at least, over all of them."""
    assert constant(QUICK, SHARED) == set(), "vary it in cases/optimizers.py"


def constant(rows: list[Combination], names: set[str]) -> set[str]:
    """Returns those of the fields that have one value, or none, in all rows."""
    optimizers = [optimizer_of(row) for row in rows]
    return {name for name in names if len({getattr(one, name) for one in optimizers}) < 2}


@pytest.mark.parametrize(
    "factors, refused, rows",
    [
        (cases.QUICK_FACTORS, cases.REFUSED, QUICK),
        (conformance.FACTORS, conformance.REFUSED_HERE, conformance.quick()),
    ],
    ids=["optimizers", "conformance"],
)
def test_the_quick_tier_holds_every_pair(factors: Any, refused: Any, rows: Any) -> None:
    """Each pair of levels of different factors is in the quick tier, unless it is refused.

    The ways to clip gradients are one level there; each of them occurs.
    """
    wanted = {
        ((one, level), (other, other_level))
        for one, other in itertools.combinations(factors, 2)
        for level in factors[one]
        for other_level in factors[other]
    }
    held = set()
    for row in rows:
        levels = {factor: getattr(row, factor) for factor in factors}
        if levels.get("clipping") in cases.GRADIENT_CLIPPING:
            levels["clipping"] = "gradient"
        held |= set(pairs_of(levels))

    assert wanted - refused == held
    assert {row.clipping for row in QUICK} == set(cases.CLIPPING)


def test_every_case_meets_everything_in_the_full_tier() -> None:
    """Cases, modes and combiners take turns so that each case meets every level that it allows."""
    factors = {**cases.QUICK_FACTORS, **cases.FACTORS}
    met = {(row.optimizer, factor, getattr(row, factor)) for row in FULL for factor in factors}
    missing = [
        (case.name, factor, level)
        for case in cases.CASES.values()
        for factor, levels in factors.items()
        for level in levels
        if cases.allows(case, {factor: level})
        and (factor != "kind" or level == case.kind)
        and (case.name, factor, level) not in met
    ]

    assert missing == []
    assert {row.optimizer for row in QUICK} == set(cases.CASES)


def a_combination(case: OptimizerCase, **changed: str) -> Combination:
    """Returns the plainest combination of a case but for what is changed."""
    levels = {factor: values[0] for factor, values in cases.FACTORS.items()}
    levels |= {factor: values[0] for factor, values in case.needs.items()}
    of_case = {
        "kind": case.kind,
        "optimizer": case.name,
        "mode": "eager",
        "combiner": "sum",
        "driver": "host",
    }
    return Combination(**{**levels, **of_case, **changed})


# The steps are what they are said to be: a setting that changes nothing would test nothing.


def trained(combination: Combination) -> Any:
    """Returns what the reference holds after some steps."""
    case = combination.case
    held = {"parameters": cases.initial_weights(case, 0)}
    table = case.reference_of(held, combination.common)
    for number, step in enumerate(cases.steps(case, 0, combination.cores, 6)):
        batch, gradients = [], {}
        for core, of_features in enumerate(step.inputs):
            for position, (feature, sparse_ids) in enumerate(of_features.items()):
                occurrences = sparse(sparse_ids.indices, sparse_ids.ids, sparse_ids.weights)
                _, gains = combine(table.weights, occurrences, cases.BATCH, combination.combiner)
                batch += contributions(core, position, occurrences, gains)
                gradients[core, position] = step.gradients[core][feature]
        lr = combination.rate_at(0, number)
        table.apply(batch, gradients, lr, num_cores=combination.cores)
    return table.weights


@pytest.mark.parametrize(
    "factor, levels",
    [
        ("clipping", tuple(cases.CLIPPING)),
        ("decay", tuple(cases.DECAY)),
        ("rate", cases.RATES),
        ("cores", (1, 2)),
        ("combiner", cases.COMBINERS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_level_makes_a_difference(factor: str, levels: tuple[Any, ...]) -> None:
    """No two levels of a factor lead SGD on two cores to the same rows."""
    base = a_combination(cases.CASES["SGD"], cores=2)
    results = {level: trained(dataclasses.replace(base, **{factor: level})) for level in levels}

    for one, other in itertools.combinations(levels, 2):
        assert differ(results[one], results[other]), (one, other)


def differ(one: Any, other: Any) -> bool:
    """Returns whether two tables differ by far more than rounding."""
    return not np.allclose(one, other, rtol=1e-3)

"""Every optimizer, every setting and every pair of settings has a test case."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest

from compat_tests.cases import optimizers as cases
from compat_tests.cases import pairs_of
from compat_tests.cases.optimizers import Combination, OptimizerCase
from compat_tests.references import optimizers as references
from compat_tests.references.inputs import sparse
from compat_tests.references.lookup import combine
from compat_tests.references.training import ReferenceTable, contributions
from tf2_engine import OPTIMIZERS, Optimizer, errors
from tf2_engine.optimizers.optimizer import KEEPING

QUICK = cases.quick()
FULL = cases.full()
PER_CORE = [row for row in FULL if row.accumulation == "per core"]
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
    """An optimizer that has an update rule cannot be added without a case."""
    with_rule = {kind for kind, optimizer in OPTIMIZERS.items() if optimizer.no_rule is None}
    missing, unknown = with_rule - set(cases.KINDS), set(cases.KINDS) - with_rule

    assert set() == missing, f"add a row to cases/optimizers.py for {missing}"
    assert set() == unknown, f"cases/optimizers.py names {unknown}, which the engine does not train"


@pytest.mark.parametrize("case", cases.CASES.values(), ids=lambda case: case.name)
def test_every_case_has_a_reference(case: OptimizerCase) -> None:
    """A case names a reference, gives it all settings, and both have the same slots in order."""
    reference = references.OPTIMIZERS.get(case.reference)

    assert reference is not None, f"{case.name}: references/optimizers.py has no {case.reference!r}"
    reference.check(case.reference_settings)
    assert OPTIMIZERS[case.kind].slot_names == reference.slot_names


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


@pytest.mark.parametrize("case", cases.CASES.values(), ids=lambda case: case.name)
def test_every_own_setting_is_explicit(case: OptimizerCase) -> None:
    """A case gives every setting that is its optimizer's own, so no default can hide."""
    settings = (
        {field.name for field in dataclasses.fields(OPTIMIZERS[case.kind])} - SHARED - KEEPING
    )

    assert settings == set(case.settings), case.name


def test_the_quick_tier_holds_every_pair() -> None:
    """Each pair of levels of different factors is in the quick tier, unless it is refused.

    The ways to clip gradients are one level there; each of them occurs.
    """
    factors = cases.QUICK_FACTORS
    wanted = {
        ((one, level), (other, other_level))
        for one, other in itertools.combinations(factors, 2)
        for level in factors[one]
        for other_level in factors[other]
    }
    rows = [{factor: getattr(row, factor) for factor in factors} for row in QUICK]
    clipping = {row["clipping"] for row in rows}
    for row in rows:
        if row["clipping"] in cases.GRADIENT_CLIPPING:
            row["clipping"] = "gradient"
    held = {pair for row in rows for pair in pairs_of(row)}

    assert wanted - cases.REFUSED == held
    assert clipping == set(cases.CLIPPING)


def test_the_full_tier_holds_every_combination() -> None:
    """The full tier is the product of the factors without the refused pairs, each row once."""
    product = [
        dict(zip(cases.FACTORS, levels, strict=True))
        for levels in itertools.product(*cases.FACTORS.values())
    ]
    allowed = [
        row for row in product if not any(row.items() >= set(pair) for pair in cases.REFUSED)
    ]
    rows = [{factor: getattr(row, factor) for factor in cases.FACTORS} for row in FULL]

    assert all(row in rows for row in allowed)
    assert len(rows) == len(allowed)


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


NEEDED = [
    pytest.param(case, factor, level, id=f"{case.name}-{level}")
    for case in cases.CASES.values()
    for factor, levels in case.needs.items()
    if factor in cases.FACTORS  # what a driver refuses is tested with the drivers
    for level in cases.FACTORS[factor]
    if level not in levels
]


@pytest.mark.parametrize("case, factor, level", NEEDED)
def test_what_a_case_lacks_is_refused(case: OptimizerCase, factor: str, level: str) -> None:
    """What a case is never combined with, the engine refuses by the name of a setting."""
    row = a_combination(case, **{factor: level})

    with pytest.raises(errors.InvalidSpec, match=r"use_gradient_accumulation|`learning_rate`"):
        optimizer_of(row)


@pytest.mark.parametrize("clipping", cases.GRADIENT_CLIPPING)
def test_clipped_gradients_need_accumulation(clipping: str) -> None:
    """Gradient limits without accumulation are in no combination: the engine refuses them."""
    row = a_combination(cases.CASES["SGD"], clipping=clipping, accumulation="per core")

    with pytest.raises(errors.InvalidSpec, match=r"clip_gradient.*use_gradient_accumulation"):
        optimizer_of(row)


@pytest.mark.parametrize("case", cases.CASES.values(), ids=lambda case: case.name)
def test_everything_else_is_accepted(case: OptimizerCase) -> None:
    """The engine accepts every combination of the full tier, with this case or its siblings."""
    for row in FULL:
        if row.kind == case.kind and cases.allows(case, dataclasses.asdict(row)):
            optimizer_of(dataclasses.replace(row, optimizer=case.name))


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


def trained(combination: Combination, seed: int) -> Any:
    """Returns what the reference holds after some steps."""
    case = combination.case
    table = ReferenceTable(
        cases.initial_weights(case, seed),
        case.reference,
        case.reference_settings,
        combination.common,
    )
    for number, step in enumerate(cases.steps(case, seed, combination.cores, 6)):
        batch, gradients = [], {}
        for core, of_features in enumerate(step.inputs):
            for position, (feature, sparse_ids) in enumerate(of_features.items()):
                occurrences = sparse(sparse_ids.indices, sparse_ids.ids, sparse_ids.weights)
                _, gains = combine(table.weights, occurrences, cases.BATCH, combination.combiner)
                batch += contributions(core, position, occurrences, gains)
                gradients[core, position] = step.gradients[core][feature]
        lr = combination.rate_at(seed, number)
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
    results = {level: trained(dataclasses.replace(base, **{factor: level}), 0) for level in levels}

    for one, other in itertools.combinations(levels, 2):
        assert differ(results[one], results[other]), (one, other)


def test_every_case_makes_a_difference() -> None:
    """No two cases lead to the same rows, from the same rows on."""
    results = {
        case.name: trained(a_combination(case, cores=2), 0)
        for case in cases.CASES.values()
        if case.power_of is None  # That is a question of lookups.
    }

    for one, other in itertools.combinations(results, 2):
        if results[one].shape == results[other].shape:
            assert differ(results[one], results[other]), (one, other)


@pytest.mark.parametrize("name", sorted({row.optimizer for row in PER_CORE} - {"SGD"}))
def test_the_order_of_cores_makes_a_difference(name: str) -> None:
    """Without accumulation two cores lead elsewhere than with it, for every rule with slots."""
    row = a_combination(cases.CASES[name], cores=2)
    alone = dataclasses.replace(row, accumulation="per core")

    assert differ(trained(row, 0), trained(alone, 0))


def differ(one: Any, other: Any) -> bool:
    """Returns whether two tables differ by far more than rounding."""
    return not np.allclose(one, other, rtol=1e-3)


@functools.lru_cache
def all_steps() -> list[cases.Step]:
    """Returns the thirty steps of a table on two cores."""
    return cases.steps(cases.CASES["SGD"], 0, 2)


def ids_of(step: cases.Step) -> list[list[int]]:
    """Returns the ids of every feature of every core."""
    return [sparse_ids.ids.tolist() for core in step.inputs for sparse_ids in core.values()]


def test_the_steps_have_duplicates_and_empty_rows() -> None:
    """Every feature repeats an id in a sample and has an empty one; most steps share ids.

    Shared are ids of both features, and of both cores.
    """
    features, cores = 0, 0
    for number, step in enumerate(all_steps()):
        for core in step.inputs:
            for sparse_ids in core.values():
                pairs = list(
                    zip(sparse_ids.indices[:, 0].tolist(), sparse_ids.ids.tolist(), strict=True)
                )
                assert len(set(pairs)) < len(pairs), f"step {number}: no duplicate in a sample"
                assert set(sparse_ids.indices[:, 0]) < set(range(cases.BATCH)), f"step {number}"
        watched, liked, watched_1, liked_1 = map(set, ids_of(step))
        features += bool(watched & liked)
        cores += bool((watched | liked) & (watched_1 | liked_1))

    assert min(features, cores) > 0.8 * cases.NUM_STEPS


def test_the_steps_leave_rows_alone() -> None:
    """Every step leaves rows untouched, and the last two rows are in no step."""
    used = [set().union(*ids_of(step)) for step in all_steps()]

    assert all(len(ids) < cases.ROWS - 2 for ids in used)
    assert set().union(*used) <= set(range(cases.ROWS - 2))


def test_the_steps_have_weights_and_zeros() -> None:
    """Some weights are zero, some are not one, and some gradients of touched rows are zero."""
    weights = np.concatenate(
        [core["watched"].weights for step in all_steps() for core in step.inputs]
    )
    zero_rows = [
        set(np.flatnonzero(~core[name].any(1))) & set(step.inputs[at][name].indices[:, 0])
        for step in all_steps()
        for at, core in enumerate(step.gradients)
        for name in cases.FEATURES
    ]

    assert 0 < np.count_nonzero(weights == 0) < len(weights) / 4
    assert not np.isin(weights, (0, 1)).all()
    assert any(zero_rows)

"""Judges each step on its own: in lockstep, side B starts every step from side A's state."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    SUMMED_ROWS,
    VARIABLES,
    RecordedStep,
    Recording,
    SideDescription,
    TableDescription,
    Values,
    read_arrays,
)
from estimator_bridge.verification.compare import elements
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.arithmetic.rounded import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    known,
    rounded,
)
from estimator_bridge.verification.compare.arithmetic.update_rules import (
    ShadowInputs,
    ShadowRows,
    TableShadow,
)
from estimator_bridge.verification.compare.elements import apart
from estimator_bridge.verification.compare.network_rounding import Network, relative_error
from estimator_bridge.verification.compare.paired_steps import (
    IdsOfFeatures,
    PairedName,
    PairedStep,
    computed,
    ids_of_step,
    joined_step,
)
from estimator_bridge.verification.compare.steps import Judged
from estimator_bridge.verification.findings import Residual, StepPair
from tf2_engine.types import Array

_ROUNDINGS_OF_START = 4
"""Initial values may differ by this many roundings (two units in the last place)."""

InputsOfSides = tuple[Sequence[ShadowInputs], Sequence[ShadowInputs]]
_MARGIN = 2.0
"""A tolerance is this multiple of both sides' error bounds: the order of operations may differ."""
_DESCRIBED = 0.99
"""A side follows a table's rule if this share of the recomputed elements is within the bounds."""


class LockstepStep(NamedTuple):
    """The values from which one step is judged.

    Attributes:
        before: side A's variables when they were last read; both sides continued from them.
        inputs: the inputs of all steps after `before`, including this step; None if unknown.
        is_first: whether this is the first step after `before`.
    """

    paired: PairedStep
    perturbed: Mapping[str, Values]
    ids: IdsOfFeatures
    before: Values | None
    inputs: InputsOfSides | None
    is_first: bool


def judged_in_lockstep(
    steps: Iterable[PairedStep], a: Recording, b: Recording, perturbed_run: Recording | None
) -> Iterator[tuple[PairedStep, Iterator[Judged]]]:
    settings = a.settings, b.settings
    features = lookups.features_of(settings[0]["tables"])
    judge = _StepJudge(settings, features, Network(a, perturbed_run, _samples(a), {*features}))
    perturbed = map(joined_step, () if perturbed_run is None else perturbed_run.steps())
    before: Values | None = None
    inputs: InputsOfSides | None = ([], [])
    for position, step in enumerate(steps, -1):
        is_first = inputs is not None and not inputs[0]
        ids: IdsOfFeatures = {}
        if position >= 0:
            ids = ids_of_step(a, position, settings[0]["cores"], features)
            inputs = _with_inputs(inputs, step.sides, ids, position)
        values = next(perturbed, RecordedStep(step.number, {})).values
        yield step, judge.residuals(LockstepStep(step, values, ids, before, inputs, is_first))
        if any(VARIABLES in side.values for side in step.sides):
            before, inputs = step.sides[0].values.get(VARIABLES), ([], [])


def _with_inputs(
    earlier: InputsOfSides | None, pair: StepPair, ids: IdsOfFeatures, position: int
) -> InputsOfSides | None:
    known = {key: each for key, each in ids.items() if each is not None}
    if earlier is None or known.keys() != ids.keys():
        return None
    ours, theirs = (
        [*inputs, ShadowInputs(position, known, step.values.get(GRADIENTS, {}))]
        for inputs, step in zip(earlier, pair, strict=True)
    )
    return ours, theirs


@dataclasses.dataclass(frozen=True)
class _StepJudge:
    settings: tuple[SideDescription, SideDescription]
    features: Mapping[str, lookups.Feature]
    network: Network

    def residuals(self, step: LockstepStep) -> Iterator[Judged]:
        for group in sorted(step.paired.arrays.keys() - {VARIABLES}):
            for name, (a, b) in step.paired.arrays[group].items():
                if not name.name.endswith(SUMMED_ROWS):
                    yield group, name, self._computed(step, group, name, a, b)
        of_tables = dict(self._of_tables(step))
        rest = self._of_rest(step, of_tables.keys())
        for name, residual in itertools.chain(of_tables.items(), rest):
            yield VARIABLES, name, residual

    def _computed(
        self, step: LockstepStep, group: str, name: PairedName, a: Array, b: Array
    ) -> Residual:
        rounding: Array | float = 0.0
        if group == ACTIVATIONS and a.dtype == np.float32:
            looked_up = self._looked_up(step, name, a, b)
            if isinstance(looked_up, Residual):
                return looked_up
            rounding = looked_up
        p = step.perturbed.get(group, {}).get(name.name)
        return self.network.computed(group, name.name, a, b, p, rounding)

    def _looked_up(
        self, step: LockstepStep, name: PairedName, a: Array, b: Array
    ) -> Residual | Array | float:
        """Judges an activation. If its rows are not known exactly, only returns a tolerance."""
        tables = self.settings[0]["tables"]
        table = next((each for each in tables if each["name"] == name.table), None)
        ids = step.ids.get(name.name)
        if table is None or ids is None or step.before is None:
            return 0.0
        rows = step.before.get(table["variable"])
        if rows is None or not ids.are_rows_of(rows):
            return 0.0
        shadow = lookups.look_up_rounded(rows, ids, self.features[name.name].combiner)
        if shadow.value.shape != a.shape:
            return 0.0
        allowed = 2 * shadow.error + SMALLEST_NORMAL
        described = any(np.all(np.abs(x - shadow.value) <= allowed) for x in (a, b))
        if step.is_first and described:
            return Residual(a, b, apart(a, b), allowed, a.astype(np.float64))
        return allowed

    def _of_tables(self, step: LockstepStep) -> Iterator[tuple[PairedName, Residual]]:
        names = {name.name: name for name in step.paired.arrays.get(VARIABLES, {})}
        if step.before is None or step.inputs is None:
            return
        a, b = (side.values.get(VARIABLES, {}) for side in step.paired.sides)
        for table in self.settings[0]["tables"]:
            if table.get("rule") is None or not {table["variable"], *table["slots"]} <= {*names}:
                continue
            names_b = {name: both.name_b for name, both in names.items()}
            residuals = table_residuals(table, names_b, step.before, (a, b), step.inputs)
            for name, residual in residuals:
                yield names[name], residual

    def _of_rest(
        self, step: LockstepStep, judged: Collection[PairedName]
    ) -> Iterator[tuple[PairedName, Residual]]:
        same = same_arrays(*(side.values.get(GRADIENTS, {}) for side in step.paired.sides))
        before = step.before or {}
        for name, (a, b) in step.paired.arrays.get(VARIABLES, {}).items():
            if name in judged:
                continue
            start, p = before.get(name.name), step.perturbed.get(VARIABLES, {}).get(name.name)
            if start is None:
                yield name, _of_start(a, b)
                continue
            relative = relative_error(
                name.name, before, computed(*self.settings), step.paired.number
            )
            yield (
                name,
                self.network.updated(name.name, start, a, b, p, same=same, relative=relative),
            )


def _of_start(a: Array, b: Array) -> Residual:
    allowed = np.zeros(a.shape)
    if elements.is_float(a.dtype):
        size = np.abs(np.nan_to_num(elements.wide(a)))
        allowed = _ROUNDINGS_OF_START * elements.unit_roundoff(a.dtype) * size
    return Residual(a, b, apart(a, b), allowed, np.zeros(a.shape))


def _samples(a: Recording) -> int:
    sizes = []
    for path in a.batches()[:1]:
        for name, array in read_arrays(path).items():
            if name.endswith(".shape"):
                sizes.append(int(array[0]) if array.size else 0)
            elif not name.endswith((".indices", ".values")) and array.ndim:
                sizes.append(len(array))
    return max(sizes, default=1)


def table_residuals(
    table: TableDescription,
    names_b: Mapping[str, str],
    before: Values,
    after: tuple[Values, Values],
    inputs: tuple[Sequence[ShadowInputs], Sequence[ShadowInputs]],
) -> Iterator[tuple[str, Residual]]:
    """Yields the differences of a table, without those that unequal gradients explain."""
    shadow = TableShadow(table)
    ours_in, theirs_in = ([_of_table(each, shadow.features) for each in side] for side in inputs)
    if not all(each.fits(before[table["variable"]]) for each in (*ours_in, *theirs_in)):
        return
    same = all(
        same_arrays(a.gradients, b.gradients) for a, b in zip(ours_in, theirs_in, strict=True)
    )
    with np.errstate(all="ignore"):
        sums = shadow.row_gradients(ours_in)
        ours = shadow.applied(before, ours_in, sums)
        theirs = ours if same else shadow.advance(before, theirs_in)
        # The errors of sums have no preferred direction; the errors of a rule may have one.
        exact = [(rows, rounded(gradients.value)) for rows, gradients in sums]
        alone = shadow.applied(before, ours_in, exact)
    names = [table["variable"], *table["slots"]]
    pairs = {name: (after[0][name], after[1][names_b[name]]) for name in names}
    described = any(
        _describes(shadow, {name: pair[side] for name, pair in pairs.items()})
        for side, shadow in enumerate((ours, theirs))
    )
    for name, (a, b) in pairs.items():
        yield name, _residual(name, before[name], a, b, (ours, theirs, alone), described)


def _residual(
    name: str,
    before: Array,
    a: Array,
    b: Array,
    shadows: tuple[ShadowRows, ShadowRows, ShadowRows],
    described: bool,
) -> Residual:
    rows, (one, other, alone) = shadows[0].rows, (shadow.parts[name] for shadow in shadows)
    # Rows that the rule does not update only matter if they differ.
    others = np.setdiff1d(np.flatnonzero(elements.unequal_rows(a, b)), rows)
    every = np.concatenate([rows, others])
    start, a, b = before[every], a[every], b[every]
    n = len(rows)
    difference, moved = apart(a, b), apart(start, a)
    if described:  # float32 rounding may hide that an element moves
        moved[:n] = one.value - start[:n]
    expected = np.nan_to_num(other.value - one.value, nan=0.0, posinf=0.0, neginf=0.0)
    error = known(one.error + other.error)
    if described:
        difference[:n] -= expected
    else:
        error = error + np.abs(expected)
    allowed = np.zeros(difference.shape)
    allowed[:n] = _MARGIN * error + SMALLEST_NORMAL
    # Rows that are not in the batch have no bias: elements that neither side moves are equal.
    rounding = 2 * UNIT_ROUNDOFF * np.abs(alone.value)
    bias = np.full(difference.shape, np.inf)
    if described:
        bias[:n] = np.maximum(known(2 * alone.error - rounding), 0.0)
    return Residual(a, b, difference, allowed, moved, bias, every)


def _describes(shadow: ShadowRows, after: Values) -> bool:
    within, total = 0, 0
    for name, part in shadow.parts.items():
        off = np.abs(after[name][shadow.rows] - part.value)
        within += int(np.count_nonzero(~(off > _MARGIN * part.error + SMALLEST_NORMAL)))
        total += off.size
    return within >= _DESCRIBED * total


def same_arrays(a: Values, b: Values) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def _of_table(step: ShadowInputs, features: Collection[str]) -> ShadowInputs:
    return ShadowInputs(
        step.position,
        {key: ids for key, ids in step.ids.items() if key in features},
        {key: gradient for key, gradient in step.gradients.items() if key in features},
    )

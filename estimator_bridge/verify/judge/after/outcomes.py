"""Compares the outcomes of two trainings: metrics, predictions, exports and served answers.

What is computed from equal variables and equal data by the same ops has to be equal to the bit.
By other ops it may be off by its own rounding. Where the training has left differences within its
tolerance, what follows may differ as far as those differences carry; see `Carried`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from estimator_bridge.verify.findings import Batches, Outcome, differing
from estimator_bridge.verify.judge.after import input_data
from estimator_bridge.verify.judge.after.evaluation_metrics import compare_metrics
from estimator_bridge.verify.judge.after.sample_differences import SampleDifferences
from estimator_bridge.verify.judge.arithmetic.lookups import features_of
from estimator_bridge.verify.judge.elements import magnitude
from estimator_bridge.verify.judge.tolerance import PERTURBATION_FACTOR, allowed, ids_of_sample
from estimator_bridge.verify.record.array_files import Values, digest, read_arrays
from estimator_bridge.verify.record.outcome_files import EVALUATION, EXPORT, SERVED
from estimator_bridge.verify.record.recording import Recording, SideDescription, parts_of_tables

EQUAL_TO_THE_BIT = "computed from equal numbers by the same ops"
OWN_ROUNDING = "computed from equal numbers: its own rounding"
CARRIED = "carried on from the training"


@dataclasses.dataclass(frozen=True)
class Carried:
    """The tolerances that a training leaves to the evaluations and predictions after it.

    Attributes:
        of_outputs: returns the tolerance for outputs of magnitudes like those of some arrays, where
            the training has left differences.
        own_rounding: the same where it has left none, but other ops may round otherwise.
        of_variables: the tolerances of variables after the last step, by name.
        moved: how far a perturbed start has moved each outcome, by kind and name.
    """

    of_outputs: Callable[..., float]
    own_rounding: Callable[..., float]
    of_variables: Mapping[str, float]
    moved: Mapping[tuple[str, str], float]


def compare_outcomes(a: Recording, b: Recording, carried: Carried) -> Iterator[Outcome]:
    """Yields every outcome that both sides have, and those that one side lacks without a failure.

    A difference of data comes before what was computed from them.
    """
    names_a, names_b = a.outcomes.names(), b.outcomes.names()
    for name in dict.fromkeys([*names_a, *names_b]):
        if name in names_a and name in names_b:
            yield from _compared(_Pair(a, b, name, carried))
        elif not failures_of(b if name in names_a else a):
            side = "A" if name in names_a else "B"
            yield Outcome(name, "", 0.0, 0.0, f"only on side {side}")
    for number in range(min(len(a.exported()), len(b.exported()))):
        yield from _differing_signatures(a, b, number)


def own_rounding(a: Recording) -> Callable[..., float]:
    """Returns the tolerance for outputs that other ops compute from equal numbers.

    It is that of the lookups of a sample, on both sides; what a network makes of it is measured.
    """
    features = features_of(a.settings["tables"])
    files = (path for name in a.outcomes.names() for path in a.outcomes.batches(name))
    most = max((ids_of_sample(read_arrays(path), features) for path in files), default=1)
    return lambda *arrays: allowed(most, 0, magnitude(*arrays))


def movements(a: Recording, perturbed: Recording) -> dict[tuple[str, str], float]:
    """Returns how far a perturbed start has moved each outcome, by kind and name."""
    largest: dict[tuple[str, str], float] = {}
    for name in {*a.outcomes.names()} & {*perturbed.outcomes.names()}:
        for output, differences in _differences(a, perturbed, name).items():
            if np.isfinite(differences.largest):
                largest[name, output] = differences.largest
    return largest


def failures_of(side: Recording) -> dict[str, str]:
    """Returns the failures of a side after its training, by the names of outcomes.

    The name "" is that of the program as a whole, if it failed elsewhere.
    """
    failed = side.outcomes.failed()
    if side.failure is not None and not failed:
        failed = {"": side.failure}
    return failed


def same_ops(a: SideDescription, b: SideDescription) -> bool:
    """Returns whether two sides run the same program by the same ops."""
    keys = ("engine", "tensorflow", "use_tpu", "where", "cores", "quirks")
    programs = [side["program"].rpartition("SHA-256 ")[2] for side in (a, b)]
    return all(a.get(key) == b.get(key) for key in keys) and programs[0] == programs[1]


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An outcome that both sides have."""

    a: Recording
    b: Recording
    name: str
    carried: Carried

    def data(self) -> Batches:
        """Compares the data."""
        return input_data.compare_of_outcome(self.a, self.b, self.name)

    def tolerance(self, output: str, scale: float) -> tuple[float, str]:
        """Returns the tolerance of an output of a magnitude, and its reason."""
        equal = self.equal_inputs()
        if equal and same_ops(self.a.settings, self.b.settings):
            return 0.0, EQUAL_TO_THE_BIT
        sample = np.array([scale], np.float32)
        base = self.carried.own_rounding if equal else self.carried.of_outputs
        moved = self.carried.moved.get((self.name, output), 0.0)
        why = OWN_ROUNDING if equal else CARRIED
        return base(sample, sample) + PERTURBATION_FACTOR * moved, why

    def equal_inputs(self) -> bool:
        """Returns whether the variables and the data of both sides are equal to the bit."""
        return self.data().equal and _equal_variables(self.a, self.b, self.name)


def _compared(pair: _Pair) -> Iterator[Outcome]:
    read, kind = pair.data(), pair.name.partition("-")[0]
    if not read.equal:
        yield Outcome(pair.name, "data", np.inf, 0.0, str(read), cause=f"{kind} data")
    if kind == EVALUATION:
        yield from compare_metrics(pair.a, pair.b, pair.name, pair.tolerance)
        return
    if kind == EXPORT:
        yield from _exported(pair)
        return
    for output, differences in _differences(pair.a, pair.b, pair.name).items():
        yield differences.outcome(pair.name, output, *pair.tolerance(output, differences.scale))


def _differences(a: Recording, b: Recording, name: str) -> dict[str, SampleDifferences]:
    """Compares the arrays of an outcome, chunk by chunk; returns their differences by name."""
    by_output: dict[str, SampleDifferences] = {}
    none: Values = {}
    chunks = itertools.zip_longest(a.outcomes.chunks(name), b.outcomes.chunks(name), fillvalue=none)
    for number, (chunk_a, chunk_b) in enumerate(chunks):
        for output in dict.fromkeys([*chunk_a, *chunk_b]):
            differences = by_output.setdefault(output, SampleDifferences(is_new=not number))
            differences.add(chunk_a.get(output), chunk_b.get(output))
    return by_output


def _equal_variables(a: Recording, b: Recording, name: str) -> bool:
    """Returns whether both sides have the same variables, to the bit, when an outcome begins.

    Those of one side alone do not count, unless they are tables: checkpoints hold slots and
    counters that evaluations do not read.
    """
    # What is served was exported before.
    name = name.replace(SERVED, EXPORT)
    digests = [
        _by_tables(side.outcomes.about(name).get("variables", {}), side.settings) for side in (a, b)
    ]
    tables = [(table["name"], None) for table in a.settings["tables"]]
    common = digests[0].keys() & digests[1].keys()
    return (
        bool(common)
        and all(table in common for table in tables)
        and all(digests[0][key] == digests[1][key] for key in common)
    )


def _by_tables(
    digests: Mapping[str, str], settings: SideDescription
) -> dict[tuple[str, str | None], str]:
    """Returns digests by keys that both sides share: tables and their slots, or names."""
    keys = parts_of_tables(settings["tables"])
    return {keys.get(name, (name, "")): digest for name, digest in digests.items()}


def _exported(pair: _Pair) -> Iterator[Outcome]:
    """Yields the exported variables.

    A side that exports what its checkpoint holds has the tolerance that its training left. If one
    side alone does, the export is at fault.
    """
    kept = [_kept(side, pair.name) for side in (pair.a, pair.b)]
    for output, differences in _differences(pair.a, pair.b, pair.name).items():
        allowed, why = pair.tolerance(output, differences.scale)
        if why == OWN_ROUNDING:  # It is copied, not computed.
            allowed = 0.0
        if why == CARRIED:
            allowed = pair.carried.of_variables.get(output, allowed)
        outcome = differences.outcome(pair.name, output, allowed, why)
        keeps_a, keeps_b = (side.get(output) for side in kept)
        if {keeps_a, keeps_b} == {True, False} and not outcome.note:
            at_fault = "A" if keeps_b else "B"
            note = f"side {at_fault} exports other values than its checkpoint holds"
            outcome = outcome._replace(note=note, cause="export")
        yield outcome


def _kept(side: Recording, name: str) -> dict[str, bool]:
    """Returns for each exported variable whether it equals that of the checkpoint."""
    before = side.outcomes.about(name).get("variables", {})
    return {
        output: before[output] == digest({"": array})
        for chunk in side.outcomes.chunks(name)
        for output, array in chunk.items()
        if output in before
    }


def _differing_signatures(a: Recording, b: Recording, number: int) -> Iterator[Outcome]:
    """Yields the signatures of an exported model whose inputs or outputs differ."""
    kind = f"{SERVED}-{number}"
    (types_a, _), (types_b, _) = a.signatures(number), b.signatures(number)
    # A model that could not be loaded is not compared.
    if not types_a or not types_b:
        return
    for name in sorted({*types_a, *types_b}):
        if name not in types_a or name not in types_b:
            side = "A" if name in types_a else "B"
            yield Outcome(kind, name, 0.0, 0.0, f"a signature on side {side} alone")
        of_a, of_b = types_a.get(name, {}), types_b.get(name, {})
        for key, one, other in differing(of_a, of_b) if of_a and of_b else ():
            yield Outcome(kind, name, 0.0, 0.0, f"{key}: {one} on A, {other} on B")

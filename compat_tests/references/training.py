"""Trains one table in float64, in the order of operations of the engine.

For each row of a batch:

    1. sum the gradients of its occurrences over the whole global batch
    2. clip the sum to the gradient limits
    3. decay the weight:  w <- w - factor * w     (times the learning rate on request)
    4. apply the optimizer's rule to the decayed weight
    5. clip the weight to the weight limits; slots are never clipped

Source: the comments on OptimizationParameters (clipping_limits, gradient_clipping_limits,
weight_decay_factor, GradientAccumulationStatus) in optimization_parameters.proto;
DecoupledWeightDecayExtension, which that proto names, for decay before update; the references
in TensorFlow's tpu_embedding_base_test.py for the sum over the global batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from compat_tests.references.inputs import Occurrence
from compat_tests.references.optimizers import OPTIMIZERS
from compat_tests.references.placement import owner_core
from compat_tests.references.tolerance import assert_close, assert_lookup

Array = npt.NDArray[np.float64]
Gradients = Mapping[tuple[int, int], npt.ArrayLike | None]


class Contribution(NamedTuple):
    """One occurrence seen from the backward pass.

    Attributes:
        core: the core (replica) whose batch it is in, counted over all hosts.
        feature: the feature's place in the feature order.
        cell: the output position whose gradient it receives.
        id: the table row.
        gain: the factor on that gradient, as `lookup.combine` returned it.
    """

    core: int
    feature: int
    cell: int
    id: int
    gain: float


@dataclass(frozen=True)
class Common:
    """The settings every optimizer has; None means off, and so does a decay of 0."""

    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool = False


class Lookup(NamedTuple):
    """What an implementation made of one feature of a table on one core.

    Attributes:
        feature: the feature's place in the feature order.
        occurrences: what was looked up.
        activation: what came of it, [*output shape, dim].
        gradient: what was sent back for it, of the same shape.
    """

    core: int
    feature: int
    occurrences: Sequence[Occurrence]
    activation: npt.NDArray[np.float32]
    gradient: npt.NDArray[np.float32]


def contributions(
    core: int, feature: int, occurrences: Sequence[Occurrence], gains: Sequence[float]
) -> list[Contribution]:
    """Returns the occurrences of one feature on one core with the gains of their lookup."""
    return [
        Contribution(core, feature, cell, id_, gain)
        for (cell, id_, _), gain in zip(occurrences, gains, strict=True)
    ]


class ReferenceTable:
    """One table with its slots, trained batch by batch.

    Attributes:
        weights: [num_rows, dim] float64.
        slots: for each slot, [num_rows, dim] float64.
        steps: batches applied so far.
        updates_of_row: [num_rows] integers, the optimizer updates each row has had so far;
            a row with none still has its starting values, bit for bit, in any implementation.
        n_terms: the most gradients ever summed into one row of one batch.
        scales: for "weights" and each slot, the largest magnitude so far, start included.
    """

    def __init__(
        self,
        initial: npt.ArrayLike,
        optimizer: str,
        settings: Mapping[str, float],
        common: Mapping[str, Any] | None = None,
        *,
        slots: Mapping[str, npt.ArrayLike] | None = None,
        round_settings: bool = True,
    ) -> None:
        """Makes a table with its slots.

        Args:
            initial: [num_rows, dim] floats; copied.
            optimizer: a name in `optimizers.OPTIMIZERS`.
            settings: the optimizer's settings, all of them.
            common: the fields of `Common` that differ from their defaults.
            slots: [num_rows, dim] of each slot, to go on from a trained state, for instance
                from the state of an implementation, to compare single steps; by default every
                slot has the optimizer's initial value.
            round_settings: rounds settings and learning rates to float32 first, because the
                proto's fields and the op's learning rates are float32. It matters: 1 - beta_2
                for a beta_2 of 0.999 changes by 13 parts in a million.

        Raises:
            ValueError: settings that do not fit, or that need gradient accumulation (gradient
                clipping and non-lazy Adam do) while it is off.
        """
        self._round = _as_float32 if round_settings else _as_given
        reference = OPTIMIZERS[optimizer]
        reference.check(settings)
        self._rule = reference.update
        self._settings = {key: self._round(value) for key, value in settings.items()}
        self._common = Common(**{key: self._round(value) for key, value in (common or {}).items()})
        # Without the key the optimizer has no such setting: only touched rows are updated.
        self._updates_every_row = not settings.get("lazy_adam", True)
        if not self._common.use_gradient_accumulation:
            if self._updates_every_row:
                raise ValueError("`lazy_adam=False` needs `use_gradient_accumulation=True`.")
            if self._gradient_limits != (None, None):
                raise ValueError("Gradient clipping needs `use_gradient_accumulation=True`.")

        self.weights = np.array(initial, dtype=np.float64)
        starts = slots or {
            name: np.full_like(self.weights, start)
            for name, start in reference.initial_slots(self._settings).items()
        }
        if set(starts) != set(reference.slot_names):
            raise ValueError(f"slots {sorted(starts)} given for {reference.slot_names}.")
        self.slots = {
            name: np.array(starts[name], dtype=np.float64) for name in reference.slot_names
        }
        self.steps = 0
        self.n_terms = 0
        self.updates_of_row = np.zeros(len(self.weights), dtype=np.int64)
        self.scales: dict[str, float] = {}
        self._remember_scales(range(len(self.weights)))

    @property
    def updates(self) -> int:
        """The most updates any one row has had; above `steps` only without accumulation."""
        return int(self.updates_of_row.max())

    @property
    def _gradient_limits(self) -> tuple[float | None, float | None]:
        return self._common.clip_gradient_min, self._common.clip_gradient_max

    def apply(
        self,
        batch: Iterable[Contribution],
        grads: Gradients,
        lr: float,
        *,
        num_cores: int = 1,
        cores_per_host: int | None = None,
        sharding: str = "div",
    ) -> None:
        """Trains on one global batch.

        Every row that occurs in the batch is updated, even by a gradient of zeros or with a
        gain of zero; the others are left alone, except that non-lazy Adam updates all rows,
        with a gradient of zeros for those that do not occur.

        Without gradient accumulation each core's sum is a whole update of its own (decay and
        weight clipping included), the core that holds the row first, the others ascending.

        Args:
            batch: (core, feature, cell, id, gain) of every occurrence of every feature of this
                table on every core, in any order.
            grads: for each (core, feature), [cells, dim] floats, the gradient of its
                activations; more leading dimensions are flattened into cells; None is zeros.
            lr: this step's learning rate; for FrequencyEstimator the global step.
            num_cores: cores of all hosts.
            cores_per_host: None when all cores are on one host.
            sharding: "div" or "mod", where the rows of several hosts are.

        Raises:
            IndexError: a row, cell or core that does not exist.
        """
        lr = self._round(lr)
        dim = self.weights.shape[1]
        flat = {
            key: None if grad is None else np.asarray(grad, dtype=np.float64).reshape(-1, dim)
            for key, grad in grads.items()
        }

        sums: dict[int, dict[int, Array]] = {}  # row -> core -> [dim]
        terms: dict[int, int] = {}  # row -> number of gradients
        for core, feature, cell, row, gain in sorted(batch):
            if not 0 <= row < len(self.weights):
                raise IndexError(f"row {row} is outside the {len(self.weights)} of the table.")
            if not 0 <= core < num_cores:
                raise IndexError(f"core {core} is outside the {num_cores} cores.")
            grad = flat[core, feature]
            if cell < 0 or (grad is not None and cell >= len(grad)):
                raise IndexError(f"cell {cell} of feature {feature} has no gradient.")
            term = np.zeros(dim) if grad is None else gain * grad[cell]
            cores = sums.setdefault(row, {})
            cores[core] = cores.get(core, np.zeros(dim)) + term
            terms[row] = terms.get(row, 0) + 1

        rows = range(len(self.weights)) if self._updates_every_row else sorted(sums)
        for row in rows:
            cores = sums.get(row, {})
            if self._common.use_gradient_accumulation:
                self._update(row, sum(cores.values(), np.zeros(dim)), lr)
            else:
                owner = owner_core(row, len(self.weights), num_cores, cores_per_host, sharding)
                for core in sorted(cores, key=lambda core: (core != owner, core)):
                    self._update(row, cores[core], lr)

        self.steps += 1
        self.n_terms = max([self.n_terms, *terms.values()])
        self._remember_scales(rows)

    def assert_held(
        self, held: Mapping[str, npt.ArrayLike], where: str, cancelled: float = 0.0
    ) -> None:
        """Compares the rows and slots that an implementation holds, within what float32 is off.

        Args:
            held: "parameters" and every slot, [num_rows, dim] each.
            cancelled: the magnitude of terms that a sum may have lost by cancelling.
        """
        expected = {"parameters": self.weights, **self.slots}
        assert set(held) == set(expected), where
        for kind, values in expected.items():
            assert_close(
                values,
                held[kind],
                n_terms=self.n_terms,
                steps=self.updates,
                scale=self.scales["weights" if kind == "parameters" else kind] + cancelled,
                where=f"{where}, {kind}",
            )

    def _update(self, row: int, g: Array, lr: float) -> None:
        """Applies one finished sum to one row: clip, decay, rule, clip."""
        common = self._common
        g = _clip(g, *self._gradient_limits)
        w = self.weights[row].copy()
        if common.weight_decay_factor:
            factor = common.weight_decay_factor
            if common.multiply_weight_decay_factor_by_learning_rate:
                factor = factor * lr
            w = w - factor * w
        old = {name: slot[row].copy() for name, slot in self.slots.items()}
        # A division by zero gives NaN on the device, and so it does here.
        with np.errstate(divide="ignore", invalid="ignore"):
            w, new = self._rule(w, old, g, np.float64(lr), self._settings)
        self.weights[row] = _clip(w, common.clip_weight_min, common.clip_weight_max)
        for name, slot in self.slots.items():
            slot[row] = new[name]
        self.updates_of_row[row] += 1

    def _remember_scales(self, rows: Iterable[int]) -> None:
        for name, values in {"weights": self.weights, **self.slots}.items():
            for row in rows:
                largest = float(np.max(np.abs(values[row])))
                self.scales[name] = max(self.scales.get(name, 0.0), largest)


def assert_step(
    tables: Sequence[ReferenceTable],
    lookups: Iterable[Lookup],
    after: Mapping[str, npt.ArrayLike],
    lr: float,
    where: str,
    *,
    rows: npt.ArrayLike,
    n_terms: int,
    combiner: str = "sum",
    steps: int = 0,
    **placement: Any,
) -> None:
    """Compares one step of a table with the references, which make the same step.

    Args:
        tables: what the table is compared with after the step, each with the state before it.
        lookups: all features of the table on all cores.
        after: what the implementation holds after the step, as for `ReferenceTable.assert_held`.
        rows: the rows that were looked up.
        n_terms: the most ids of a cell.
        steps: the updates that the rows went through before the lookup, see `tolerance.allowed`.
        **placement: `num_cores` and so on, as for `ReferenceTable.apply`.
    """
    batch, gradients = [], {}
    for core, feature, occurrences, activation, gradient in lookups:
        of_core = f"{where}, activations of feature {feature} on core {core}"
        assert activation.shape == gradient.shape, of_core
        gains = assert_lookup(
            rows, occurrences, combiner, activation, n_terms=n_terms, steps=steps, where=of_core
        )
        batch += contributions(core, feature, occurrences, gains)
        gradients[core, feature] = gradient
    for table in tables:
        table.apply(batch, gradients, lr, **placement)
        table.assert_held(after, f"{where}, after {table.steps} steps of the reference")


def _clip(values: Array, low: float | None, high: float | None) -> Array:
    """Holds each element within the limits that are set; NaN stays NaN."""
    if low is not None:
        values = np.maximum(values, low)
    if high is not None:
        values = np.minimum(values, high)
    return values


def _as_float32(value: Any) -> Any:
    """Rounds a number as a float field of a proto does; flags and None pass through."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return value
    return float(np.float32(value))


def _as_given(value: Any) -> Any:
    return value

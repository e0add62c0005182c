"""Trains a small model with tables in NumPy, and writes side A's recording without TensorFlow.

Five tables with different rules and lookups feed a network with one hidden layer. Some rows of the
tables are frequent. The network's optimizer is the legacy Adam, with variables for the powers of
the betas. Side A computes in float64 from float32 numbers, by the rules of `references`, and rounds
each array once. The recording has the same form as one of the bridge.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from compat_tests.references.optimizers import OPTIMIZERS
from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    MEASURED,
    PREDICTION,
    VARIABLES,
    RecordingWriter,
    TableDescription,
    Values,
)
from estimator_bridge.recording.replay import Bag, ReplayBatch
from estimator_bridge.verification.perturbation import ACTIVATION_ULPS, VARIABLE_ULPS, perturbed

DIM, HIDDEN = 4, 8
BETA_1, BETA_2, EPSILON, DENSE_RATE = 0.9, 0.999, 1e-7, 0.003
ADAM = MappingProxyType({"momenta": "Adam", "velocities": "Adam_1"})
"""Maps the names of Adam's slots in the rule to their names in the network's optimizer."""
DENSE = ("hidden/kernel", "hidden/bias", "logits/kernel")


class Table(NamedTuple):
    """A table. `features` has each feature's sequence length, or 0, and weights' key, or None."""

    rows: int
    kind: str
    settings: Mapping[str, Any]
    combiner: str
    rate: float
    falls: float
    features: Mapping[str, tuple[int, str | None]]


_COMMON = MappingProxyType(
    dict.fromkeys(("clip_weight_min", "clip_weight_max", "clip_gradient_min", "clip_gradient_max"))
    | {"weight_decay_factor": None, "multiply_weight_decay_factor_by_learning_rate": False}
)
TABLES = MappingProxyType(
    {
        "users": Table(
            300,
            "Adagrad",
            {"initial_accumulator_value": 0.1},
            "sum",
            0.05,
            0.9,
            {"user": (0, None)},
        ),
        "items": Table(
            2000,
            "Adam",
            {
                "beta_1": 0.9,
                "beta_2": 0.999,
                "epsilon": 1e-5,
                "sum_inside_sqrt": True,
                "lazy_adam": True,
            },
            "mean",
            0.01,
            1.0,
            {"shown": (0, None), "clicked": (3, None)},
        ),
        "words": Table(
            80,
            "SGD",
            {"weight_decay_factor": 0.01, "clip_weight_min": -0.3, "clip_weight_max": 0.3},
            "sum",
            0.5,
            1.0,
            {"query": (0, "query_weights")},
        ),
        "places": Table(
            12,
            "SGD",
            {"clip_gradient_min": -2e-3, "clip_gradient_max": 2e-3},
            "mean",
            0.3,
            0.95,
            {"place": (0, "place_weights")},
        ),
        # Some ids of this table are out of range; side A drops them.
        "rare": Table(40, "SGD", {}, "sum", 0.1, 1.0, {"seldom": (0, None)}),
    }
)


def description(name: str, steps: int) -> TableDescription:
    table = TABLES[name]
    rates = [float(np.float32(table.rate * table.falls**step)) for step in range(steps)]
    slots = OPTIMIZERS[table.kind].slot_names
    return {
        "name": name,
        "variable": f"{name}/weights",
        "slots": {f"{name}/weights/{slot}": slot for slot in slots},
        "combiner": table.combiner,
        "optimizer": table.kind,
        "features": dict(table.features),
        "rule": {
            "kind": table.kind,
            "settings": {**_COMMON, **table.settings},
            "rates": rates,
            "multipliers": [],
        },
    }


def batch_of(number: int, size: int) -> Values:
    """Creates a batch of sparse features, weights and labels."""
    rng = np.random.default_rng([7, number])

    def sparse(key: str, present: Any, limit: int) -> Values:
        indices = np.argwhere(present)
        # Half of the ids are among the first few, so that some rows occur often.
        few = rng.random(len(indices)) < 0.5
        ids = rng.integers(0, np.where(few, min(limit, 9), limit))
        shape = np.array(present.shape, np.int64)
        names = (f"features/{key}.{part}" for part in ("indices", "values", "shape"))
        return dict(zip(names, (indices, ids.astype(np.int64), shape), strict=True))

    batch = sparse("user", np.ones((size, 1), bool), TABLES["users"].rows)
    for key, table, width in (
        ("shown", "items", 4),
        ("clicked", "items", 5),
        ("query", "words", 3),
        ("place", "places", 2),
    ):
        present = rng.random((size, width)) < 0.7
        if key == "clicked":  # a sequence has no gaps
            present = np.sort(present, 1)[:, ::-1]
        batch |= sparse(key, present, TABLES[table].rows)
    batch |= sparse("seldom", rng.random((size, 2)) < 0.5, TABLES["rare"].rows + 4)
    for key in ("query", "place"):
        count = len(batch[f"features/{key}.values"])
        weights = rng.integers(1, 9, count).astype(np.float32) / 4
        for part in ("indices", "shape"):
            batch[f"features/{key}_weights.{part}"] = batch[f"features/{key}.{part}"]
        batch[f"features/{key}_weights.values"] = weights
    batch["labels"] = rng.integers(0, 2, size).astype(np.float32)
    return batch


def initial() -> Values:
    rng = np.random.default_rng(1)
    values: Values = {"global_step": np.int64(0)}
    for name, table in TABLES.items():
        rows = (rng.normal(size=(table.rows, DIM)) * 0.2).astype(np.float32)
        values[f"{name}/weights"] = rows
        reference = OPTIMIZERS[table.kind]
        for slot, value in reference.initial_slots({**table.settings}).items():
            values[f"{name}/weights/{slot}"] = np.full_like(rows, value)
    inputs = (len(TABLES) + 3) * DIM  # the sequence has three positions
    shapes = {
        "hidden/kernel": (inputs, HIDDEN),
        "hidden/bias": (HIDDEN,),
        "logits/kernel": (HIDDEN, 1),
    }
    for name in DENSE:
        values[name] = (rng.normal(size=shapes[name]) * 0.4).astype(np.float32)
        for slot in ADAM.values():
            values[f"{name}/{slot}"] = np.zeros(shapes[name], np.float32)
    return values | {"beta1_power": np.float32(BETA_1), "beta2_power": np.float32(BETA_2)}


def in_table(bag: Bag, rows: int) -> Bag:
    """Drops ids that are out of range for a table."""
    return kept(bag, np.flatnonzero(bag.ids < rows))


def kept(bag: Bag, positions: Any) -> Bag:
    """Returns the part of a bag at some positions of its ids, in ascending order."""
    counts = np.diff(np.append(bag.offsets, len(bag.ids)))
    cells = np.repeat(np.arange(len(counts)), counts)[positions]
    offsets = np.searchsorted(cells, np.arange(len(counts)))
    weights = None if bag.weights is None else bag.weights[positions]
    return bag._replace(ids=bag.ids[positions], offsets=offsets, weights=weights)


def gains_of(bag: Bag, combiner: str | None) -> tuple[Any, Any]:
    """Returns each id's cell, and its share of the activation, which is its weight in sequences."""
    counts = np.diff(np.append(bag.offsets, len(bag.ids)))
    cells = np.repeat(np.arange(len(counts)), counts)
    weights = np.ones(len(bag.ids)) if bag.weights is None else bag.weights.astype(np.float64)
    if combiner == "sum" or len(bag.shape) > 1:
        return cells, weights
    squares = weights if combiner == "mean" else np.square(weights)
    total = np.bincount(cells, squares, len(counts))
    return cells, weights / (total if combiner == "mean" else np.sqrt(total))[cells]


class Result(NamedTuple):
    """The result of `network`; `of_activations` and `of_dense` are gradients."""

    loss: Any
    logits: Any
    of_activations: dict[str, Any]
    of_dense: dict[str, Any]


def network(activations: Mapping[str, Any], dense: Mapping[str, Any], labels: Any) -> Result:
    """Computes the loss and its gradients, in the dtype of the activations."""
    flat = {key: activations[key].reshape(len(labels), -1) for key in sorted(activations)}
    x = np.concatenate(list(flat.values()), 1)
    hidden = x @ dense["hidden/kernel"] + dense["hidden/bias"]
    active = np.maximum(hidden, 0)
    logits = (active @ dense["logits/kernel"])[:, 0]
    p = 1 / (1 + np.exp(-logits))
    loss = np.mean(np.logaddexp(0, logits) - labels * logits)
    back = ((p - labels) / len(labels))[:, np.newaxis]
    of_hidden = (back @ dense["logits/kernel"].T) * (hidden > 0)
    of_x = of_hidden @ dense["hidden/kernel"].T
    ends = np.cumsum([part.shape[1] for part in flat.values()])[:-1]
    parts = zip(flat, np.split(of_x, ends, 1), strict=True)
    of_dense = {
        "hidden/kernel": x.T @ of_hidden,
        "hidden/bias": of_hidden.sum(0),
        "logits/kernel": active.T @ back,
    }
    of_activations = {key: part.reshape(activations[key].shape) for key, part in parts}
    return Result(loss, logits, of_activations, of_dense)


def record(directory: pathlib.Path, *, steps: int, batch_size: int) -> None:
    """Writes side A's recording, and the measurement of rounding that `record` makes."""
    for is_measure, place in ((False, directory), (True, directory / MEASURED)):
        _Trainer(place, steps, batch_size, is_measure).run()


class _Trainer:
    """Trains side A. To measure rounding, also runs each step with changed last bits."""

    def __init__(
        self, directory: pathlib.Path, steps: int, batch_size: int, is_measure: bool
    ) -> None:
        self._writer = RecordingWriter(directory)
        self._is_measure = is_measure
        self._size, self._steps = batch_size, steps
        self._tables = [description(name, steps) for name in TABLES]

    def run(self) -> None:
        self._writer.note("settings", _settings(self._tables))
        if self._is_measure:
            self._writer.perturbed(dict.fromkeys(DENSE, VARIABLE_ULPS), [])
        state, number = initial(), self._writer.input(0)
        self._writer.step(0, {VARIABLES: state})
        for position in range(self._steps):
            batch = ReplayBatch(batch_of(position, self._size), self._tables)
            if self._is_measure:
                self._writer.step(position + 1, self._computed(position, state, batch, 1))
            values = self._computed(position, state, batch, 0)
            if not self._is_measure:
                self._writer.batch(batch.arrays, number)
                self._writer.step(position + 1, values)
            state = values[VARIABLES]
        self._predict(state)

    def _computed(
        self, position: int, state: Values, batch: ReplayBatch, changed: int
    ) -> dict[str, Values]:
        """Runs a step. `changed` is 1 to change the last bits of values, otherwise 0."""
        state = {n: perturbed(n, a, changed * (n in DENSE)) for n, a in state.items()}
        activations = {
            key: perturbed(f"{key} {position}", each, changed * ACTIVATION_ULPS)
            for key, each in self._activations(state, batch).items()
        }
        wide = {key: each.astype(np.float64) for key, each in activations.items()}
        dense = {name: state[name].astype(np.float64) for name in DENSE}
        result = network(wide, dense, batch.arrays["labels"].astype(np.float64))
        gradients = {
            key: each.astype(np.float32)
            for key, each in {**result.of_activations, **result.of_dense}.items()
        }
        after = dict(state)
        for table in self._tables:
            after |= updated(table, position, state, batch, gradients)
        after |= _adam(state, gradients)
        after["global_step"] = np.int64(position + 1)
        return {
            LOSS: {LOSS: np.float32(result.loss)},
            ACTIVATIONS: activations,
            GRADIENTS: gradients,
            VARIABLES: after,
        }

    def _activations(self, state: Values, batch: ReplayBatch) -> Values:
        return {
            key: look_up(batch.bag(key), state[f"{name}/weights"], table.combiner)
            for name, table in TABLES.items()
            for key in table.features
        }

    def _predict(self, state: Values) -> None:
        batch = ReplayBatch(batch_of(10_000, self._size), self._tables)
        activations = {
            key: perturbed(key, each, self._is_measure * ACTIVATION_ULPS).astype(np.float64)
            for key, each in self._activations(state, batch).items()
        }
        result = network(activations, state, batch.arrays["labels"])
        name = self._writer.outcomes.begin(PREDICTION)
        if not self._is_measure:
            self._writer.outcomes.batch(name, 0, batch.arrays)
        logits = result.logits.astype(np.float32)
        for chunk, begin in enumerate(range(0, self._size, 1000)):
            self._writer.outcomes.chunk(name, chunk, {"logit": logits[begin : begin + 1000]})
        self._writer.outcomes.about(name, {"samples": self._size})


def look_up(bag: Bag, rows: Any, combiner: str) -> Any:
    """Looks up in float64, and rounds once: [*shape, DIM] float32."""
    bag = in_table(bag, len(rows))
    cells, gains = gains_of(bag, combiner)
    sums = np.zeros((int(np.prod(bag.shape)), DIM))
    np.add.at(sums, cells, gains[:, np.newaxis] * rows[bag.ids])
    return sums.astype(np.float32).reshape(*bag.shape, DIM)


def updated(
    table: TableDescription, position: int, state: Values, batch: ReplayBatch, gradients: Values
) -> Values:
    """Computes the rows and slots of a table after a step."""
    rule = table["rule"]
    assert rule is not None
    settings = {k: _float32(v) for k, v in rule["settings"].items()}
    sums = np.zeros(state[table["variable"]].shape)
    seen = np.zeros(len(sums), bool)
    for key in table["features"]:
        bag = in_table(batch.bag(key), len(sums))
        cells, gains = gains_of(bag, table["combiner"])
        np.add.at(sums, bag.ids, gains[:, np.newaxis] * gradients[key].reshape(-1, DIM)[cells])
        seen[bag.ids] = True
    low, high = settings["clip_gradient_min"], settings["clip_gradient_max"]
    if low is not None:
        sums = np.clip(sums, low, high)
    w = state[table["variable"]][seen].astype(np.float64)
    w -= (settings["weight_decay_factor"] or 0.0) * w
    slots = {slot: state[name][seen].astype(np.float64) for name, slot in table["slots"].items()}
    update = OPTIMIZERS[rule["kind"]].update
    w, slots = update(w, slots, sums[seen], rule["rates"][position], settings)  # type: ignore[arg-type]
    if settings["clip_weight_min"] is not None:
        w = np.clip(w, settings["clip_weight_min"], settings["clip_weight_max"])
    after = {}
    for name, value in {
        table["variable"]: w,
        **{n: slots[s] for n, s in table["slots"].items()},
    }.items():
        after[name] = state[name].copy()
        after[name][seen] = value
    return after


def _adam(state: Values, gradients: Values) -> Values:
    """Updates the network as the legacy Adam does, from the stored powers of the betas."""
    beta_1, beta_2 = (float(np.float32(beta)) for beta in (BETA_1, BETA_2))
    power_1, power_2 = (float(state[f"beta{i}_power"]) for i in (1, 2))
    rate = DENSE_RATE * np.sqrt(1 - power_2) / (1 - power_1)
    after: Values = {}
    settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": EPSILON, "sum_inside_sqrt": False}
    for name in DENSE:
        slots = {rule: state[f"{name}/{slot}"].astype(np.float64) for rule, slot in ADAM.items()}
        gradient = gradients[name].astype(np.float64)
        update = OPTIMIZERS["Adam"].update
        w, slots = update(state[name].astype(np.float64), slots, gradient, rate, settings)
        after[name] = w.astype(np.float32)
        after |= {f"{name}/{slot}": slots[rule].astype(np.float32) for rule, slot in ADAM.items()}
    after["beta1_power"] = np.float32(power_1 * beta_1)
    after["beta2_power"] = np.float32(power_2 * beta_2)
    return after


def _settings(tables: list[TableDescription]) -> dict[str, Any]:
    return {
        "program": "bag_model",
        "side": "bridge",
        "engine": "bridge",
        "tensorflow": "none",
        "use_tpu": True,
        "where": "NumPy",
        "cores": 1,
        "quirks": "stock",
        "every": 1,
        "settings": [],
        "tables": tables,
        "config": {},
    }


def _float32(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value

"""A port of `bag_model` to plain NumPy in float32, with one place for each mistake of porting.

It shares nothing with side A but the network: it sums in another order and rounds every operation.
Each attribute is what a porter decides, and has the right value.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from compat_tests.support.bag_model import (
    BETA_1,
    BETA_2,
    DENSE,
    DENSE_RATE,
    DIM,
    EPSILON,
    TABLES,
    in_table,
    network,
)
from estimator_bridge.recording import Bag, Replay, State
from estimator_bridge.recording.files import TableDescription
from estimator_bridge.recording.replay import ReplayBatch, ReplayStep

F = np.float32
Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """The update of the rows of a table that occur in a batch.

    Attributes:
        w: [n, dim], before the update.
        slots: by name, [n, dim].
        g: [n, dim], the sum of the gradients of each row.
        rate: of the step.
        step: its number, from 1.
    """

    w: Any
    slots: Mapping[str, Any]
    g: Any
    rate: Any
    settings: Settings
    step: int


Rule = Callable[[Row], tuple[Any, dict[str, Any]]]


def adagrad(row: Row) -> tuple[Any, dict[str, Any]]:
    a = row.slots["accumulators"] + row.g * row.g
    return row.w - row.rate * row.g / np.sqrt(a), {"accumulators": a}


def adam(row: Row) -> tuple[Any, dict[str, Any]]:
    beta_1, beta_2 = F(row.settings["beta_1"]), F(row.settings["beta_2"])
    epsilon = F(row.settings["epsilon"])
    m = row.slots["momenta"] + (F(1) - beta_1) * (row.g - row.slots["momenta"])
    v = beta_2 * row.slots["velocities"] + (F(1) - beta_2) * row.g * row.g
    inside = np.sqrt(v + epsilon * epsilon)
    scale = inside if row.settings["sum_inside_sqrt"] else np.sqrt(v) + epsilon
    return row.w - row.rate * (m / scale), {"momenta": m, "velocities": v}


def sgd(row: Row) -> tuple[Any, dict[str, Any]]:
    return row.w - row.rate * row.g, {}


RULES: Mapping[str, Rule] = {"Adagrad": adagrad, "Adam": adam, "SGD": sgd}


def in_order(ids: Any, terms: Any) -> tuple[Any, Any]:
    """Sums the terms of each id, pairwise, in another order than side A."""
    order = np.argsort(ids, kind="stable")[::-1]
    rows, starts = np.unique(ids[order][::-1], return_index=True)
    return rows, np.add.reduceat(terms[order][::-1], starts, 0)


@dataclasses.dataclass(frozen=True)
class Port:
    """What a porter decides.

    Attributes:
        changed: tables whose bags, combiner and rule the attributes below change; None is all.
        state: changes the state that is loaded.
        bag: changes the ids and weights of a feature.
        combiner: replaces the combiner of a lookup.
        gradient_combiner: replaces it in the gradient.
        shares: computes cells and shares of a bag.
        activation: changes what was looked up.
        occurrences: changes the gradients of occurrences, [n, dim], with the ids.
        one_by_one: whether the gradients of a row are applied one after the other.
        lag: how many steps the rate is late.
        clips_gradients, decays, clips_weights: whether the table's settings count.
        rules: update rules that replace the right ones.
        after: changes each new array of a table.
        touched: which rows the rule updates: those of the batch, or "all".
        keeps_gradients, keeps_row_gradients: whether the gradients of the network, or those of
            tables, add up over the steps.
        loss, dense_rate, dense_epsilon, dense_beta_2: of the network.
    """

    changed: tuple[str, ...] | None = None
    state: Callable[[State], State] = lambda state: state
    bag: Callable[[Bag], Bag] = lambda bag: bag
    combiner: str | None = None
    gradient_combiner: str | None = None
    shares: Callable[[Bag, str], tuple[Any, Any]] | None = None
    activation: Callable[[Any], Any] = lambda activation: activation
    occurrences: Callable[[Any, Any], Any] = lambda ids, terms: terms
    sums: Callable[[Any, Any], tuple[Any, Any]] = in_order
    one_by_one: bool = False
    lag: int = 0
    clips_gradients: bool = True
    decays: bool = True
    clips_weights: bool = True
    rules: Mapping[str, Rule] = dataclasses.field(default_factory=dict)
    after: Callable[[str, Any], Any] = lambda name, value: value
    touched: str = "batch"
    wide: bool = False
    loss: Callable[[Any], Any] = lambda loss: loss
    dense_rate: float = DENSE_RATE
    dense_epsilon: float = EPSILON
    dense_beta_2: float = BETA_2
    predicts: bool = True
    keeps_gradients: bool = False
    keeps_row_gradients: bool = False
    kept_gradients: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, recording: pathlib.Path, out: pathlib.Path) -> None:
        """Trains on a recording's batches, and records what it computes."""
        self.kept_gradients.clear()
        left_out = ("beta1_power", "beta2_power")
        with Replay(recording, out, program="ports.py, NumPy", left_out=left_out) as replay:
            for step in replay:
                assert step.state is not None
                step.record(**self._step(step, self.state(step.state), [*replay.tables.values()]))
            if self.predicts:
                outputs = [
                    {
                        "logit": network(
                            self._looked_up(replay.final, batch),
                            replay.final.dense,
                            batch.arrays["labels"],
                        ).logits
                    }
                    for batch in replay.predictions()
                ]
                replay.record_predictions(outputs)

    def _step(
        self, step: ReplayStep, state: State, tables: list[TableDescription]
    ) -> dict[str, Any]:
        activations = self._looked_up(state, step)
        labels = step.arrays["labels"]
        type_of = np.float64 if self.wide else np.float32
        wide = {key: each.astype(type_of) for key, each in activations.items()}
        result = network(wide, {n: state.dense[n].astype(type_of) for n in DENSE}, labels)
        gradients = {**result.of_activations, **result.of_dense}
        if self.keeps_gradients:
            for name in DENSE:
                gradients[name] = gradients[name] + self.kept_gradients.get(name, F(0))
                self.kept_gradients[name] = gradients[name]
        of_tables = {
            table["name"]: self._updated(table, step, state, gradients) for table in tables
        }
        dense = self._dense(step.number, state.dense, gradients)
        return {
            "loss": self.loss(result.loss),
            "activations": activations,
            "gradients": gradients,
            "tables": of_tables,
            "dense": dense,
        }

    def _changes(self, name: str) -> bool:
        return self.changed is None or name in self.changed

    def _bag(self, batch: ReplayBatch, key: str, name: str) -> Bag:
        bag = batch.bag(key)
        changed = self.bag(bag) if self._changes(name) else bag
        return in_table(changed, TABLES[name].rows)

    def _shares(self, bag: Bag, name: str, other: str | None) -> tuple[Any, Any]:
        combiner = other if other and self._changes(name) else TABLES[name].combiner
        if self.shares is not None and self._changes(name):
            return self.shares(bag, combiner)
        return shares(bag, combiner)

    def _looked_up(self, state: State, batch: ReplayBatch) -> dict[str, Any]:
        activations = {}
        for name, table in TABLES.items():
            for key in table.features:
                bag = self._bag(batch, key, name)
                cells, gains = self._shares(bag, name, self.combiner)
                sums = np.zeros((int(np.prod(bag.shape)), DIM), np.float32)
                np.add.at(
                    sums,
                    cells[::-1],
                    (gains[:, np.newaxis] * state.tables[name]["rows"][bag.ids])[::-1],
                )
                looked_up = sums.reshape(*bag.shape, DIM)
                activations[key] = self.activation(looked_up) if self._changes(name) else looked_up
        return activations

    def _updated(
        self, table: TableDescription, step: ReplayStep, state: State, gradients: Mapping[str, Any]
    ) -> dict[str, Any]:
        name, of = table["name"], state.tables[table["name"]]
        ids, terms = [], []
        for key in table["features"]:
            bag = self._bag(step, key, name)
            cells, gains = self._shares(bag, name, self.gradient_combiner or self.combiner)
            gradient = gradients[key].reshape(-1, DIM).astype(np.float32)
            ids.append(bag.ids)
            terms.append(gains[:, np.newaxis].astype(np.float32) * gradient[cells])
        every, gradient = np.concatenate(ids), np.concatenate(terms)
        if not self._changes(name):
            return Port()._applied(table, step.number, dict(of), *in_order(every, gradient))
        if self.keeps_row_gradients:
            ids_before, before = self.kept_gradients.get(name, (every[:0], gradient[:0]))
            every = np.concatenate([ids_before, every])
            gradient = np.concatenate([before, gradient])
            self.kept_gradients[name] = every, gradient
        gradient = self.occurrences(every, gradient)
        if not self.one_by_one:
            return self._applied(table, step.number, dict(of), *self.sums(every, gradient))
        for i in range(len(every)):
            of = self._applied(table, step.number, dict(of), every[i : i + 1], gradient[i : i + 1])
        return of

    def _applied(
        self, table: TableDescription, number: int, of: dict[str, Any], rows: Any, g: Any
    ) -> dict[str, Any]:
        rule = table["rule"]
        assert rule is not None
        settings = rule["settings"]
        if self.touched == "all":
            whole = np.zeros_like(of["rows"])
            whole[rows] = g
            rows, g = np.arange(len(whole)), whole
        if self.clips_gradients and settings["clip_gradient_min"] is not None:
            g = np.clip(g, F(settings["clip_gradient_min"]), F(settings["clip_gradient_max"]))
        w = of["rows"][rows]
        if self.decays and settings["weight_decay_factor"]:
            w = w - F(settings["weight_decay_factor"]) * w
        rates = rule["rates"]
        rate = F(rates[min(max(number - 1 - self.lag, 0), len(rates) - 1)])
        slots = {slot: each[rows] for slot, each in of.items() if slot != "rows"}
        update = self.rules.get(rule["kind"], RULES[rule["kind"]])
        w, slots = update(Row(w, slots, g, rate, settings, number))
        if self.clips_weights and settings["clip_weight_min"] is not None:
            w = np.clip(w, F(settings["clip_weight_min"]), F(settings["clip_weight_max"]))
        new = {}
        for part, value in {"rows": w, **slots}.items():
            new[part] = of[part].copy()
            new[part][rows] = self.after(part, value)
        return new

    def _dense(
        self, number: int, dense: Mapping[str, Any], gradients: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Updates the network as torch.optim.Adam does, with powers of the betas from the step."""
        beta_1, beta_2 = float(F(BETA_1)), float(F(self.dense_beta_2))
        rate = F(self.dense_rate * np.sqrt(1 - beta_2**number) / (1 - beta_1**number))
        new = {}
        for name in DENSE:
            g = gradients[name].astype(np.float32)
            m = F(beta_1) * dense[f"{name}/Adam"] + F(1 - beta_1) * g
            v = F(beta_2) * dense[f"{name}/Adam_1"] + F(1 - beta_2) * (g * g)
            new[name] = dense[name] - rate * (m / (np.sqrt(v) + F(self.dense_epsilon)))
            new |= {f"{name}/Adam": m, f"{name}/Adam_1": v}
        return new


def shares(bag: Bag, combiner: str) -> tuple[Any, Any]:
    """Returns the cell of each id and its share of the activation, in float32."""
    counts = np.diff(np.append(bag.offsets, len(bag.ids)))
    cells = np.repeat(np.arange(len(counts)), counts)
    weights = np.ones(len(bag.ids), np.float32) if bag.weights is None else bag.weights
    if combiner == "sum" or len(bag.shape) > 1:
        return cells, weights
    total = np.zeros(len(counts), np.float32)
    np.add.at(total, cells, weights if combiner == "mean" else weights * weights)
    return cells, weights / (total if combiner == "mean" else np.sqrt(total))[cells]

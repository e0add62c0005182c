"""Mistakes of porting, as found in public threads and in the defaults of torch, FBGEMM and optax.

Each is a `Port` with something wrong, and the causes that `verify` may name for it. `HONEST` are
ports without a mistake, which round in other ways.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from compat_tests.recording.ports import F, Port, Row, adagrad, adam, in_order, sgd, shares
from compat_tests.support.bag_model import DIM, TABLES, kept
from estimator_bridge.recording import Bag, State


@dataclasses.dataclass(frozen=True)
class Plant:
    """A mistake; a right cause has one of the names, and its text has `says`."""

    port: Port
    causes: tuple[str, ...]
    says: str = ""


def _rows_as(dtype: Any) -> Any:
    return lambda name, value: value.astype(dtype).astype(F) if name == "rows" else value


def _without_slots(state: State) -> State:
    tables = {
        name: {part: each if part == "rows" else np.zeros_like(each) for part, each in of.items()}
        for name, of in state.tables.items()
    }
    return state._replace(tables=tables)


def _epsilon(outside: float = 0.0, inside: float = 0.0) -> Any:
    def rule(row: Row) -> Any:
        a = row.slots["accumulators"] + row.g * row.g
        root = np.sqrt(a + F(inside)) + F(outside)
        return row.w - row.rate * row.g / root, {"accumulators": a}

    return rule


def _clipped_gradients(row: Row) -> Any:
    limit = np.quantile(np.abs(row.g), 0.8).astype(F)
    return adagrad(dataclasses.replace(row, g=np.clip(row.g, -limit, limit)))


def _positive(name: str, value: Any) -> Any:
    return np.maximum(value, F(0)) if name == "rows" else value


def _row_wise(row: Row) -> Any:
    a = row.slots["accumulators"] + np.mean(row.g * row.g, 1, keepdims=True)
    return row.w - row.rate * row.g / np.sqrt(a), {"accumulators": a}


def _adagrad_before(row: Row) -> Any:
    _, slots = adagrad(row)
    return row.w - row.rate * row.g / np.sqrt(row.slots["accumulators"]), slots


def _adam_with(**settings: Any) -> Any:
    return lambda row: adam(dataclasses.replace(row, settings={**row.settings, **settings}))


def _bias_corrected(row: Row) -> Any:
    beta_1, beta_2 = row.settings["beta_1"], row.settings["beta_2"]
    factor = F(np.sqrt(1 - beta_2**row.step) / (1 - beta_1**row.step))
    return adam(dataclasses.replace(row, rate=row.rate * factor))


def _l2(decay: float, rule: Any) -> Any:
    return lambda row: rule(dataclasses.replace(row, g=row.g + F(decay) * row.w))


def _decoupled(decay: float, rule: Any) -> Any:
    return lambda row: rule(dataclasses.replace(row, w=row.w - row.rate * F(decay) * row.w))


def _decay_last(row: Row) -> Any:
    w, slots = sgd(row)
    return w - F(row.settings["weight_decay_factor"] or 0) * w, slots


def _squares_of_each() -> dict[str, Any]:
    squares = []

    def sums(ids: Any, terms: Any) -> Any:
        squares.append(in_order(ids, terms * terms)[1])
        return in_order(ids, terms)

    def rule(row: Row) -> Any:
        a = row.slots["accumulators"] + squares.pop()
        return row.w - row.rate * row.g / np.sqrt(a), {"accumulators": a}

    return {"sums": sums, "rules": {"Adagrad": rule}}


def _averaged(ids: Any, terms: Any) -> Any:
    rows, sums = in_order(ids, terms)
    return rows, sums / np.unique(ids, return_counts=True)[1][:, np.newaxis].astype(F)


def _last(ids: Any, terms: Any) -> Any:
    rows, positions = np.unique(ids[::-1], return_index=True)
    return rows, terms[::-1][positions]


def _over_count(bag: Bag, combiner: str) -> Any:
    """Divides a weighted sum by the number of ids, not by the sum of the weights."""
    cells, gains = shares(bag._replace(weights=None), combiner)
    return cells, gains if bag.weights is None else gains * bag.weights


def _weights_are_one(bag: Bag) -> Bag:
    return bag._replace(weights=None)


def _without_padding(bag: Bag) -> Bag:
    return kept(bag, np.flatnonzero(bag.ids != 0))


def _last_cut(bag: Bag) -> Bag:
    if len(bag.shape) == 1:
        return bag
    counts = np.diff(np.append(bag.offsets, len(bag.ids)))
    cells = np.repeat(np.arange(len(counts)), counts)
    return kept(bag, np.flatnonzero(cells % bag.shape[1] != bag.shape[1] - 1))


def _next_row(table: str) -> Any:
    return lambda bag: bag._replace(ids=(bag.ids + 1) % TABLES[table].rows)


def _port(table: str | None, **changed: Any) -> Port:
    return Port(changed=None if table is None else (table,), **changed)


PLANTS = {
    # --- Of torch.optim, FBGEMM and optax: other constants and other rules.
    # as FBGEMM's eps, but larger
    "epsilon of 1e-3 beside Adagrad's root": Plant(
        _port("users", rules={"Adagrad": _epsilon(outside=1e-3)}), ("epsilon",), "0.001"
    ),
    # as optax.adagrad
    "epsilon below Adagrad's root": Plant(
        _port("users", rules={"Adagrad": _epsilon(inside=1e-3)}), ("epsilon",), "0.001"
    ),
    # TorchEasyRec#669: the initial accumulator is lost
    "slots dropped": Plant(_port(None, state=_without_slots), ("lost slot",), "accumulators"),
    # FBGEMM's EXACT_ROWWISE_ADAGRAD for Adagrad
    "row-wise Adagrad": Plant(
        _port("users", rules={"Adagrad": _row_wise}), ("update rule",), "row"
    ),
    # the accumulator before the step divides
    "accumulator added last": Plant(
        _port("users", rules={"Adagrad": _adagrad_before}), ("update rule",), "before"
    ),
    # torch.optim.Adam corrects the bias of early steps, the table's rule does not
    "bias correction": Plant(_port("items", rules={"Adam": _bias_corrected}), ("bias correction",)),
    # torch.optim.Adam adds it to the root
    "epsilon beside Adam's root": Plant(
        _port("items", rules={"Adam": _adam_with(sum_inside_sqrt=False)}),
        ("update rule", "epsilon"),
        "sum_inside_sqrt",
    ),
    # 1e-8 is torch's default
    "torch's epsilon": Plant(
        _port("items", rules={"Adam": _adam_with(epsilon=1e-8)}),
        ("update rule", "epsilon"),
        "epsilon",
    ),
    # optax and torch have 0.999, this program 0.99
    "another beta": Plant(
        _port("items", rules={"Adam": _adam_with(beta_2=0.99)}), ("update rule",), "beta_2"
    ),
    # torch.optim.Adam moves rows that are in no sample
    "dense Adam": Plant(_port("items", touched="all"), ("update rule", "untouched rows")),
    # torch.optim.Adagrad(weight_decay=...)
    "weight decay as L2": Plant(
        _port("users", rules={"Adagrad": _l2(0.01, adagrad)}), ("weight decay",), "0.01"
    ),
    # torch.optim.AdamW decays by default
    "weight decay of AdamW": Plant(
        _port("items", rules={"Adam": _decoupled(0.01, adam)}), ("weight decay",)
    ),
    "decay forgotten": Plant(_port("words", decays=False), ("weight decay",)),
    # FBGEMM's order
    "decay after the update": Plant(
        _port("words", decays=False, rules={"SGD": _decay_last}), ("weight decay",), "after"
    ),
    "gradients not clipped": Plant(_port("places", clips_gradients=False), ("clipping",)),
    # torch.nn.utils.clip_grad_value_ over all parameters
    "gradients clipped": Plant(
        _port("users", rules={"Adagrad": _clipped_gradients}), ("clipping",), "gradients of rows"
    ),
    # clamp_(min=0) after each step
    "weights kept positive": Plant(_port("users", after=_positive), ("clipping",), "at 0"),
    "weights not clipped": Plant(_port("words", clips_weights=False), ("clipping",)),
    # --- Of the rate.
    # scheduler.step() after the next step
    "rate one step late": Plant(_port("places", lag=1), ("rate schedule",), "before"),
    # scheduler.step() before the first step
    "rate one step early": Plant(_port("places", lag=-1), ("rate schedule",), "after"),
    # --- Of lookups.
    # nn.EmbeddingBag's default
    "mean for sum": Plant(_port("words", combiner="mean"), ("combiner",), "mean"),
    # torchrec's default
    "sum for mean": Plant(_port("items", combiner="sum"), ("combiner",), "sum"),
    # per_sample_weights forgotten
    "weights ignored": Plant(_port("words", bag=_weights_are_one), ("lost weight",)),
    # a weighted sum over the number of ids
    "mean over the count": Plant(_port("places", shares=_over_count), ("combiner",), "number"),
    # padding_idx=0
    "id 0 is padding": Plant(_port("items", bag=_without_padding), ("id 0",)),
    "sequences too short": Plant(_port("items", bag=_last_cut), ("truncation",)),
    # row 0 was kept for padding, and the rows were loaded without it
    "ids shifted by one": Plant(_port("users", bag=_next_row("users")), ("wrong row",)),
    # torch.clamp instead of what side A does with ids out of range
    "ids clamped": Plant(
        _port("rare", bag=lambda bag: bag._replace(ids=np.minimum(bag.ids, 39))),
        ("id out of range",),
    ),
    # hashing
    "ids modulo rows": Plant(
        _port("rare", bag=lambda bag: bag._replace(ids=bag.ids % 40)), ("id out of range",)
    ),
    # --- Of the sums of gradients.
    # an update for each occurrence of a row; with small gradients as "squares of each duplicate"
    "duplicates one by one": Plant(
        _port("users", one_by_one=True), ("gradient sum", "update rule"), "one after the other"
    ),
    # accumulators.at[ids].add(g * g), and then the rows
    "squares of each duplicate": Plant(
        _port("users", **_squares_of_each()), ("update rule",), "square of each"
    ),
    # nn.Embedding(scale_grad_by_freq=True)
    "duplicates averaged": Plant(_port("users", sums=_averaged), ("gradient sum",), "how often"),
    # index assignment without accumulation
    "last duplicate wins": Plant(_port("users", sums=_last), ("dropped duplicate",)),
    "gradient of the mean as of a sum": Plant(
        _port("items", gradient_combiner="sum"), ("gradient combiner",)
    ),
    # --- Of precision.
    # FBGEMM's weights_precision
    "rows in float16": Plant(_port("users", after=_rows_as(np.float16)), ("precision",)),
    "rows in bfloat16": Plant(_port("words", after=_rows_as(bfloat16)), ("precision",), "bfloat16"),
    # FBGEMM's output_dtype
    "activations in float16": Plant(
        _port("items", activation=lambda each: each.astype(np.float16).astype(F)),
        ("precision",),
        "float16",
    ),
    # autocast
    "gradients in bfloat16": Plant(
        _port("users", occurrences=lambda ids, terms: terms.astype(bfloat16).astype(F)),
        ("precision",),
        "bfloat16",
    ),
    # --- Of the network.
    # reduction='sum'
    "loss summed": Plant(Port(loss=lambda loss: loss * F(64)), ("model",)),
    "zero_grad forgotten": Plant(Port(keeps_gradients=True), ("kept gradients",)),
    # the tables have an optimizer of their own
    "zero_grad forgotten for a table": Plant(
        _port("users", keeps_row_gradients=True), ("kept gradients",)
    ),
    "zero_grad forgotten for a table with Adam": Plant(
        _port("items", keeps_row_gradients=True), ("kept gradients",)
    ),
    "the network's rate": Plant(Port(dense_rate=0.001), ("model optimizer",), "rate"),
    "the network's beta": Plant(Port(dense_beta_2=0.99), ("model optimizer",), "Adam_1"),
    "the network's epsilon": Plant(Port(dense_epsilon=1e-3), ("model optimizer",)),
}


def shuffled(ids: Any, terms: Any) -> Any:
    order = np.random.default_rng(0).permutation(len(ids))
    rows, where = np.unique(ids[order], return_inverse=True)
    sums = np.zeros((len(rows), DIM), F)
    np.add.at(sums, where, terms[order])
    return rows, sums


def _doubled(ids: Any, terms: Any) -> Any:
    rows, where = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(rows), DIM))
    np.add.at(sums, where, terms)
    return rows, sums.astype(F)


def _reciprocal(row: Row) -> Any:
    a = row.slots["accumulators"] + row.g * row.g
    return row.w - row.g * (row.rate * (F(1) / np.sqrt(a))), {"accumulators": a}


def _wide(rule: Any) -> Any:
    def in_float64(row: Row) -> Any:
        slots = {name: each.astype(np.float64) for name, each in row.slots.items()}
        wide = dataclasses.replace(
            row, w=row.w.astype(np.float64), g=row.g.astype(np.float64), slots=slots
        )
        return rule(wide)

    return in_float64


def _torch_adam(row: Row) -> Any:
    """Multiplies and adds in the order of torch.optim.Adam."""
    beta_1, beta_2 = F(row.settings["beta_1"]), F(row.settings["beta_2"])
    epsilon = F(row.settings["epsilon"])
    m = row.slots["momenta"] * beta_1 + row.g * (F(1) - beta_1)
    v = row.slots["velocities"] * beta_2 + (row.g * row.g) * (F(1) - beta_2)
    return row.w + m / np.sqrt(v + epsilon * epsilon) * -row.rate, {"momenta": m, "velocities": v}


HONEST = {
    "as it is": Port(),
    "network in float64": Port(wide=True),
    "sums in another order": Port(sums=shuffled),
    "sums in float64": Port(sums=_doubled),
    "a reciprocal root": Port(rules={"Adagrad": _reciprocal}),
    "torch's order of Adam": Port(rules={"Adam": _torch_adam}),
    "rules in float64": Port(
        rules={"Adagrad": _wide(adagrad), "Adam": _wide(adam), "SGD": _wide(sgd)}
    ),
    "FBGEMM's epsilon of 1e-8": Port(changed=("users",), rules={"Adagrad": _epsilon(outside=1e-8)}),
    "torch's epsilon of 1e-10": Port(
        changed=("users",), rules={"Adagrad": _epsilon(outside=1e-10)}
    ),
    "without predictions": Port(predicts=False),
}
"""Ports without a mistake; each is also tried in combination with `sums in another order`."""

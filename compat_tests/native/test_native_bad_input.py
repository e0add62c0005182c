"""The fused ops raise errors for calls that no driver makes; they never crash or corrupt memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references.tolerance import UNIT_ROUNDOFF
from tf2_engine import Adagrad, Adam, EngineSpec, FeatureSpec, Momentum, TableSpec
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.native import loading
from tf2_engine.optimizers import Optimizer
from tf2_engine.plan import make_plan

ROWS, DIM = 7, 3


def as_proto(optimizer: Optimizer) -> bytes:
    """Returns an optimizer as the update op takes it."""
    table = TableSpec("table", ROWS, DIM, "sum", optimizer)
    plan = make_plan(EngineSpec((table,), (FeatureSpec("ids", "table"),)), [(3,)])
    serialized: bytes = optimizer_proto(plan.tables[0]).SerializeToString()
    return serialized


OPTIMIZER = as_proto(Adagrad(0.1))

REFUSED = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)


def i64(*numbers: int) -> tf.Tensor:
    return tf.constant(numbers, tf.int64, [len(numbers)])


def row_splits(*numbers: int) -> tf.Tensor:
    """Returns row splits in the place of cells."""
    return tf.constant([numbers], tf.int64, [1, len(numbers)])


def f32(*numbers: float) -> tf.Tensor:
    return tf.constant(numbers, tf.float32, [len(numbers)])


def occurrences(**changed: Any) -> Any:
    """Reads three samples of a ragged feature, but for what is changed."""
    arguments: dict[str, Any] = {
        "index": [i64(0, 2, 2, 4)],
        "ids": [i64(1, 6, 0, 6)],
        "weights": [f32(1.0, 2.0, 3.0, 4.0)],
        "num_samples": [tf.constant(3, tf.int64)],
        "kinds": ["ragged"],
        "combiners": ["mean"],
        "weighted": [True],
        "sequence": [False],
        "check_samples": [True],
        "sizes": [[3]],
        "rows": [ROWS],
        "per_row": [1],
        "where": ["Feature 'ids' (table 'table')"],
        "drop": False,
    }
    return loading.load().ops.tf2_engine_occurrences(**{**arguments, **changed})


def variable() -> tf.Variable:
    """Returns the parameters or the slot of a table."""
    return tf.Variable(tf.ones([ROWS, DIM]))


def lookup(**changed: Any) -> Any:
    """Looks two cells up, but for what is changed."""
    parameters = changed.pop("variable") if "variable" in changed else variable()
    arguments: dict[str, Any] = {
        "parameters": [parameters.handle],
        "ids": [i64(1, 6, 0)],
        "cells": [i64(0, 0, 1)],
        "gains": [f32(1.0, 2.0, 3.0)],
        "num_cells": [tf.constant(2, tf.int64)],
        "num_shards": 1,
        "strategy": "mod",
        "rows": [ROWS],
        "dims": [DIM],
        "table_of": [0],
        "sizes": [[None]],
        "where": ["Feature 'ids' (table 'table')"],
    }
    return loading.load().ops.tf2_engine_lookup(**{**arguments, **changed})


def update(**changed: Any) -> list[tf.Variable]:
    """Applies a step to three ids, but for what is changed; returns the variables."""
    variables = changed.pop("held", None) or [variable(), variable()]
    arguments: dict[str, Any] = {
        "variables": [one.handle for one in variables],
        "ids": [i64(1, 6, 1)],
        "cells": [i64(0, 0, 1)],
        "gains": [f32(1.0, 2.0, 3.0)],
        "gradients": [tf.ones([2, DIM])],
        "rates": [tf.constant(0.5)],
        "num_shards": 1,
        "num_cores": 1,
        "strategy": "div",
        "rows": [ROWS],
        "dims": [DIM],
        "optimizers": [OPTIMIZER],
        "table_of": [0],
        "core_of": [0],
        "where": ["Feature 'ids' (table 'table')"],
    }
    loading.load().ops.tf2_engine_update(**{**arguments, **changed})
    return variables


def test_what_is_good_is_done() -> None:
    """The correct calls, which the tests below make wrong in one place, work."""
    ids, cells, gains, num_cells = occurrences()
    assert ids[0].numpy().tolist() == [1, 6, 0, 6]
    assert cells[0].numpy().tolist() == [0, 0, 2, 2]
    third, seventh = np.float32(1) / np.float32(3), np.float32(1) / np.float32(7)
    np.testing.assert_array_equal(
        gains[0], np.float32([1, 2, 3, 4]) * np.float32([third, third, seventh, seventh])
    )
    assert num_cells[0].numpy() == 3
    np.testing.assert_array_equal(lookup()[0], np.full((2, DIM), 3.0))
    parameters, slot = update()
    np.testing.assert_array_equal(slot[:, 0], [1, 17, 1, 1, 1, 1, 5])
    # A root, a product, a quotient and a difference are rounded, each by 2^-24 at most.
    np.testing.assert_allclose(parameters[1, 0], 1 - 0.5 * 4 / 17**0.5, rtol=4 * 2**-24)


FAR = 2**62

BAD_OCCURRENCES: dict[str, tuple[dict[str, Any], str]] = {
    "an id below": ({"ids": [i64(1, 6, -3, 6)]}, "'ids'.*rows 0 to 6.*drop.*-3"),
    "an id beyond": ({"ids": [i64(1, 6, 0, FAR)]}, f"'ids'.*rows 0 to 6.*{FAR}"),
    "splits that fall": ({"index": [i64(0, 3, 2, 4)]}, "'ids'.*row split 2 is 2 after 3"),
    "splits beyond": ({"index": [i64(0, 2, FAR, 4)]}, "'ids'.*row split 2"),
    "splits from 1": ({"index": [i64(1, 2, 2, 4)]}, "'ids'.*row split 0"),
    "splits that end early": ({"index": [i64(0, 2, 2, 3)]}, "'ids'.*last row split is 3"),
    "no splits": ({"index": [i64()]}, "'ids'.*row splits"),
    "too many rows": ({"index": [i64(0, 1, 1, 1, 1, 4)]}, "'ids'.*5 ragged rows do not fit"),
    "a weight short": ({"weights": [f32(1.0)]}, "'ids'.*one weight per id"),
    "another batch size": (
        {"num_samples": [tf.constant(5, tf.int64)]},
        "'ids'.*built for 3.*has 5",
    ),
    "a huge batch": (
        {"num_samples": [tf.constant(FAR, tf.int64)], "sizes": [[None]]},
        "'ids'.*cannot have",
    ),
    "a negative batch": (
        {"num_samples": [tf.constant(-1, tf.int64)], "sizes": [[None]]},
        "'ids'.*cannot have -1",
    ),
    "ids as a matrix": ({"ids": [tf.zeros([2, 2], tf.int64)]}, "'ids'.*rank 1"),
    "sizes without end": ({"sizes": [[3, FAR, FAR]]}, "too large|'ids'"),
    "an unknown kind": ({"kinds": ["round"]}, "no kind 'round'"),
    "an unknown combiner": ({"combiners": ["max"]}, "no combiner 'max'"),
    "a list too short": ({"rows": []}, "0 entries for 1 features"),
    "no rows": ({"rows": [0]}, "must be positive"),
}

SPARSE = {
    "kinds": ["sparse"],
    "index": [tf.constant([[0, 0], [0, 1], [2, 0], [2, 1]], tf.int64)],
}
for _name, _index, _message in (
    ("a coordinate beyond", [[0, 0], [0, 1], [FAR, 0], [2, 1]], r"axis 0 is outside \(3,\)"),
    ("a coordinate below", [[0, 0], [0, 1], [-1, 0], [2, 1]], r"axis 0 is outside \(3,\).*-1"),
    ("coordinates too few", [[0, 0]], "do not fit 4 ids"),
    ("coordinates without columns", [[], [], [], []], "do not fit 4 ids"),
):
    _where = tf.constant(_index, tf.int64, np.shape(_index))
    BAD_OCCURRENCES[_name] = ({**SPARSE, "index": [_where]}, f"'ids'.*{_message}")

BAD_SPLITS: dict[str, tuple[dict[str, Any], str]] = {
    f"splits that {what}": (
        {"cells": [row_splits(*splits)], "gains": [f32(*[1.0] * num_gains)]},
        f"'ids'.*{message}",
    )
    for what, splits, num_gains, message in (
        ("fall", (0, 3, 2, 3), 0, "rise from 0 to the 3 ids"),
        ("begin late", (1, 3), 0, "rise from 0 to the 3 ids"),
        ("begin below", (-FAR, 3), 0, "rise from 0 to the 3 ids"),
        ("end early", (0, 2), 0, "rise from 0 to the 3 ids"),
        ("end late", (0, FAR), 0, "rise from 0 to the 3 ids"),
        ("are none", (), 0, "rise from 0 to the 3 ids"),
        ("are of three cells", (0, 1, 2, 3), 0, "a cell beyond the 2"),
        ("come with a gain per id", (0, 1, 3), 3, "3 row splits and 3 gains"),
    )
}

BAD_LOOKUPS: dict[str, tuple[dict[str, Any], str]] = {
    "an id below": ({"ids": [i64(1, -6, 0)]}, "'ids'.*rows 0 to 6.*-6"),
    "an id beyond": ({"ids": [i64(1, FAR, 0)]}, f"'ids'.*{FAR}"),
    "a cell below": ({"cells": [i64(0, -1, 1)]}, "'ids'.*a cell beyond the 2"),
    "a cell beyond": ({"cells": [i64(0, 0, FAR)]}, "'ids'.*a cell beyond the 2"),
    "cells too few": ({"cells": [i64(0, 0)]}, "'ids'.*3 ids come with 2 cells"),
    "gains too many": ({"gains": [f32(*[1.0] * 9)]}, "'ids'.*9 gains"),
    "too few cells for ids": ({"cells": [i64()]}, "'ids'.*a cell beyond the 2"),
    "a negative number of cells": ({"num_cells": [tf.constant(-2, tf.int64)]}, "'ids'.*-2 cells"),
    "cells that do not fill": ({"sizes": [[None, 3]]}, "'ids'.*2 cells do not fill"),
    "several numbers of cells": ({"num_cells": [i64(2, 2)]}, "'ids'.*one number"),
    "a table that is not there": ({"table_of": [3]}, "table_of|no table 3"),
    **BAD_SPLITS,
    "a variable short": ({"rows": [ROWS, ROWS], "dims": [DIM, DIM]}, "one variable per table"),
    "a variable of another shape": ({"rows": [ROWS + 1]}, r"float \[7,3\] instead of .*\[8,3\]"),
    "a variable of another width": ({"dims": [DIM + 1]}, r"instead of float \[7,4\]"),
    "a variable of another type": (
        {"variable": lambda: tf.Variable(tf.ones([ROWS, DIM], tf.float64))},
        "double|dtype",
    ),
}

BAD_UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "an id below": ({"ids": [i64(1, -6, 0)]}, "'ids'.*rows 0 to 6.*-6"),
    "an id beyond": ({"ids": [i64(1, FAR, 0)]}, f"'ids'.*{FAR}"),
    "a cell beyond": ({"cells": [i64(0, 0, 2)]}, "'ids'.*a cell beyond the 2"),
    "a cell below": ({"cells": [i64(0, 0, -FAR)]}, "'ids'.*a cell beyond the 2"),
    **BAD_SPLITS,
    "a gradient of another width": ({"gradients": [tf.ones([2, 4])]}, "'ids'.*into rows with 3"),
    "no gradient": ({"gradients": [tf.ones([0])]}, "'ids'.*a cell beyond the 0"),
    "several rates": ({"rates": [f32(1.0, 2.0)]}, "one number"),
    "no optimizer": ({"optimizers": [b""]}, "no native rule"),
    "another arithmetic": ({"arithmetic": "v5p"}, "v5p"),
    "an optimizer that SparseCores lack": (
        {"arithmetic": "sparsecore", "optimizers": [as_proto(Momentum(0.1, momentum=0.5))]},
        "no native rule for its optimizer with arithmetic='sparsecore'",
    ),
    "Adam of all rows on SparseCores": (
        {"arithmetic": "sparsecore", "optimizers": [as_proto(Adam(0.1, lazy_adam=False))]},
        "no native rule",
    ),
    "an optimizer cut short": ({"optimizers": [OPTIMIZER[:-1]]}, "not an OptimizationParameters"),
    "an optimizer of another kind": (
        {"optimizers": [bytes([0x22, 0])]},
        "need 1 variables, but there are 2",
    ),
    "a piece of no table": ({"table_of": [-1]}, "no table -1"),
    "a core beyond": ({"core_of": [1]}, "order of their cores"),
    "cores that cannot be spread": ({"num_shards": 2}, "cannot be spread"),
    "a table too long": ({"rows": [ROWS + 1]}, r"float \[7,3\] instead of .*\[8,3\]"),
}


@pytest.mark.parametrize("name", BAD_OCCURRENCES)
def test_bad_batches_are_refused(name: str) -> None:
    changed, message = BAD_OCCURRENCES[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        occurrences(**changed)


@pytest.mark.parametrize("name", BAD_LOOKUPS)
def test_bad_lookups_are_refused(name: str) -> None:
    changed, message = BAD_LOOKUPS[name]
    changed = {key: value() if callable(value) else value for key, value in changed.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        lookup(**changed)


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_bad_updates_change_nothing(name: str) -> None:
    """An update that is refused is refused whole: no row or slot has moved."""
    changed, message = BAD_UPDATES[name]
    held = [variable(), variable()]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        update(**changed, held=held)
    for one in held:
        np.testing.assert_array_equal(one, np.ones([ROWS, DIM]))


def test_a_variable_given_twice_is_refused() -> None:
    """One variable as both parameters and slot is refused, as it would be overwritten."""
    one = variable()
    with pytest.raises(tf.errors.InvalidArgumentError, match="given twice"):
        update(held=[one, one])


NUMBERS = (0, 1, 2, 3, 6, 7, -1, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)


def arbitrary(chance: np.random.Generator) -> dict[str, Any]:
    """Returns arguments of `occurrences`, most of which make no sense."""

    def numbers(most: int) -> Any:
        small = chance.integers(0, 5, chance.integers(0, most))
        wild = chance.choice(np.array(NUMBERS, np.int64), len(small))
        return np.where(chance.uniform(size=len(small)) < 0.2, wild, small)

    ids = numbers(7)
    kind = chance.choice(["dense", "sparse", "ragged"])
    index = np.sort(numbers(7)) if kind == "ragged" else numbers(12)
    if kind == "ragged" and chance.uniform() < 0.7:
        inner = np.sort(chance.integers(0, len(ids) + 1, 2))
        index = np.array([0, *inner, len(ids)], np.int64)
    if kind == "sparse":
        columns = int(chance.integers(1, 4))
        fits = chance.uniform() < 0.7
        index = (
            chance.integers(-1 if chance.uniform() < 0.2 else 0, 3, (len(ids), columns))
            if fits
            else index[: len(index) // columns * columns].reshape(-1, columns)
        )
    return {
        "index": [tf.constant(index, tf.int64)],
        "ids": [tf.constant(ids, tf.int64)],
        "weights": [tf.ones([len(ids) if chance.uniform() < 0.8 else chance.integers(0, 6)])],
        "num_samples": [tf.constant(int(numbers(9)[:1].sum()) or 3, tf.int64)],
        "kinds": [str(kind)],
        "combiners": [str(chance.choice(["sum", "mean", "sqrtn"]))],
        "weighted": [bool(chance.integers(2))],
        "sequence": [bool(chance.integers(2))],
        "check_samples": [bool(chance.integers(2))],
        "sizes": [[None, [3], [3, 2]][chance.integers(3)] or [None]],
        "rows": [int(chance.integers(1, 8))],
        "per_row": [int(chance.integers(1, 3))],
        "drop": bool(chance.integers(2)),
    }


@pytest.mark.parametrize("seed", range(3))
def test_arbitrary_input_is_refused_or_done(seed: int) -> None:
    """Of many arbitrary batches some are done and some refused; what is done can be looked up."""
    chance = np.random.default_rng(seed)
    done = refused = 0
    for _ in range(150):
        batch = arbitrary(chance)
        try:
            ids, cells, gains, num_cells = occurrences(**batch)
        except REFUSED:
            refused += 1
            continue
        done += 1
        assert np.all((ids[0].numpy() >= 0) & (ids[0].numpy() < batch["rows"][0]))
        parameters = tf.Variable(tf.ones([batch["rows"][0], DIM]))
        (activations,) = lookup(
            variable=parameters,
            ids=ids,
            cells=cells,
            gains=gains,
            num_cells=num_cells,
            sizes=batch["sizes"],
            rows=batch["rows"],
        )
        of_ids = gains[0].numpy()
        if len(of_ids) and cells[0].shape.rank == 2:
            of_ids = np.repeat(of_ids, np.diff(cells[0].numpy()[0]))
        gain = of_ids.sum() if len(gains[0]) else len(ids[0])
        # Every id has a gain of at least 0 and is added once on either side, in any order.
        np.testing.assert_allclose(
            activations.numpy()[..., 0].sum(), gain, rtol=2 * len(ids[0]) * UNIT_ROUNDOFF
        )
    assert done > 10
    assert refused > 10


@pytest.mark.parametrize("seed", range(2))
def test_arbitrary_optimizers_are_refused_or_applied(seed: int) -> None:
    """Bytes of a proto, some of them changed, are no optimizer or one of SGD to all others."""
    chance = np.random.default_rng(seed)
    done = refused = 0
    for _ in range(200):
        data = bytearray(OPTIMIZER)
        for _ in range(chance.integers(1, 3)):
            data[chance.integers(len(data))] = chance.integers(256)
        try:
            update(optimizers=[bytes(data)])
            done += 1
        except REFUSED:
            refused += 1
    assert done > 10
    assert refused > 10


MANY = 40_000
"""Ids that are looked up in several parts, each of which is checked by itself."""


@pytest.mark.parametrize("at", [0, MANY // 2, MANY - 1])
@pytest.mark.parametrize("bad", ["id", "id by splits", "cell", "no cell"])
def test_every_part_of_a_lookup_is_checked(at: int, bad: str) -> None:
    """One bad id, or cells that are beyond from some occurrence on, fail wherever they are."""
    ids, cells = np.full(MANY, 6), np.arange(MANY)
    count = MANY
    if bad.startswith("id"):
        ids[at] = ROWS
        cells = np.arange(MANY + 1)[None] if "splits" in bad else cells
    elif bad == "cell":
        # In order, as cells must be for parts: from below, or to beyond.
        cells[: at + 1] -= FAR if at == 0 else 0
        cells[at:] += FAR if at else 0
    else:
        cells, count = np.zeros(0, np.int64), at
    with pytest.raises(REFUSED, match=r"'ids'.*(rows 0 to 6|belongs to a cell)"):
        lookup(
            ids=[tf.constant(ids, tf.int64)],
            cells=[tf.constant(cells, tf.int64)],
            gains=[tf.zeros([0])],
            num_cells=[tf.constant(count, tf.int64)],
        )

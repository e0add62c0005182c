"""Updates with a single TensorFlow op are bitwise equal to the rule's own ops.

Both add, multiply, divide and take roots, element by element, and round after each operation.
Shapes and numbers of threads have no effect. TensorFlow's wheels for x86 do not contract a product
and a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import OPTIMIZERS, EngineSpec, FeatureSpec, Optimizer, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver

ROWS, SAMPLES, STEPS = 50, 30, 4
DIMS = (1, 3, 8, 16, 33, 64)
IN_ONE_OP = [name for name, kind in OPTIMIZERS.items() if "update_rows" in vars(kind)]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limits of gradients": {"clip_gradient_min": -0.5, "clip_gradient_max": 0.25},
    "limits of weights": {"clip_weight_min": -0.5, "clip_weight_max": 0.5},
    "decay": {"weight_decay_factor": 0.125},
    "rate of a function": {"learning_rate": lambda: tf.constant(0.3)},
}


def gradients_of(step: int, dim: int) -> Any:
    """Returns gradients of all magnitudes, [SAMPLES, dim] float32, zeros among them."""
    random = np.random.default_rng([step, dim])
    exponents = random.uniform(-25.0, 8.0, [SAMPLES, dim])
    signs = random.integers(-1, 2, [SAMPLES, dim])
    return (signs * 10.0**exponents).astype(np.float32)


def trained(optimizer: Optimizer, mode: str) -> dict[str, list[Any]]:
    """Returns parameters and slots of a table of each dim after some steps, by table."""
    initializer = tf.constant_initializer(
        np.random.default_rng(0).uniform(-1.0, 1.0, [ROWS, max(DIMS)]).astype(np.float32)
    )

    def first_columns(shape: Any, dtype: Any = None, **_: Any) -> Any:
        return initializer([ROWS, max(DIMS)], dtype)[:, : shape[1]]

    tables = tuple(TableSpec(f"t{dim}", ROWS, dim, "sum", optimizer, first_columns) for dim in DIMS)
    features = tuple(FeatureSpec(f"f{dim}", f"t{dim}") for dim in DIMS)
    embedding = TPUEmbedding(EngineSpec(tables, features), driver=HostDriver(native=False))
    embedding.build_for([(SAMPLES,)] * len(DIMS))

    def step(ids: Any, gradients: Any) -> None:
        embedding.enqueue({f"f{dim}": ids for dim in DIMS})
        embedding.dequeue()
        embedding.apply_gradients(gradients)

    call = tf.function(step, autograph=False) if mode == "function" else step
    for number in range(STEPS):
        ids = np.random.default_rng(number).integers(0, ROWS, SAMPLES)
        sent = {f"f{dim}": tf.constant(gradients_of(number, dim)) for dim in DIMS}
        call(tf.constant(ids, tf.int64), sent)
    return {
        name: [shards[0].numpy() for shards in table.variables.values()]
        for name, table in embedding.tables.items()
    }


@pytest.mark.parametrize(
    "setting, mode",
    [
        *((setting, "eager") for setting in SETTINGS),
        ("limits of gradients", "function"),
        *(
            pytest.param(setting, "function", marks=pytest.mark.full)
            for setting in SETTINGS
            if setting != "limits of gradients"
        ),
    ],
)
@pytest.mark.parametrize("name", IN_ONE_OP)
def test_one_op_gives_the_same_numbers(
    name: str, setting: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = OPTIMIZERS[name](**SETTINGS[setting])
    counted = []
    in_one_op = OPTIMIZERS[name].update_rows

    def counting(*arguments: Any) -> list[Any]:
        counted.append(in_one_op(*arguments))
        return counted[-1]

    monkeypatch.setattr(OPTIMIZERS[name], "update_rows", counting)
    actual = trained(optimizer, mode)
    # Where weights are changed besides, the op may not be used.
    assert bool(counted) == (setting not in ("limits of weights", "decay"))
    monkeypatch.setattr(OPTIMIZERS[name], "update_rows", lambda *_: [])
    expected = trained(optimizer, mode)
    for table, arrays in expected.items():
        for one, other in zip(actual[table], arrays, strict=True):
            np.testing.assert_array_equal(one, other)


def test_there_is_one() -> None:
    """At least Adagrad has such an op, so that the test above has a case."""
    assert "Adagrad" in IN_ONE_OP

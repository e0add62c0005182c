"""Checkpoints for SparseCores from and for stock's TPUEmbeddingV2 keep all bits, even of slots.

The tests run no step, so a software TPU without SparseCores is sufficient.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import legacy_checkpoints, stock_layouts
from compat_tests.support.conversions import (
    OPTIMIZERS,
    SPARSE_CORE_SLOTS,
    TPU_SLOTS,
    assert_same,
    convert_and_read,
    spec_with,
)
from estimator_bridge import convert
from tf2_engine.sparsecore_layout import SparseCores

SHAPES = {"a": (10, 6), "b": (7, 6), "c/x.y": (300, 12)}
STOCK = {
    "StochasticGradientDescent": "SGD",
    "Adagrad": "Adagrad",
    "AdagradMomentum": "AdagradMomentum",
    "Adam": "Adam",
    "Ftrl": "FTRL",
}
"""Stock's class of each legacy optimizer."""

TOPOLOGIES = [SparseCores(1, 4), SparseCores(2, 2), SparseCores(2, 4), SparseCores(4, 1)]
CASES = [
    pytest.param(
        optimizer,
        topology,
        id=f"{optimizer}, {topology}",
        marks=() if (optimizer, number) in {("Adagrad", 1)} else pytest.mark.full,
    )
    for optimizer in SPARSE_CORE_SLOTS
    for number, topology in enumerate(TOPOLOGIES)
]


def stock_embedding(optimizer: str, sparse_cores: SparseCores, samples: int = 8) -> Any:
    """Returns a TPUEmbeddingV2, not built; its first feature, of `b`, has so many samples."""
    stock = tf.tpu.experimental.embedding
    tables = {name: stock.TableConfig(*shape, name=name) for name, shape in SHAPES.items()}
    settings = {"momentum": 0.9} if optimizer == "AdagradMomentum" else {}
    features = {
        "first": stock.FeatureConfig(tables["b"], output_shape=[samples]),
        "second": stock.FeatureConfig(tables["a"], output_shape=[64]),
        "third": stock.FeatureConfig(tables["c/x.y"], output_shape=[16]),
    }
    with stock_layouts.strategy(sparse_cores).scope():
        optimizer_of_stock = getattr(stock, STOCK[optimizer])(0.1, **settings)
        return stock.TPUEmbeddingV2(features, optimizer=optimizer_of_stock)


def values_of(optimizer: str) -> dict[str, Any]:
    """Returns random tables and slots by legacy name."""
    rng = np.random.default_rng(5)
    parts = {
        f"{name}{suffix and '/'}{suffix}": shape
        for name, shape in SHAPES.items()
        for suffix in ("", *TPU_SLOTS[optimizer].values())
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in parts.items()}


def held(embedding: Any) -> dict[str, Any]:
    """Returns all stacks of a TPUEmbeddingV2 as a checkpoint would hold them."""
    return {
        f"{stack}/{part}": np.concatenate([value.numpy() for value in variable.values])
        for stack, parts in embedding._variables.items()
        for part, variable in parts.items()
    }


def stored(path: pathlib.Path, root: str = "embedding") -> dict[str, Any]:
    """Returns all stacks of a checkpoint, as `held` names them."""
    tensors = legacy_checkpoints.read(str(path))
    keys = [key for key in tensors if key.startswith(f"{root}/") and "_layouts" not in key]
    names = {key: key.split("/")[1].replace(".S", "/").replace("..", ".") for key in keys}
    slots = {slot for initial in SPARSE_CORE_SLOTS.values() for slot in initial}
    return {
        name if name.split("/")[-1] in slots else f"{name}/parameters": tensors[key]
        for key, name in names.items()
    }


def restore(embedding: Any, path: pathlib.Path) -> None:
    """Restores all of a checkpoint, as a program does before the first step."""
    step = tf.Variable(0, dtype=tf.int64)
    latest = tf.train.latest_checkpoint(str(path))
    status = tf.train.Checkpoint(embedding=embedding, global_step=step).restore(latest)
    embedding.build()
    status.assert_consumed()
    assert int(step) == 77


@pytest.mark.parametrize("optimizer, sparse_cores", CASES)
def test_stock_restores_ours(
    optimizer: str, sparse_cores: SparseCores, tmp_path: pathlib.Path
) -> None:
    """TPUEmbeddingV2 restores a converted legacy checkpoint, every slot too, and consumes it."""
    values = values_of(optimizer)
    old = legacy_checkpoints.write(str(tmp_path / "m"), values, {"global_step": np.int64(77)})
    convert.convert(
        old,
        str(tmp_path / "new"),
        spec=spec_with(SHAPES, OPTIMIZERS[optimizer]),
        to="sparsecore",
        to_cores=sparse_cores.cores,
        to_sparse_cores=sparse_cores.per_core,
        samples={"b": 8},
    )

    embedding = stock_embedding(optimizer, sparse_cores)
    restore(embedding, tmp_path / "new")

    assert_same(stored(tmp_path / "new"), held(embedding))


@pytest.mark.parametrize("optimizer, sparse_cores", CASES)
def test_we_read_those_of_stock(
    optimizer: str, sparse_cores: SparseCores, tmp_path: pathlib.Path
) -> None:
    """A checkpoint of TPUEmbeddingV2 becomes a legacy one, and goes on with other SparseCores.

    In between stock alone would reset the slots; by way of `like` nothing is lost.
    """
    values, embedding = values_of(optimizer), stock_embedding(optimizer, sparse_cores)
    rng = np.random.default_rng(9)
    embedding.build()
    for parts in embedding._variables.values():
        for variable in parts.values():
            for each in variable.values:
                each.assign(rng.normal(size=each.shape))
    step = tf.Variable(77, dtype=tf.int64)
    saved = tf.train.Checkpoint(embedding=embedding, global_step=step).save(str(tmp_path / "v2/c"))

    names = convert_and_read(
        saved, tmp_path / "names", spec=spec_with(SHAPES, OPTIMIZERS[optimizer])
    )
    assert {name: value.shape for name, value in names.items() if "global" not in name} == {
        name: value.shape for name, value in values.items()
    }

    other = stock_embedding(optimizer, TOPOLOGIES[0], samples=32)
    other.build()
    wanted = tf.train.Checkpoint(embedding=other, global_step=step).save(str(tmp_path / "like/c"))
    for old, new in ((saved, "other"), (str(tmp_path / "names"), "same")):
        spec = spec_with(SHAPES, OPTIMIZERS[optimizer])
        convert.convert(old, str(tmp_path / new), spec=spec, to="sparsecore", like=wanted)
    reader = stock_embedding(optimizer, TOPOLOGIES[0], samples=32)
    restore(reader, tmp_path / "other")
    assert_unpadded(held(reader), stored(tmp_path / "same"), names, optimizer)


def assert_unpadded(
    held: Mapping[str, Any], same: Mapping[str, Any], names: Mapping[str, Any], optimizer: str
) -> None:
    """Checks that two sets of stacks are equal, and hold the numbers of the legacy names."""
    assert_same(held, same)
    for number, initial in enumerate(("", *TPU_SLOTS[optimizer].values())):
        part = ("parameters", *SPARSE_CORE_SLOTS[optimizer])[number]
        for id_ in range(10):  # On 1 × 4 SparseCores `a` begins each shard of 16 rows.
            table = names["a/" + initial if initial else "a"]
            row = held[f"a_b/{part}"][id_ % 4 * 16 + id_ // 4]
            assert np.array_equal(row[:6], table[id_]), (part, id_)

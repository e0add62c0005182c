"""The engine's refusals have the built-in types and the words of stock's TPUEmbedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import SGD, TPUEmbedding, errors

EMB = tf.tpu.experimental.embedding
IDS = tf.ragged.constant([[0, 1], [2]])


def features() -> tuple[Any, ...]:
    table = EMB.TableConfig(vocabulary_size=8, dim=2, name="table")
    return tuple(EMB.FeatureConfig(table, name=name) for name in ("a", "b"))


def built() -> TPUEmbedding:
    """Returns an engine that has looked a batch up."""
    engine = TPUEmbedding(features(), SGD(0.1))
    engine.enqueue((IDS, IDS))
    engine.dequeue()
    return engine


def same_name() -> None:
    """Makes an engine of two tables with one name."""
    tables = [EMB.TableConfig(vocabulary_size=8, dim=2, name="table") for _ in range(2)]
    TPUEmbedding(tuple(EMB.FeatureConfig(table) for table in tables), SGD(0.1))


def enqueue(ids: Any, weights: Any) -> Callable[[], None]:
    """Returns a function that enqueues the same ids and weights for both features."""
    return lambda: TPUEmbedding(features(), SGD(0.1)).enqueue((ids, ids), (weights, weights))


SPARSE = IDS.to_sparse()
REFUSED: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "tables": (ValueError, "Multiple tables with name table found", same_name),
    "no tensors": (
        ValueError,
        "found non-tensor type",
        lambda: built().apply_gradients((1, 2)),
    ),
    "a list": (
        TypeError,
        "The two structures don't have the same nested structure",
        lambda: built().apply_gradients([tf.zeros([2, 2])] * 2),
    ),
    "weights of dense ids": (
        ValueError,
        "Weight specified for dense input",
        enqueue(tf.constant([1, 2]), tf.constant([1.0, 2.0])),
    ),
    "ragged weights of sparse ids": (
        ValueError,
        "which does not match type input which is SparseTensor",
        enqueue(SPARSE, tf.cast(IDS, tf.float32)),
    ),
    "sparse weights of ragged ids": (
        ValueError,
        "which does not match type input which is RaggedTensor",
        enqueue(IDS, tf.cast(SPARSE, tf.float32)),
    ),
    "shapes": (
        ValueError,
        "Input Feature",
        lambda: TPUEmbedding(features(), SGD(0.1)).build([tf.TensorShape([1, None, None])] * 2),
    ),
}


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_the_type_and_words_are_those_of_stock(name: str, in_function: bool) -> None:
    """Errors have stock's types and words, eagerly and while a function is traced."""
    kind, words, call = REFUSED[name]
    with pytest.raises(kind, match=words) as caught:
        (tf.function(call) if in_function else call)()
    assert isinstance(caught.value, errors.EngineError)

"""TPUEmbedding can be constructed and built as in TF 2.3 and as in later versions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import SGD, TPUEmbedding, errors

emb = tf.tpu.experimental.embedding


def config(**options: Any) -> dict[str, Any]:
    return {"a": emb.FeatureConfig(emb.TableConfig(10, 2, name="t"), name="a", **options)}


def shape_of(embedding: TPUEmbedding) -> Any:
    """Returns the output shape that the engine was built for."""
    return embedding.plan.features[0].output_shape


@pytest.mark.parametrize(
    "make, pipelined",
    [
        (lambda: TPUEmbedding(config(), 4, SGD(0.1)), False),
        (lambda: TPUEmbedding(config(), 4, SGD(0.1), True, True), True),
        (lambda: TPUEmbedding(feature_config=config(), batch_size=4, optimizer=SGD(0.1)), False),
    ],
)
def test_the_second_int_is_the_batch_size(make: Any, pipelined: bool) -> None:
    """In the form of TF 2.3 the batch size is fixed when the engine is made.

    `pipeline_execution_with_tensor_core` comes after the optimizer, as in later versions.
    """
    embedding = make()
    embedding.build()

    assert shape_of(embedding) == (4,)
    assert embedding.plan.pipeline_execution_with_tensor_core == pipelined
    with pytest.raises(errors.InvalidInput, match="Feature 'a'"):
        embedding.enqueue({"a": tf.constant([1, 2, 3])})


def test_not_initialising_needs_an_initialised_engine() -> None:
    """With initialize_tpu_embedding=False and no other engine, creation fails and says why."""
    with pytest.raises(RuntimeError, match="no other engine has initialised"):
        TPUEmbedding(config(), 4, SGD(0.1), False, False)


@pytest.mark.parametrize(
    "arguments, expected, is_deprecated",
    [
        ({"per_replica_input_shapes": {"a": (4, 3)}}, (4,), False),
        ({"per_replica_input_shapes": {"a": tf.TensorShape([4, 5, 3])}}, (4, 5), False),
        ({"per_replica_batch_size": 4}, (4,), True),
        ({"per_replica_input_shapes": 4}, (4,), True),
    ],
)
def test_build_takes_input_shapes(
    arguments: dict[str, Any], expected: Any, is_deprecated: bool
) -> None:
    """`build` drops the last dimension of each input shape; batch sizes come with a warning."""
    embedding = TPUEmbedding(config(), SGD(0.1))
    words = "per_replica_input_shapes"
    with pytest.warns(DeprecationWarning, match=words) if is_deprecated else nullcontext():
        embedding.build(**arguments)

    assert shape_of(embedding) == expected


def test_build_needs_to_know_every_shape() -> None:
    with pytest.raises(errors.InvalidSpec, match="Feature 'a': its output shape is not known"):
        TPUEmbedding(config(), SGD(0.1)).build()


def test_an_engine_without_optimizer_only_looks_up() -> None:
    """With optimizer None there are no slots, lookups work and gradients are refused."""
    embedding = TPUEmbedding(config(), None)
    embedding.enqueue({"a": tf.constant([1, 2])})

    assert embedding.dequeue()["a"].shape == (2, 2)
    assert set(embedding.tables["t"].variables) == {"parameters"}
    with pytest.raises(errors.OutOfOrder, match="no optimizer"):
        embedding.apply_gradients({"a": tf.ones([2, 2])})

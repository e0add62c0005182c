"""The engine under a TPUStrategy: what it builds by itself, and what it refuses.

test_tpu_graphs.py shows, through the same calls, that the engine's graphs are stock's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu
from tf2_engine import errors

CONFIG = tf.tpu.experimental.embedding
BATCH = 8
SHAPES = {"dense": [BATCH, 1], "sequence": [BATCH, 3]}
ENQUEUE = "EnqueueTPUEmbeddingArbitraryTensorBatch"
NO_DYNAMIC_BATCH = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)


def config() -> dict[str, Any]:
    """Returns a table with a dense feature and a sequence."""
    videos = CONFIG.TableConfig(10, 4, name="videos", combiner="mean")
    return {
        "dense": CONFIG.FeatureConfig(videos, name="dense"),
        "sequence": CONFIG.FeatureConfig(videos, name="sequence", max_sequence_length=3),
    }


def cores(number: int, **options: Any) -> Any:
    """Returns a strategy over a TPU of one host, which does not exist."""
    return fake_tpu.strategy(1, number, job="localhost", **options)


def engine(strategy: Any, **options: Any) -> Any:
    with strategy.scope():
        return tf2_engine.TPUEmbedding(config(), tf2_engine.Adagrad(0.1), **options)


def built() -> Any:
    """Returns an engine on one core that is built."""
    embedding = engine(cores(1))
    with fake_tpu.recorded():
        embedding.build(SHAPES)
    return embedding


def ids(samples: int = BATCH) -> dict[str, Any]:
    return {
        "dense": tf.zeros([samples], tf.int64),
        "sequence": tf.SparseTensor(
            tf.constant([[0, 0], [samples - 1, 2]], tf.int64), tf.constant([1, 2]), [samples, 3]
        ),
    }


def shapes(embedding: Any) -> list[Any]:
    """Returns the shapes of the activations that an engine is built for, in feature order."""
    return [feature.output_shape for feature in embedding.plan.features]


def ops(all_ops: list[tuple[str, dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    return [arguments for kind, arguments in all_ops if kind == name]


def test_the_first_batch_builds_the_engine() -> None:
    """Without `build`, shapes come from a replica's part of the first batch."""
    strategy = cores(2)
    embedding = engine(strategy)
    parts = [ids(), ids()]

    with fake_tpu.recorded() as recorded:
        embedding.enqueue(
            {key: fake_tpu.distribute(strategy, [part[key] for part in parts]) for key in ids()}
        )

    assert shapes(embedding) == [(BATCH,), (BATCH, 3)]
    assert [op["device_ordinal"] for op in ops(recorded, ENQUEUE)] == [0, 1]
    assert [name for name, _ in recorded][:3] == [
        "IsTPUEmbeddingInitialized",
        "ConfigureTPUEmbedding",
        "LoadTPUEmbeddingAdagradParameters",
    ]


def test_a_replica_of_several_cores_is_split() -> None:
    """With model parallelism a replica's batch is spread over its cores, gradients are not."""
    strategy = cores(4, cores_per_replica=2)
    embedding = engine(strategy)
    replicas = [ids(2 * BATCH), ids(2 * BATCH)]

    with fake_tpu.recorded() as recorded:
        embedding.enqueue(
            {key: fake_tpu.distribute(strategy, [part[key] for part in replicas]) for key in ids()}
        )

    assert shapes(embedding) == [(BATCH,), (BATCH, 3)]
    assert [op["device_ordinal"] for op in ops(recorded, ENQUEUE)] == [0, 1, 2, 3]
    activations = {}

    def replica() -> None:
        activations.update(embedding.dequeue())
        embedding.apply_gradients({"dense": None, "sequence": activations["sequence"]})

    def of_one_core() -> None:
        embedding.apply_gradients(
            {"dense": tf.zeros([BATCH, 4]), "sequence": tf.zeros([2 * BATCH, 3, 4])}
        )

    with pytest.warns(UserWarning, match="the gradient is None"):
        traced(strategy, replica)
    assert {key: value.shape for key, value in activations.items()} == {
        "dense": [2 * BATCH, 4],
        "sequence": [2 * BATCH, 3, 4],
    }
    with pytest.raises(errors.InvalidInput, match=re.escape("expected [16, 4]")):
        traced(strategy, of_one_core)


def traced(strategy: Any, replica: Callable[[], None]) -> None:
    @tf.function(autograph=False)
    def step() -> None:
        strategy.run(replica)

    step.get_concrete_function()


def test_samples_that_the_cores_of_a_replica_cannot_share_are_refused() -> None:
    strategy = cores(2, cores_per_replica=2)

    with pytest.raises(errors.InvalidInput, match="'dense': 7 samples cannot be split over the 2"):
        engine(strategy).enqueue(ids(7))


@pytest.mark.parametrize("call", ["dequeue", "apply_gradients"])
def test_replicas_call_inside_run(call: str) -> None:
    """What only a core can do is refused outside of `strategy.run`, by name."""
    embedding = built()
    arguments = [{"dense": None, "sequence": None}] if call == "apply_gradients" else []

    with pytest.raises(RuntimeError, match=f"`{call}` is called outside of `strategy.run`"):
        getattr(embedding, call)(*arguments)


def test_tables_are_on_the_tpu() -> None:
    """`embedding_tables` is refused, with the way to the rows; while exporting it is not."""
    embedding = built()

    with pytest.raises(RuntimeError, match="Save a checkpoint, and restore it into an engine"):
        _ = embedding.embedding_tables
    with mock.patch.object(tf2_engine.tf_compat, "in_saved_model_export", return_value=True):
        (table,) = embedding.embedding_tables.values()
    assert table is embedding.tables["videos"].variables["parameters"][0]


def test_a_second_engine_needs_a_new_tpu_system() -> None:
    """While the TPU is initialised for one engine, another is refused; after a reset it is not."""
    strategy = cores(1)

    with (
        fake_tpu.recorded(initialized=True) as recorded,
        pytest.raises(RuntimeError, match=r"already initialized for embeddings.*several engines"),
    ):
        engine(strategy).build(SHAPES)
    assert [name for name, _ in recorded] == ["IsTPUEmbeddingInitialized"]
    with fake_tpu.recorded(initialized=False):
        engine(strategy).build(SHAPES)


@pytest.mark.parametrize("initialized", [False, True])
def test_an_engine_can_use_what_another_initialised(initialized: bool) -> None:
    """With initialize_tpu_embedding=False the TPU must be initialised, and is left as it is."""
    strategy = cores(1)

    with fake_tpu.recorded(initialized) as recorded:
        if not initialized:
            with pytest.raises(RuntimeError, match="no other engine has initialised"):
                engine(strategy, initialize_tpu_embedding=False)
            return
        embedding = engine(strategy, initialize_tpu_embedding=False)
        embedding.build(SHAPES)

    assert not ops(recorded, "ConfigureTPUEmbedding")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_cores": 3}, "`num_cores`=3, but the TPU has 2. Leave `num_cores` out."),
        ({"num_hosts": 2}, "`num_hosts`=2, but the TPU has 1. Leave `num_hosts` out."),
        ({"batch_size": 3}, "`batch_size`=3 must be a positive multiple of the number of cores"),
    ],
)
def test_settings_that_contradict_the_tpu_are_refused(options: Any, message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=re.escape(message)):
        engine(cores(2), **options)


def test_lookups_that_are_computed_from_rows_are_refused() -> None:
    """A TPU returns the rows of a FrequencyEstimator; its weighted form is refused by name."""
    estimator = tf2_engine.FrequencyEstimator(
        lambda: 1.0, tau=0.5, max_delta=4.0, outlier_threshold=2.0, weight_exponent=2, weighted=True
    )
    table = tf2_engine.TableSpec("hits", 10, 1, "sum", estimator)
    spec = tf2_engine.EngineSpec((table,), (tf2_engine.FeatureSpec("ids", "hits"),))

    with cores(1).scope():
        embedding = tf2_engine.TPUEmbedding(spec)
    with pytest.raises(
        errors.InvalidSpec, match=r"'hits'.*weighted=True.*can only return stored rows"
    ):
        embedding.build_for([(BATCH,)])


@pytest.mark.parametrize("feature", ["V2", "UNSUPPORTED"])
def test_other_embedding_hardware_is_refused(feature: str) -> None:
    """A TPU without the hardware of this driver is refused; the message names what it has."""
    strategy = cores(1)

    with (
        mock.patch.object(tf2_engine.tf_compat, "embedding_hardware", return_value=feature),
        pytest.raises(errors.InvalidSpec, match=f"embedding hardware is {feature} .*driver='host'"),
    ):
        engine(strategy, driver="tpu")


def test_the_driver_needs_a_tpu() -> None:
    message = r"driver='tpu' needs a tf\.distribute\.TPUStrategy.*strategy.scope.*driver='host'"
    with pytest.raises(RuntimeError, match=message):
        tf2_engine.TPUEmbedding(config(), tf2_engine.SGD(0.1), driver="tpu")


def inside(call: Callable[[Any, Any], Any], strategy: Any, embedding: Any) -> None:
    """Traces a call inside `strategy.run`."""

    @tf.function(autograph=False)
    def step(features: Any) -> None:
        distributed = {key: fake_tpu.distribute(strategy, [features[key]]) for key in features}
        strategy.run(
            lambda batch: call(embedding, batch), args=(distributed,), options=NO_DYNAMIC_BATCH
        )

    with fake_tpu.recorded():
        step.get_concrete_function(ids())


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (
            lambda embedding, batch: embedding.enqueue(batch, device="/device:TPU:0"),
            ValueError,
            "inside `strategy.run` each replica enqueues for itself",
        ),
        (
            lambda embedding, batch: tf.cond(
                tf.constant(True),
                lambda: [embedding.enqueue(batch), tf.constant(0)][1],
                lambda: tf.constant(1),
            ),
            RuntimeError,
            "`enqueue` is called inside control flow",
        ),
        (
            lambda embedding, batch: embedding.enqueue({**batch, "dense": batch["dense"] + 1}),
            ValueError,
            r"'dense' \(table 'videos'\).*must be an argument.*"
            "experimental_enable_dynamic_batch_size=False",
        ),
    ],
)
def test_what_a_tpu_cannot_take_leaves_the_engine_unbuilt(
    call: Any, kind: type[Exception], message: str
) -> None:
    """A call that is refused inside `strategy.run` does not build the engine."""
    strategy = cores(1)
    embedding = engine(strategy)

    with pytest.raises(kind, match=message):
        inside(call, strategy, embedding)

    assert "not built" in repr(embedding)

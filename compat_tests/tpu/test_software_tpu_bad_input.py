"""Bad input to the software TPU raises a clear error, and never ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import software_tpu as soft
from compat_tests.support.protos import parse
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, soft_tpu

ROWS, DIM, BATCH = 7, 2, 3
INT_MIN, INT_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max

CONFIG = """
    table_descriptor {
      name: "words" vocabulary_size: 7 dimension: 2
      optimization_parameters { adagrad {} learning_rate { constant: 0.5 } }
    }
    feature_descriptor { name: "title" table_id: 0 input_shape: 3 }
    mode: TRAINING num_hosts: 1 num_tensor_cores: 1
"""

BAD_CONFIGS: dict[str, tuple[str, str]] = {
    "no mode": ("mode: TRAINING=", "mode is 0"),
    "no table": ("table_descriptor {...}=", "there is no table"),
    "no rows": ("vocabulary_size: 7=vocabulary_size: 0", "table 'words' has vocabulary_size 0"),
    "negative rows": ("size: 7=size: -1", "table 'words' has vocabulary_size -1"),
    "huge table": ("size: 7=size: 9223372036854775807", "vocabulary_size 9223372036854775807"),
    "negative columns": ("dimension: 2=dimension: -3", "table 'words' has dimension -3"),
    "no optimizer": ("adagrad {}=", "table 'words' has no optimizer"),
    "tag": ("constant: 0.5=dynamic { tag: 3 }", "the tags of the dynamic learning rates go up to"),
    "no such table": ("table_id: 0=table_id: 4", "feature 0 'title' has table_id 4"),
    "no such table below": ("table_id: 0=table_id: -1", "feature 0 'title' has table_id -1"),
    "empty shape": ("input_shape: 3=", "feature 0 'title' of table 'words' has no input_shape"),
    "negative shape": ("input_shape: 3=input_shape: -3", "has the size -3 in its input_shape"),
    "huge shape": (
        "input_shape: 3=input_shape: [2147483647, 2147483647, 2147483647]",
        "has the size 2147483647 in its input_shape",
    ),
    "no hosts": ("num_hosts: 1=num_hosts: 0", "num_hosts is 0"),
    "cores and hosts": ("num_hosts: 1=num_hosts: 2", "num_hosts is 2 and num_tensor_cores is 1"),
    "two sizes": (
        "mode: TRAINING=mode: TRAINING batch_size_per_tensor_core: 3",
        "batch_size_per_tensor_core is 3 and there are feature descriptors",
    ),
    "model parallelism": (
        "num_hosts: 1=num_hosts: 1 spmd_sharding { enabled: true num_cores_per_replica: 2 }",
        "model parallelism",
    ),
}
"""What is replaced by what in `CONFIG`, and what the message says."""


def device(num_cores: int = 1, *, length: int | None = None, **options: Any) -> soft.Device:
    """Returns a device with one feature, a sequence if it has a length."""
    spec = EngineSpec(
        (TableSpec("words", ROWS, DIM, "mean", Adagrad(0.5)),), (FeatureSpec("title", "words"),)
    )
    shape = [BATCH] if length is None else [BATCH, length]
    return soft.Device(spec, [shape], num_cores=num_cores, **options)


def refuses(call: Callable[[], Any]) -> bool:
    """Whether a call ends with an error of the software TPU; no other error is let pass."""
    try:
        call()
    except tf.errors.OpError as error:
        if "Software TPU" not in error.message:
            raise
        return True
    return False


def still_works(one: soft.Device) -> None:
    """Checks that a device looks up and trains."""
    one.enqueue(0, [soft.dense([0, 1, 6])])
    ((activation,),) = one.step([[np.ones((BATCH, DIM))]])
    assert activation.shape == (BATCH, DIM)


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_configuration_that_cannot_be_is_refused(name: str) -> None:
    """A wrong configuration is refused with the table or feature; the one before stays in use."""
    change, message = BAD_CONFIGS[name]
    before, after = change.split("=")
    if before == "table_descriptor {...}":
        text = "mode: TRAINING num_hosts: 1 num_tensor_cores: 1"
    else:
        assert before in CONFIG
        text = CONFIG.replace(before, after)
    one = device()

    with pytest.raises(
        (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError), match=message
    ):
        tf.raw_ops.ConfigureTPUEmbedding(config=parse(text).SerializeToString())

    still_works(one)


@pytest.mark.parametrize("text", [b"words", b"title", b"/profiles"])
def test_text_in_a_configuration_is_utf_8(text: bytes) -> None:
    """Names of tables and features, and the profile folder, must be UTF-8, as in protobuf."""
    config = parse(CONFIG)
    config.profile_data_directory = "/profiles"
    whole = config.SerializeToString()
    one = device()
    tf.raw_ops.ConfigureTPUEmbedding(config=whole)

    assert refuses(
        lambda: tf.raw_ops.ConfigureTPUEmbedding(config=whole.replace(text, text[:-1] + b"\x88"))
    )
    still_works(one)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_broken_configurations_are_errors(count: int) -> None:
    chance = np.random.default_rng(0)
    whole = parse(CONFIG).SerializeToString()
    refused = 0
    soft_tpu.start()
    for _ in range(count):
        broken = bytearray(whole)
        for _ in range(chance.integers(1, 5)):
            broken[chance.integers(len(broken))] = chance.integers(256)
        cut = len(broken) if chance.random() < 0.5 else chance.integers(len(broken))
        refused += refuses(
            lambda: tf.raw_ops.ConfigureTPUEmbedding(config=bytes(broken[:cut]))  # noqa: B023
        )
    assert count / 2 < refused < count
    still_works(device())


BAD_BATCHES: dict[str, tuple[soft.Ids, str]] = {
    "negative id": (soft.dense([0, -1, 2]), "has the id -1 for cell 1, but the table has 7 rows"),
    "id too large": (soft.dense([0, 7, 2]), "has the id 7 for cell 1"),
    "huge id": (soft.dense([0, INT_MAX, 2]), f"has the id {INT_MAX}"),
    "lowest id": (soft.dense([INT_MIN, 0, 2]), f"has the id {INT_MIN}"),
    "too few dense": (soft.dense([0, 1]), "has 2 dense ids for 3 cells"),
    "too many dense": (soft.dense([0, 1, 2, 3]), "has 4 dense ids for 3 cells"),
    "no such sample": (soft.sparse([[3, 0]], [1]), "has the index 3 along axis 0 of size 3"),
    "negative sample": (soft.sparse([[-1, 0]], [1]), "has the index -1 along axis 0"),
    "index count": (soft.sparse([[0, 0], [1, 0]], [1]), "has 2 sample indices for 1 ids"),
    "columns": (soft.sparse([[0]], [1]), "has sample indices of 1 columns"),
    "rank": (soft.sparse([[[0, 0]]], [1]), "has sample indices of rank 3"),
    "weights": (soft.sparse([[0, 0]], [1], [1.0, 2.0]), "has 2 weights for 1 ids"),
    "splits decrease": (soft.ragged([0, 2, 1, 2], [1, 2]), "has row splits that decrease"),
    "splits start": (soft.ragged([1, 2, 2, 2], [1, 2]), "has row splits from 1 to 2 for 2 ids"),
    "splits end": (soft.ragged([0, 1, 2, 9], [1, 2]), "has row splits from 0 to 9 for 2 ids"),
    "negative splits": (soft.ragged([0, -5, 2, 2], [1, 2]), "has row splits that decrease"),
    "splits count": (soft.ragged([0, 1, 2], [1, 2]), "has 2 ragged rows for 3 cells"),
    "one split": (soft.ragged([0], []), "has 0 ragged rows"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_batch_that_does_not_fit_is_refused(name: str) -> None:
    batch, message = BAD_BATCHES[name]
    one = device()

    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as raised:
        one.enqueue(0, [batch])

    assert "feature 0 'title' of table 'words'" in raised.value.message
    still_works(one)


UNSORTED: dict[str, tuple[Any, Any, str]] = {
    "EnqueueTPUEmbeddingArbitraryTensorBatch": (
        "sample_indices_or_row_splits",
        [[0, 0], [2, 0], [1, 0]],
        "id 2 belongs to sample 1 but follows an id of sample 2",
    ),
    "DynamicEnqueueTPUEmbeddingArbitraryTensorBatch": (
        "sample_indices_or_row_splits",
        [[1, 0], [0, 0], [2, 0]],
        "id 1 belongs to sample 0 but follows an id of sample 1",
    ),
    "EnqueueTPUEmbeddingSparseTensorBatch": (
        "sample_indices",
        [[0, 0], [2, 0], [0, 1]],
        "id 2 belongs to sample 0 but follows an id of sample 2",
    ),
    "EnqueueTPUEmbeddingSparseBatch": (
        "sample_indices",
        [2, 2, 1],
        "id 2 belongs to sample 1 but follows an id of sample 2",
    ),
}
"""Ops that take indices: their argument, indices out of order, and what the message says."""


@pytest.mark.parametrize("op", UNSORTED)
def test_indices_that_are_not_sorted_are_refused(op: str) -> None:
    argument, index, message = UNSORTED[op]
    one = device()
    arguments = {
        argument: [np.array(index, np.int32)],
        "embedding_indices": [np.array([0, 1, 2], np.int32)],
        "aggregation_weights": [soft.NO_WEIGHTS],
        "mode_override": "train",
        "device_ordinal": 0,
        "combiners": ["sum"],
        **({"table_ids": [0]} if "SparseTensor" in op else {}),
    }

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"title.*{message}.* {op} takes"):
        getattr(tf.raw_ops, op)(**arguments)

    # In a cell ids may be in any order.
    getattr(tf.raw_ops, op)(**{**arguments, argument: [np.sort(np.array(index, np.int32), 0)]})
    ((activation,),) = one.step([[np.ones((BATCH, DIM))]])
    assert activation.shape == (BATCH, DIM)


def test_positions_that_are_not_sorted_are_refused() -> None:
    """In sequences ids come in the order of their positions too; those that are cut off as well."""
    one = device(length=2)
    for index, before in (([0, 0, 0], [0, 1, 0]), ([1, 1, 0], [1, 5, 0])):
        message = (
            f"id 1 belongs to sample {index[0]},{index[1]} but follows an id of sample {before[0]},"
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            one.enqueue(0, [soft.sparse([before, index], [1, 2])])
    one.enqueue(0, [soft.sparse([[0, 5, 1], [1, 0, 1], [1, 0, 0]], [1, 2, 3])])
    assert one.look_up()[0][0].shape == (BATCH, 2, DIM)


def test_random_batches_are_errors_or_go_through() -> None:
    """Hundreds of batches of random shapes and numbers are refused or looked up."""
    count = 600
    chance = np.random.default_rng(0)
    one = device()
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        ids = chance.choice(
            [0, 1, 6, 7, -1, INT_MAX], chance.integers(0, 5), p=[0.4, 0.3, 0.2, 0.04, 0.03, 0.03]
        )
        rank = chance.integers(0, 4)
        shapes = {
            0: [],
            1: [chance.integers(0, 6)],
            2: [len(ids), chance.integers(0, 4)],
            3: [1, 1, 1],
        }
        index = chance.integers(-1, 4, shapes[int(rank)])
        weights = chance.normal(size=chance.choice([0, len(ids), 2]))
        batch = soft.Ids(index.astype(np.int32), ids, weights.astype(np.float32))
        refused = refuses(lambda: one.enqueue(0, [batch]))  # noqa: B023
        outcomes[refused] += 1
        if not refused:
            one.step([[np.ones((BATCH, DIM))]])
    assert min(outcomes.values()) > count / 60, outcomes
    still_works(one)


def enqueue_op(**changes: Any) -> None:
    arguments = {
        "sample_indices_or_row_splits": [np.zeros([0], np.int32)],
        "embedding_indices": [np.array([0, 1, 2], np.int64)],
        "aggregation_weights": [soft.NO_WEIGHTS],
        "mode_override": "train",
        "device_ordinal": 0,
        "combiners": ["sum"],
    }
    tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(**{**arguments, **changes})


def transfer(**changes: Any) -> None:
    arguments = {
        "parameters": np.zeros((ROWS, DIM), np.float32),
        "accumulators": np.zeros((ROWS, DIM), np.float32),
        "table_name": "words",
        "num_shards": 1,
        "shard_id": 0,
    }
    tf.raw_ops.LoadTPUEmbeddingAdagradParameters(**{**arguments, **changes})


BAD_CALLS: dict[str, tuple[Callable[[soft.Device], Any], str]] = {
    "mode": (lambda one: enqueue_op(mode_override="backward_pass_only"), "`mode_override` is"),
    "combiner": (lambda one: enqueue_op(combiners=["max"]), "table 'words' has the combiner 'max'"),
    "combiners": (lambda one: enqueue_op(combiners=["sum"] * 3), "has 3 combiners for 1 features"),
    "no such core": (lambda one: enqueue_op(device_ordinal=5), "is for core 5, but there are 1"),
    "features": (
        lambda one: enqueue_op(
            sample_indices_or_row_splits=[np.zeros([0], np.int32)] * 2,
            embedding_indices=[np.zeros([3], np.int64)] * 2,
            aggregation_weights=[soft.NO_WEIGHTS] * 2,
        ),
        "has inputs for 2 features, but the configuration has 1",
    ),
    "no such table": (lambda one: transfer(table_name="verbs"), "is for table 'verbs'"),
    "no such table id": (
        lambda one: transfer(table_name="", table_id=9),
        r"\(table_id 9\), which the configuration does not have",
    ),
    "two tables": (lambda one: transfer(table_id=0), "exactly one of them must name the table"),
    "shard": (lambda one: transfer(num_shards=2), "table 'words': shard 0 of 2 on 1 hosts"),
    "table shape": (
        lambda one: transfer(parameters=np.zeros((ROWS + 1, DIM), np.float32)),
        "table 'words': input 0 of LoadTPUEmbeddingAdagradParameters has the shape",
    ),
    "slot shape": (
        lambda one: transfer(accumulators=np.zeros((ROWS, 1), np.float32)),
        "table 'words': input 1 of",
    ),
    "other optimizer": (
        lambda one: tf.raw_ops.RetrieveTPUEmbeddingFTRLParameters(
            table_name="words", num_shards=1, shard_id=0
        ),
        "RetrieveTPUEmbeddingFTRLParameters does not fit its optimizer",
    ),
    "gradients too early": (
        lambda one: one.send([np.ones((BATCH, DIM), np.float32)]),
        "no training batch of this core was looked up",
    ),
    "gradient shape": (
        lambda one: one.send([np.ones((BATCH + 1, DIM), np.float32)]),
        r"gradient of feature 0 'title' of table 'words' has the shape \[4,2\] instead of \[3,2\]",
    ),
    "gradient rank": (
        lambda one: one.send([np.ones(6, np.float32)]),
        "the gradient of feature 0 'title' of table 'words'",
    ),
    "rates": (
        lambda one: one.send([np.ones((BATCH, DIM), np.float32)], [0.5]),
        "has 1 gradients and 1 learning rates",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_call_that_cannot_be_is_refused(name: str) -> None:
    """Wrong attributes, shapes and orders of calls are errors that say what was expected."""
    call, message = BAD_CALLS[name]
    one = device()

    with pytest.raises(tf.errors.OpError, match=message):
        call(one)

    still_works(one)


def test_nothing_works_before_it_is_configured() -> None:
    one = device()
    soft_tpu.start()

    for call in (
        enqueue_op,
        transfer,
        lambda: one.receive(),
        lambda: one.send([np.ones((BATCH, DIM), np.float32)]),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="not configured for embed"):
            call()
    assert not tf.raw_ops.IsTPUEmbeddingInitialized()


def test_ops_of_several_cores_must_say_theirs() -> None:
    """Outside of `strategy.run` an op cannot know which of two cores is meant."""
    one = device(2)

    with pytest.raises(tf.errors.FailedPreconditionError, match="belongs to none of the 2 cores"):
        one.receive()


def test_cores_that_train_and_infer_at_once_are_refused() -> None:
    one = device(2)
    one.enqueue(0, [soft.dense([0, 1, 2])])

    with pytest.raises(tf.errors.InvalidArgumentError, match="core 1 enqueued a batch for infer"):
        one.enqueue(1, [soft.dense([0, 1, 2])], "inference")


def test_gradients_are_refused_when_configured_for_inference() -> None:
    one = device(training=False)
    for _ in range(3):
        one.enqueue(0, [soft.dense([0, 1, 2])], "unspecified")
        one.look_up()

    with pytest.raises(tf.errors.FailedPreconditionError, match="configured for inference"):
        one.send([np.ones((BATCH, DIM), np.float32)])


ENDS: dict[str, tuple[Callable[[soft.Device], Any], str]] = {
    "shutdown": (lambda one: tf.raw_ops.ShutdownDistributedTPU(), "it was shut down while"),
    "initialization": (lambda one: tf.raw_ops.ConfigureDistributedTPU(), "it was initialized wh"),
    "configuration": (
        lambda one: tf.raw_ops.ConfigureTPUEmbedding(config=one.config),
        "it was configured again while",
    ),
    "another strategy": (lambda one: soft_tpu.SoftTPUStrategy(1), "it was restarted while"),
}


@pytest.mark.parametrize("num_cores", [1, 2])
@pytest.mark.parametrize("name", ENDS)
def test_what_waits_ends_with_an_error(name: str, num_cores: int) -> None:
    """In the middle of a step the TPU goes away: lookups that wait for a batch say so and end."""
    end, message = ENDS[name]
    one = device(num_cores)
    if num_cores == 2:
        one.enqueue(0, [soft.dense([0, 1, 2])])
    waiting = soft.Waiting(one.look_up)
    assert waiting.waits

    end(one)
    waiting.end()

    assert isinstance(waiting.error, tf.errors.AbortedError)
    assert message in waiting.error.message
    assert "an op waited for the activations of a batch" in waiting.error.message
    assert soft_tpu.num_waiting() == 0
    still_works(device())


def test_an_error_on_one_core_ends_the_wait_of_the_others() -> None:
    """What another core's error cancels leaves nothing behind, and the next step is right."""
    one = device(2)

    @tf.function(autograph=False)
    def step(fails: Any) -> Any:
        def core() -> Any:
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            bad = tf.logical_and(fails, number > 1.5)
            with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(bad), ["broken"])]):
                number = tf.identity(number)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, number)

        return one.strategy.run(core)

    for _ in range(20):
        with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
            step(tf.constant(True))
        assert soft_tpu.num_waiting() == 0
        results = one.strategy.experimental_local_results(step(tf.constant(False)))
        assert [float(result) for result in results] == [3.0, 3.0]

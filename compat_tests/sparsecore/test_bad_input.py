"""Bad input to the software SparseCores raises a clear error, and never ends the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine.soft_tpu import SoftTPUStrategy

raw = tf.raw_ops
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> Iterator[None]:
    SoftTPUStrategy(1, hardware="sparsecore", sparse_cores=2)
    return


def ints(*values: int) -> Any:
    """Returns an int32 vector."""
    return tf.constant(values, tf.int32, [len(values)])


def floats(*values: float) -> Any:
    """Returns a float32 vector."""
    return tf.constant(values, tf.float32, [len(values)])


READ = {
    "indices_or_row_splits": ints(0, 1, 2, 2, 3),
    "values": ints(5, 6, 7),
    "weights": floats(1, 1, 1),
    "sample_count": 4,
    "num_sc_per_chip": 2,
    "row_offset": 0,
    "col_offset": 0,
    "col_shift": 0,
    "num_sc_shards": 2,
    "stacked_table_sample_count": 4,
    "combiner": "sum",
}
SORT = {
    "row_ids_list": [ints(0, 1)],
    "col_ids_list": [ints(4, 5)],
    "gains_list": [floats(1, 1)],
    "sample_count_list": [2],
    "col_offset_list": [0],
    "num_replica": 1,
    "table_vocab_size": 16,
    "feature_width": 8,
    "num_sc_per_chip": 2,
    "max_ids_per_sparse_core": 8,
    "max_unique_ids_per_sparse_core": 8,
    "table_name": "words",
}
PACK = {
    "sorted_row_ids_list": [ints(0, 1), ints(0)],
    "sorted_col_ids_list": [ints(2, 2), ints(1)],
    "sorted_gains_list": [floats(1, 1), floats(1)],
    "id_counts_list": [ints(0, 1, 2), ints(0, 0, 1)],
    "splits": tf.constant(0, tf.int64),
    "sample_count_per_sc": 2,
    "num_replica": 1,
    "max_minibatches_per_sc": 4,
    "max_ids_per_chip_per_sample": 16,
    "table_vocab_size": 16,
    "feature_width": 8,
    "table_name": "words",
    "allow_id_dropping": False,
}
# Two SparseCores with two samples each; one id from SparseCore 0 to SparseCore 1.
IDS = {
    "row_pointers": ints(0, 1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8),
    "sorted_sample_ids": ints(1, *[INT_MAX] * 7),
    "sorted_token_ids": ints(3, *[INT_MAX] * 7),
    "sorted_gains": floats(1, *[2.0**31] * 7),
    "num_minibatches_per_physical_sparse_core": 1,
    "max_ids_per_sparse_core": 8,
    "max_unique_ids_per_sparse_core": 8,
    "table_name": "words",
    "embedding_table": tf.ones([16, 8]),
}
LOOK_UP = {
    **IDS,
    "input_size": 4,
    "quantization_config_low": 0.0,
    "quantization_config_high": 0.0,
    "quantization_config_num_buckets": 0,
}
UPDATE = {
    **IDS,
    "activation_gradients": tf.ones([4, 8]),
    "learning_rate": 1.0,
    "accumulator": tf.ones([16, 8]),
    "clip_weight_min": -np.inf,
    "clip_weight_max": np.inf,
}
COPY = {"tensors": [ints(1, 2, 3)], "unpadded_sizes": [2]}

OPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "read": (raw.ConvertToListOfSparseCoreCooTensors, READ),
    "sort": (raw.SortListOfSparseCoreCooTensors, SORT),
    "pack": (raw.ConvertToSparseCoreCsrWrappedCooTensor, PACK),
    "copy": (raw.TPUCopyWithDynamicShape, COPY),
    "look up": (raw.XlaSparseDenseMatmulWithStaticBufferSize, LOOK_UP),
    "update": (raw.XlaSparseDenseMatmulGradWithAdagradAndStaticBufferSize, UPDATE),
}

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("read", {"num_sc_shards": 3}, "num_sc_shards 3 is not a power of two"),
    ("read", {"num_sc_shards": 2**30}, "num_sc_shards 1073741824"),
    ("read", {"num_sc_per_chip": 4}, "num_sc_per_chip is 4, but there are 2 shards"),
    ("read", {"sample_count": 3}, "sample_count is 3, .* the next number that fits is 4"),
    ("read", {"sample_count": INT_MAX}, "sample_count is 2147483647"),
    ("read", {"row_offset": 1, "stacked_table_sample_count": 6}, "row_offset 1"),
    ("read", {"row_offset": 2}, "do not fit stacked_table_sample_count 4"),
    ("read", {"stacked_table_sample_count": 5}, "do not fit stacked_table_sample_count 5"),
    ("read", {"combiner": "max"}, "the combiner is 'max'"),
    ("read", {"weights": floats(1, 1)}, "do not fit together"),
    ("read", {"values": tf.zeros([3, 1], tf.int32)}, "do not fit together"),
    ("read", {"indices_or_row_splits": ints(0, 3)}, "do not fit together"),
    ("read", {"indices_or_row_splits": tf.constant(1)}, "do not fit together"),
    ("read", {"indices_or_row_splits": tf.zeros([3, 3], tf.int32)}, "do not fit together"),
    ("read", {"indices_or_row_splits": tf.zeros([2, 2], tf.int32)}, "do not fit together"),
    ("read", {"indices_or_row_splits": tf.zeros([1, 1, 1], tf.int32)}, "do not fit together"),
    ("read", {"indices_or_row_splits": ints(0, 2, 1, 2, 3)}, "row splits .* decrease after sample"),
    ("read", {"indices_or_row_splits": ints(0, 1, 2, 2, 4)}, "go from 0 to 4 for 3 ids"),
    ("read", {"indices_or_row_splits": ints(1, 1, 2, 2, 3)}, "go from 1 to 3 for 3 ids"),
    ("read", {"indices_or_row_splits": ints(0, 9, 9, 9, 3)}, "decrease"),
    ("read", {"indices_or_row_splits": ints(0, INT_MIN, 2, 2, 3)}, "decrease"),
    ("read", {"indices_or_row_splits": ints()}, "the number of dense ids of .* is 3"),
    (
        "read",
        {"indices_or_row_splits": tf.constant([[0, 0], [4, 0], [5, 0]])},
        "is for sample 4, but there are 4",
    ),
    (
        "read",
        {"indices_or_row_splits": tf.constant([[0, 0], [-1, 0], [5, 0]])},
        "is for sample -1",
    ),
    (
        "read",
        {"indices_or_row_splits": tf.constant([[1, 0], [0, 0], [2, 0]])},
        "not in order: sample 0 comes after 1",
    ),
    ("sort", {"num_replica": 3}, "a power of two"),
    ("sort", {"num_replica": INT_MAX}, "a power of two"),
    ("sort", {"sample_count_list": [2, 2]}, "do not fit each other"),
    ("sort", {"sample_count_list": [0]}, "do not fit each other"),
    ("sort", {"sample_count_list": [-1]}, "do not fit each other"),
    ("sort", {"sample_count_list": [INT_MAX] * 3, "col_offset_list": [0] * 3}, "do not fit each"),
    ("sort", {"row_ids_list": [ints(0)]}, "has 1 rows, 2 columns and 2 gains"),
    ("sort", {"gains_list": [floats(0)]}, "has 2 rows, 2 columns and 1 gains"),
    ("sort", {"row_ids_list": [ints(0, -1)]}, "a row id of table words is -1"),
    ("sort", {"sample_count_list": [1, 1], "col_offset_list": [0, 8]}, "triples of 1 features"),
    ("pack", {"num_replica": 3}, "6 SparseCores, which is not a power of two"),
    ("pack", {"num_replica": INT_MAX}, "is for 2147483647 cores"),
    ("pack", {"sample_count_per_sc": INT_MAX}, "room for more ids"),
    ("pack", {"max_ids_per_chip_per_sample": INT_MAX}, "room for more ids"),
    ("pack", {"max_minibatches_per_sc": INT_MAX}, "room for more ids"),
    ("pack", {"max_ids_per_chip_per_sample": 1}, "set to be 4 which is not divisible"),
    ("pack", {"splits": tf.constant(1, tf.int64)}, "2 SparseCores and 2 minibatches"),
    ("pack", {"splits": tf.constant(-1, tf.int64)}, "64 minibatches, but at most 4"),
    ("pack", {"id_counts_list": [ints(0, 2), ints(0, 0, 1)]}, "id_counts of table words has 2"),
    ("pack", {"id_counts_list": [ints(), ints(0, 0, 1)]}, "and 0 id counts"),
    ("pack", {"id_counts_list": [ints(0, 1, 3), ints(0, 0, 1)]}, "go from 0 to 3 for 2 ids"),
    ("pack", {"id_counts_list": [ints(1, 1, 2), ints(0, 0, 1)]}, "go from 1 to 2 for 2 ids"),
    ("pack", {"id_counts_list": [ints(0, 9, 2), ints(0, 0, 1)]}, "decrease"),
    ("pack", {"id_counts_list": [ints(0, INT_MIN, 2), ints(0, 0, 1)]}, "decrease"),
    ("pack", {"sorted_gains_list": [floats(1), floats(1)]}, "2 samples, 2 tokens, 1 gains"),
    ("copy", {"unpadded_sizes": [4]}, "an unpadded size of 4, but a size of 3"),
    ("copy", {"unpadded_sizes": [-1]}, "an unpadded size of -1, but a size of 3"),
    ("copy", {"unpadded_sizes": [ints()]}, "its unpadded size is not a scalar"),
    ("copy", {"tensors": [tf.constant(1)]}, "is a scalar"),
    ("look up", {"input_size": 3}, "3 samples on a core, which cannot be divided"),
    ("look up", {"embedding_table": tf.ones([15, 8])}, r"has the shape \[15,8\]"),
    ("look up", {"embedding_table": tf.ones([16])}, r"has the shape \[16\]"),
    ("look up", {"row_pointers": ints(0, 1, 8, 8)}, "has 4 row_pointers"),
    ("look up", {"row_pointers": ints()}, "has 0 row_pointers"),
    ("look up", {"num_minibatches_per_physical_sparse_core": 2}, "for 2 minibatches"),
    ("look up", {"num_minibatches_per_physical_sparse_core": 0}, "for 0 minibatches"),
    ("look up", {"num_minibatches_per_physical_sparse_core": INT_MAX}, "for 2147483647 mini"),
    ("look up", {"num_minibatches_per_physical_sparse_core": INT_MIN}, "for -2147483648 mini"),
    ("look up", {"row_pointers": ints(0, 9, *[8] * 14)}, "a row pointer of table words is 9"),
    ("look up", {"row_pointers": ints(1, 7, *[8] * 14)}, "is 7, but those before end at 8"),
    ("look up", {"row_pointers": ints(-1, 7, *[8] * 14)}, "a row pointer of table words is -1"),
    ("look up", {"row_pointers": ints(INT_MAX, *[8] * 15)}, "is 2147483647"),
    ("look up", {"sorted_sample_ids": ints(2, *[0] * 7)}, "a sample id of table words is 2"),
    ("look up", {"sorted_sample_ids": ints(-1, *[0] * 7)}, "a sample id of table words is -1"),
    ("look up", {"sorted_token_ids": ints(8, *[0] * 7)}, "a token of table words is 8"),
    ("look up", {"sorted_token_ids": ints(INT_MIN, *[0] * 7)}, "a token of table words is -2147"),
    ("look up", {"sorted_token_ids": ints(3)}, "8 sample ids, 1 tokens"),
    ("update", {"activation_gradients": tf.ones([4, 7])}, "the gradients, the learning rate"),
    ("update", {"activation_gradients": tf.ones([3, 8])}, "3 samples on a core"),
    ("update", {"activation_gradients": tf.ones([4])}, r"have the shape \[4\]"),
    ("update", {"learning_rate": floats(1, 2)}, "the gradients, the learning rate or a slot"),
    ("update", {"accumulator": tf.ones([8, 8])}, "the gradients, the learning rate or a slot"),
    ("update", {"clip_weight_min": 2.0, "clip_weight_max": 1.0}, "clip_weight_min 2"),
    ("update", {"sorted_token_ids": ints(8, *[0] * 7)}, "a token of table words is 8"),
]
"""The op, what is wrong, and what the message says."""


@pytest.mark.parametrize("op", OPS)
def test_what_is_right_runs(op: str) -> None:
    """The correct inputs, which the tests below make wrong in one place, are accepted."""
    function, arguments = OPS[op]
    assert function(**arguments) is not None


@pytest.mark.parametrize(("op", "wrong", "message"), BAD, ids=[f"{o}: {m}" for o, _, m in BAD])
def test_what_is_wrong_is_an_error(op: str, wrong: dict[str, Any], message: str) -> None:
    """A wrong input is an error that says what is wrong, and the op works afterwards."""
    function, arguments = OPS[op]
    with pytest.raises(tf.errors.OpError, match=message):
        function(**{**arguments, **wrong})
    function(**arguments)


def _changed(rng: np.random.Generator, value: Any) -> Any:
    """Returns an input with a few numbers of it, or its shape, changed by chance."""
    if isinstance(value, list):
        return [_changed(rng, one) if rng.random() < 0.5 else one for one in value]
    if not isinstance(value, tf.Tensor):
        return value
    array = value.numpy().copy()
    if array.ndim == 1 and rng.random() < 0.3:
        return tf.constant(np.resize(array, rng.integers(0, 20)), value.dtype)
    if array.size and np.issubdtype(array.dtype, np.integer):
        strange = [INT_MAX, INT_MIN, -1, 0, 1, 2, 7, 8, 9, 15, 16, 63, 64]
        array.flat[rng.integers(array.size)] = rng.choice(strange)
    elif array.size:
        array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -1.0, 0.0, 1e38])
    return tf.constant(array, value.dtype)


def _hostile(seed: int, count: int) -> tuple[int, int]:
    """Calls ops with inputs that are changed by chance; returns how many ran, and were refused."""
    rng = np.random.default_rng(seed)
    ran = refused = 0
    for name in rng.choice(list(OPS), count):
        function, arguments = OPS[name]
        names = rng.choice(list(arguments), rng.integers(1, 4))
        changed = {key: _changed(rng, arguments[key]) for key in names}
        try:
            function(**{**arguments, **changed})
            ran += 1
        except tf.errors.OpError as error:
            refused += bool(error.message)
    return ran, refused


@pytest.mark.parametrize(("seed", "count"), [(1, 300)])
def test_hostile_calls_end(seed: int, count: int) -> None:
    """Each call that no program would make is done, or ends with an error of TensorFlow's."""
    ran, refused = _hostile(seed, count)

    assert ran + refused == count, "an error says nothing"
    assert min(ran, refused) > count // 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_hostile_calls_end(seed: int) -> None:
    """Each of 10,000 hostile calls for each of 20 seeds is done, or ends with an error."""
    assert sum(_hostile(100 + seed, 10_000)) == 10_000

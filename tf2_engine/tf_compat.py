"""The seam: every private or version-dependent name of TensorFlow that the project uses.

Nothing else in the project imports `tensorflow.python`, `tensorflow.core` or keras internals.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# The config proto and its enums have no public name.
from tensorflow.core.protobuf.tpu import optimization_parameters_pb2 as _optimization
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2 as _configuration

# Stock's TPU feature columns and CrossShardOptimizer ask these modules whether they are inside a
# TPU computation, and over how many cores.
from tensorflow.python.ops import gen_tpu_ops as _gen_tpu_ops
from tensorflow.python.tpu import feature_column as _tpu_feature_column
from tensorflow.python.tpu import tpu_function as _tpu_function
from tensorflow.python.training import training_util as _training_util

TESTED = ("2.15", "2.21")
if ".".join(tf.__version__.split(".")[:2]) not in TESTED:
    logging.getLogger(__name__).warning(
        "TensorFlow %s: this project is tested with %s; others should work, but check the results.",
        tf.__version__,
        " and ".join(TESTED),
    )

TPUEmbeddingConfiguration = _configuration.TPUEmbeddingConfiguration
GradientAccumulationStatus = _optimization.GradientAccumulationStatus
HotIdReplicationConfiguration = _optimization.HotIdReplicationConfiguration


def sequence_length_key(feature_key: str) -> str:
    """Returns the key under which columns look for the lengths of a sequence feature."""
    from tensorflow.python.tpu import feature_column

    return feature_column.get_sequence_length_feature_key_name_from_feature_key_name(feature_key)


def pad_ids(ids: tf.SparseTensor, padded_length: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids as tensor-core columns take them: padded, with a mask, [batch, length] both."""
    from tensorflow.python.tpu import feature_column_v2

    return feature_column_v2.pad_sparse_embedding_lookup_indices(ids, padded_length)


def mask_key(feature_key: str) -> str:
    """Returns the key under which tensor-core columns look for the mask of their ids."""
    from tensorflow.python.tpu import feature_column_v2

    return feature_key + feature_column_v2._TENSOR_CORE_MASK_KEY_SUFFIX


_PATCH_LOCK = threading.RLock()


@contextlib.contextmanager
def tpu_computation(num_cores: int, cross_replica_sum: Callable[..., Any]) -> Iterator[None]:
    """While it is open, the code that is traced takes itself for a core of a TPU.

    Args:
        num_cores: what the shard context says.
        cross_replica_sum: called as `(input, group_assignment, name=None)` instead of the op, which
            has no kernel outside of a TPU.
    """
    with _PATCH_LOCK:
        stock = _gen_tpu_ops.cross_replica_sum
        _gen_tpu_ops.cross_replica_sum = cross_replica_sum
        try:
            with _tpu_function.tpu_shard_context(num_cores):
                yield
        finally:
            _gen_tpu_ops.cross_replica_sum = stock


def column_scopes(graph: tf.Graph) -> dict[str, tuple[str, str]]:
    """Returns what TPU columns recorded while they were used: variable name to (scope, name).

    Clears the record, as stock does.
    """
    key = _tpu_feature_column._TPU_FC_TO_SCOPE
    recorded = graph.get_collection(key)
    graph.clear_collection(key)
    return dict(recorded[0]) if recorded else {}


def rewire(stand_in: tf.Tensor, source: tf.Tensor) -> None:
    """Makes `source` the input of the Identity op that made `stand_in`, before any session runs.

    Tensors that are only known after a model has been traced can so be given to it beforehand.
    """
    stand_in.op._update_input(0, source)


def read_global_step(graph: tf.Graph) -> Any:
    """Returns the read of the global step that TensorFlow's hooks share, made if need be."""
    return _training_util._get_or_create_global_step_read(graph)


def add_saving_listener(hook: Any, listener: Any) -> None:
    """Adds a listener to a CheckpointSaverHook that someone else made."""
    if listener not in hook._listeners:
        hook._listeners.append(listener)


class KerasNames:
    """The counters from which Keras names unnamed layers of a graph.

    A model that is traced once per core in one graph must get the same names each time.
    """

    _MODULES = ("keras.src.backend", "tf_keras.src.backend")

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._saved = {name: dict(counters) for name, counters in self._counters()}

    def restore(self) -> None:
        """Sets the counters back to where they were when this object was made."""
        for name, counters in self._counters():
            counters.clear()
            counters.update(self._saved.get(name, {}))

    def _counters(self) -> Iterator[tuple[str, Any]]:
        for name in self._MODULES:
            per_graph = getattr(sys.modules.get(name), "PER_GRAPH_OBJECT_NAME_UIDS", {})
            if self._graph in per_graph:
                yield name, per_graph[self._graph]


def export_outputs(given: Any, predictions: Any) -> dict[str, Any]:
    """Returns a model's export outputs, checked, with a default one made of its predictions."""
    from tensorflow.python.saved_model.model_utils import export_utils

    return export_utils.get_export_outputs(given, predictions)


def summary_writer_initializers() -> list[tf.Operation]:
    """Returns the ops that create the summary writers of the default graph."""
    from tensorflow.python.ops import summary_ops_v2

    return list(summary_ops_v2.summary_writer_initializer_op())

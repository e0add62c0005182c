"""Sessions: the global step, Savers and summary writers that hooks share."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.ops import summary_ops_v2 as _summary_ops
from tensorflow.python.training import evaluation as _evaluation
from tensorflow.python.training import training_util as _training_util

from tf2_engine.types import Graph, Object, Op, Tensor


def set_global_step_read(value: Tensor) -> None:
    tf.compat.v1.get_collection_ref(_training_util.GLOBAL_STEP_READ_KEY)[:] = [value]


def read_global_step(graph: Graph) -> Tensor:
    key = _training_util.GLOBAL_STEP_READ_KEY
    if tf.distribute.has_strategy() and not graph.get_collection(key):
        # TensorFlow cannot read a mirrored step.
        step = tf.compat.v1.train.get_global_step()
        graph.add_to_collection(key, tf.distribute.get_strategy().extended.read_var(step))
    return _training_util._get_or_create_global_step_read(graph)


def count_evaluation_step() -> Op:
    step = _evaluation._get_or_create_eval_step()
    return tf.compat.v1.assign_add(step, 1, use_locking=True)


def read_logged_variables(hook: Object) -> None:
    """Replaces a LoggingTensorHook's variables by tensors, because hooks fetch only tensors."""
    tensors = getattr(hook, "_tensors", None)
    if isinstance(tensors, dict):
        hook._tensors = {
            tag: tf.identity(each) if isinstance(each, tf.Variable) else each
            for tag, each in tensors.items()
        }


def add_saving_listener(hook: Object, listener: object) -> None:
    if listener not in hook._listeners:
        hook._listeners.append(listener)


def path_of_saver(hook: Object) -> str:
    path: str = hook._save_path
    return path


def publish_checkpoint(path: str) -> None:
    directory = os.path.dirname(path)
    state = tf.train.get_checkpoint_state(directory)
    paths = [*(state.all_model_checkpoint_paths if state is not None else ()), path]
    # If the directory is relative, paths must be relative to the file.
    names = [os.path.basename(p) if os.path.dirname(p) == directory else p for p in paths]
    older = [name for name in names[:-1] if name != names[-1]]
    _checkpoint_management.update_checkpoint_state_internal(
        directory, names[-1], [*older, names[-1]], save_relative_paths=True
    )


summary_ops = _summary_ops
"""Summaries with the global step as their step, as in `tf.contrib.summary`."""

summary_writer_initializers: Callable[[], list[Op]] = _summary_ops.summary_writer_initializer_op
"""The ops that create the summary writers of the default graph."""

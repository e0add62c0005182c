"""Writes the events of an evaluation: the metrics, and the path of their checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from tf2_engine.types import Message, Object

CHECKPOINT_TAG = "checkpoint_path"


def write_metrics(directory: str, results: Mapping[str, Object], checkpoint: str | None) -> None:
    """Writes one event of the metrics and one of the checkpoint's path, with stock's tags.

    Numbers are simple values, arrays are tensors; bytes are serialised summaries, whose values
    become `<metric>/0`, `<metric>/1` and so on.

    Args:
        results: metrics by name, and the step under "global_step".
        checkpoint: None where initial values were evaluated.

    Raises:
        CannotWrite: the events cannot be written; the message names the file.
    """
    step = int(results[tf.GraphKeys.GLOBAL_STEP])
    shown = ", ".join(
        f"{name} = {value}"
        for name, value in sorted(results.items())
        if not isinstance(value, bytes)
    )
    # This line and the next are in stock's words, which scripts look for.
    tf.logging.info("Saving dict for global step %d: %s", step, shown)
    summary = tf.Summary()
    for name, value in results.items():
        if name != tf.GraphKeys.GLOBAL_STEP and value is not None:
            _add(summary, name, value)
    writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    if checkpoint:
        path = tf.Summary()
        path.value.add(tag=CHECKPOINT_TAG, tensor=tf.make_tensor_proto(checkpoint, tf.string))
        tf.logging.info(
            "Saving '%s' summary for global step %d: %s", CHECKPOINT_TAG, step, checkpoint
        )
        writer.add_summary(path, step)
    try:
        writer.flush()
    except Exception as error:  # of TensorFlow's writer: an IndexError where the disk is full
        raise errors.CannotWrite(
            f"{directory}: the events of the evaluation cannot be written: {error}. The "
            "checkpoints are as they were."
        ) from error


def _add(summary: Message, name: str, value: Object) -> None:
    if isinstance(value, bytes):
        try:
            serialized = tf.Summary.FromString(value)
        except Exception:  # protobuf's error has no public name in TensorFlow
            tf.logging.warning("The metric %s is bytes, but no serialised summary; skipped.", name)
            return
        for number, part in enumerate(serialized.value):
            part.tag = f"{name}/{number}"
            summary.value.append(part)
    elif np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
    else:
        tf.logging.warning("The metric %s, %r, cannot be shown as a summary; skipped.", name, value)

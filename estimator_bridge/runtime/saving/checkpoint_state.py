"""Finds the latest checkpoint. If it is damaged, the error names the last good checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader
from tf2_engine import log

_STATE = "checkpoint"  # this file names the latest checkpoint
_INDEX = re.compile(r"(.*-(\d+))\.index$")


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path of the latest checkpoint, or None if there never was one.

    Raises UnreadableCheckpoint if the state file is damaged or the checkpoint is missing, so that
    training does not start from scratch.
    """
    state, previous = os.path.join(model_dir, _STATE), None
    while tf.io.gfile.exists(state):
        content = None
        with contextlib.suppress(ValueError):  # The file is empty or not text.
            content = tf.train.get_checkpoint_state(model_dir)
        if content is None:
            raise errors.UnreadableCheckpoint(
                f"{state} does not say which checkpoint is the latest. {_offer(model_dir)}"
            )
        path = str(content.model_checkpoint_path)
        if tf.io.gfile.exists(f"{path}.index") or tf.io.gfile.exists(path):  # V1 has one file
            return path
        # Another job may have replaced the checkpoint after the state was read.
        if path == previous:
            raise errors.UnreadableCheckpoint(
                f"{path}.index: there is no such file, but {state} says that it is the latest "
                f"checkpoint. {_offer(model_dir)}"
            )
        previous = path
    return None


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns read errors into UnreadableCheckpoint, which names the file and a good checkpoint."""
    try:
        yield
    except errors.UnreadableCheckpoint as error:
        raise errors.UnreadableCheckpoint(f"{error} {_offer(os.path.dirname(path))}") from error
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        if has_index(path):
            with reading(path):
                _is_model(path)  # The error names the file and the tensor.
        raise errors.UnreadableCheckpoint(f"{path}: {reason(error)}") from error


def step_of(path: str) -> int:
    with reading(path):
        if not has_index(path):
            return int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
        with Reader(path) as reader:
            step = reader.tensors.get(tf.GraphKeys.GLOBAL_STEP)
            if step is None or step.shape or step.sliced or not step.dtype.is_integer:
                raise errors.UnreadableCheckpoint(
                    f"{path}.index: {tf.GraphKeys.GLOBAL_STEP!r} is missing or not an integer."
                )
            return int(reader.value(step.name))


def has_index(path: str) -> bool:
    return is_local(path) and os.path.exists(f"{path}.index")


def reason(error: Exception) -> str:
    message = str(getattr(error, "message", error))
    return message.partition("\n\t [[")[0].rpartition("\n")[2]


def unshared(error: tf.errors.OpError) -> str | None:
    if not isinstance(error, tf.errors.NotFoundError) or error.op is None:
        return None
    device = tf.DeviceSpec.from_string(error.op.device)
    if device.job is None:
        return None
    return (
        f"the task {device.job} {device.task} does not find what other tasks have written there. "
        "All tasks of a cluster must see the model_dir under the same path: put it on a file "
        "system that their machines share"
    )


def is_local(path: str) -> bool:
    return "://" not in path


def _is_model(path: str) -> bool:
    with Reader(path) as reader:
        for tensor in reader.tensors.values():
            reader.verify(tensor)
        # An input pipeline's checkpoint has no step.
        return tf.GraphKeys.GLOBAL_STEP in reader.tensors


def _offer(model_dir: str) -> str:
    good = _last_good(model_dir) if is_local(model_dir) else None
    if good is None:
        return "There is no other complete checkpoint."
    line = shlex.quote(f'model_checkpoint_path: "{os.path.basename(good)}"')
    state = shlex.quote(os.path.join(model_dir, _STATE))
    return f"The last good checkpoint is {good}; to go on from it: echo {line} > {state}"


def _last_good(model_dir: str) -> str | None:
    indices = filter(None, map(_INDEX.match, os.listdir(model_dir or ".")))
    for match in sorted(indices, key=lambda match: int(match[2]), reverse=True):
        path = os.path.join(model_dir, match[1])
        try:
            if _is_model(path):
                return path
        except errors.UnreadableCheckpoint as error:
            log.warning("%s", error)
    return None

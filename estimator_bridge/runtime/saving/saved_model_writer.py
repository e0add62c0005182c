"""Writes SavedModels: a model_fn's graph around the tensors of a receiver, with trained values."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.loop.graph_loop import default_session_config, new_graph
from estimator_bridge.runtime.saving.job_saver import JobSaver, TableVariables
from estimator_bridge.runtime.step.plain_step import check_spec
from tf2_engine import tf_compat

ReceiverFn = Callable[[], Any]
ModelFn = Callable[[Any, Any, str], Any]
"""Called with features, labels and mode; returns an EstimatorSpec or TPUEstimatorSpec."""

# The tags of each mode's graph. The first mode that is asked for is the one that saves variables.
_TAGS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "serve"}
# Where SavedModel loaders look for the train_op of a graph.
_TRAIN_OP_COLLECTION = "saved_model_train_op"


def export_saved_model(
    export_dir_base: str | bytes | os.PathLike[str],
    receiver_fns: Mapping[str, ReceiverFn],
    model_fn: ModelFn,
    config: Any,
    checkpoint: str,
    *,
    tables: TableVariables,
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
    strip_default_attrs: bool,
) -> bytes:
    """Writes a SavedModel into a new directory below `export_dir_base`, named by the time.

    It is written beside its place and moved there when it is whole, so that whoever watches the
    base directory never loads a part of it.

    Args:
        receiver_fns: by mode what returns a receiver: an object with `features` and
            `receiver_tensors`, and `labels` and `receiver_tensors_alternatives` if it likes.
        config: a RunConfig.
        checkpoint: where the values of the variables are.
        tables: which variables are tables.
        assets_extra: files to add, by their path below `assets.extra`.

    Returns:
        The new directory, as bytes like stock.

    Raises:
        InvalidInput: no mode is asked for, or the checkpoint lacks a variable of the model.
    """
    modes = [mode for mode in _TAGS if receiver_fns.get(mode)]
    if not modes:
        raise errors.InvalidInput(
            f"There is nothing to export for the modes {sorted(map(str, receiver_fns))}; give a "
            f"receiver function for some of {list(_TAGS)}."
        )
    final, parts = _new_directories(os.fsdecode(export_dir_base))
    try:
        builder = tf.saved_model.Builder(parts)
        for mode in modes:
            _add_graph(
                builder,
                mode,
                receiver_fns[mode],
                model_fn,
                config,
                checkpoint,
                tables,
                with_variables=mode == modes[0],
                strip_default_attrs=strip_default_attrs,
            )
        builder.save(as_text)
        for name, source in (assets_extra or {}).items():
            destination = os.path.join(parts, "assets.extra", os.fsdecode(name))
            tf.io.gfile.makedirs(os.path.dirname(destination))
            tf.io.gfile.copy(source, destination)
        tf.io.gfile.rename(parts, final)
    except BaseException:
        if tf.io.gfile.exists(parts):
            tf.io.gfile.rmtree(parts)
        raise
    tf.logging.info("SavedModel written to: %s", final)
    return os.fsencode(final)


def _add_graph(
    builder: Any,
    mode: str,
    receiver_fn: ReceiverFn,
    model_fn: ModelFn,
    config: Any,
    checkpoint: str,
    tables: TableVariables,
    *,
    with_variables: bool,
    strip_default_attrs: bool,
) -> None:
    with new_graph(config.tf_random_seed):
        receiver = receiver_fn()
        spec = model_fn(receiver.features, getattr(receiver, "labels", None), mode)
        check_spec(mode, spec)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        signatures = tf_compat.signature_defs(mode, spec, receiver)
        scaffold = spec.scaffold or tf.train.Scaffold()
        if spec.train_op is not None:
            tf.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
        with tf.Session(config=config.session_config or default_session_config()) as session:
            start = scaffold.local_init_op
            if start is None:
                start = tf.train.Scaffold.default_local_init_op()
            saver = scaffold.saver or JobSaver(tables=tables, sharded=True)
            _restore(saver, session, checkpoint, mode)
            graph = {
                "tags": [_TAGS[mode]],
                "signature_def_map": signatures,
                "assets_collection": tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
                "main_op": start,
                "saver": saver,
                "strip_default_attrs": strip_default_attrs,
            }
            if with_variables:
                builder.add_meta_graph_and_variables(session, **graph)
            else:
                builder.add_meta_graph(**graph)


def _restore(saver: Any, session: Any, checkpoint: str, mode: str) -> None:
    try:
        saver.restore(session, checkpoint)
    except tf.errors.NotFoundError as error:
        raise errors.InvalidInput(
            f"The checkpoint {checkpoint!r} lacks a variable that the model_fn makes in mode "
            f"{mode!r}, so the model cannot be exported: {error.message}"
        ) from error


def _new_directories(base: str) -> tuple[str, str]:
    """Returns a path below `base`, named by the seconds since 1970, and one to write it at first.

    Neither is there yet: a job that was killed in the same second may have left the latter.
    """
    while True:
        name = str(int(time.time()))
        # Servers leave directories alone whose name is no number.
        paths = os.path.join(base, name), os.path.join(base, f"temp-{name}")
        if not any(map(tf.io.gfile.exists, paths)):
            return paths
        tf.logging.warning("%s exists already; waiting for the next second.", paths[0])
        time.sleep(1)

"""Writes SavedModels: the graph that a model_fn builds from a receiver, and trained values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.program_types import ModelSpec
from estimator_bridge.runtime.saving.job_saver import JobSaver
from estimator_bridge.runtime.step.model_step import check_spec, default_session_config, new_graph
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import log, tf_compat
from tf2_engine.export_folders import new_export
from tf2_engine.small_exports import SmallTables
from tf2_engine.types import Nest, Object, Session, Variable

ReceiverFn = Callable[[], Object]
"""Returns features and receiver tensors, and optionally labels and alternative tensors."""

SpecFn = Callable[[Nest, Nest, str], ModelSpec]  # takes features, labels and mode

# The tag of each mode's graph. The first exported mode saves the variables.
_TAGS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "serve"}
# SavedModel loaders look here for the train_op of a graph.
_TRAIN_OP_COLLECTION = "saved_model_train_op"


def write_saved_model(
    export_dir_base: str | bytes | os.PathLike[str],
    receiver_fns: Mapping[str, ReceiverFn],
    model_fn: SpecFn,
    config: RunConfig,
    checkpoint: str,
    *,
    tables: TableVariables,
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
    strip_default_attrs: bool = True,
    table_dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """Writes a SavedModel into a new timestamped directory below `export_dir_base`.

    Each mode in `receiver_fns` gets a graph. `table_dtypes` has the types of the tables that are
    not stored as float32, keyed by the name of the variable without a scope.
    """
    modes = [mode for mode in _TAGS if receiver_fns.get(mode)]
    if not modes:
        raise errors.InvalidInput(
            f"There is no mode to export among {sorted(map(str, receiver_fns))}. Give a receiver "
            f"function for at least one of {list(_TAGS)}."
        )
    session_config = config.session_config or default_session_config()
    base = os.fsdecode(export_dir_base)
    with new_export(base, assets_extra or {}) as (final, temporary):
        builder = tf.saved_model.Builder(temporary)
        for mode in modes:
            with new_graph(config.tf_random_seed):
                graph = _trace(mode, receiver_fns[mode], model_fn, tables)
                graph["strip_default_attrs"] = strip_default_attrs
                small = _small_tables(table_dtypes, tables, graph["signature_def_map"])
                with tf.Session(config=session_config) as session:
                    _restore(graph["saver"], session, checkpoint, mode)
                    if small is not None:
                        restored = _initialized(session)
                        graph["saver"] = tf.train.Saver(
                            small.store(session, restored), sharded=True
                        )
                    if mode == modes[0]:
                        builder.add_meta_graph_and_variables(session, **graph)
                    else:
                        builder.add_meta_graph(**graph)
        builder.save(as_text)
    log.info("SavedModel written to: %s", final)
    return os.fsencode(final)


def _trace(
    mode: str, receiver_fn: ReceiverFn, model_fn: SpecFn, tables: TableVariables
) -> dict[str, Object]:
    receiver = receiver_fn()
    spec: Object = model_fn(receiver.features, getattr(receiver, "labels", None), mode)
    check_spec(mode, spec)
    if hasattr(spec, "as_estimator_spec"):
        spec = spec.as_estimator_spec()
    signatures = tf_compat.signature_defs(mode, spec, receiver)
    scaffold = spec.scaffold or tf.train.Scaffold()
    if spec.train_op is not None:
        tf.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
    init_op = scaffold.local_init_op
    return {
        "tags": [_TAGS[mode]],
        "signature_def_map": signatures,
        "assets_collection": tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
        "main_op": tf.train.Scaffold.default_local_init_op() if init_op is None else init_op,
        "saver": tf_compat.saver_of_graph(scaffold.saver) or JobSaver(tables=tables, sharded=True),
    }


def _small_tables(
    table_dtypes: Mapping[str, str] | None, tables: TableVariables, signatures: Mapping[str, Object]
) -> SmallTables | None:
    if not table_dtypes:
        return None
    of_graph = [
        (tf_compat.checkpoint_key(each), each)
        for each in tf.global_variables()
        if tf_compat.checkpoint_shape(each) is not None
    ]
    parts = {
        name: [
            variable
            for key, variable in of_graph
            if f"/{key}".endswith(f"/{name}")
            and tf_compat.checkpoint_shape(variable) == tables.shapes[name]
        ]
        for name in table_dtypes
    }
    small = SmallTables(parts, table_dtypes)
    small.check(signatures)
    return small


def _initialized(session: Session) -> list[Object]:
    variables: list[Variable] = tf.global_variables()
    missing = set(session.run(tf.report_uninitialized_variables(variables)))
    kept = [each for each in variables if each.op.name.encode() not in missing]
    return [*kept, *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]


def _restore(saver: tf.train.Saver, session: Session, checkpoint: str, mode: str) -> None:
    try:
        saver.restore(session, checkpoint)
    except tf.errors.NotFoundError as error:
        raise errors.InvalidInput(
            f"Could not load all requested variables from checkpoint {checkpoint!r}. It lacks a "
            f"variable that the model_fn makes in mode {mode!r}: {error.message}"
        ) from error

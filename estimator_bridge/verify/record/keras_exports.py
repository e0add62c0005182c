"""Reads the variables of an exported `TableModel` by their legacy names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import tensorflow as tf

from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.verify.record.description import variable_of
from estimator_bridge.verify.record.keras_training import KerasTraining
from estimator_bridge.verify.record.recording import Recording
from tf2_engine.types import Array, Object

_ENGINE = "_tpu_embedding"
"""The attribute under which an exported layer stores the engine's tables."""


def exported_variables(
    training: KerasTraining, directory: str, a: Recording | None
) -> Iterator[tuple[str, Array]]:
    """Yields the variables of tables and layers in the directory of an export.

    Args:
        a: side A, whose names tables get; None keeps this side's names.
    """
    prefix = os.path.join(directory, "variables", "variables")
    with Reader(prefix) as stored:
        objects = object_graph.read_from(stored)
    assert objects is not None
    tables = {} if a is None else {t["name"]: t["variable"] for t in a.settings["tables"]}
    by_name = _names(training.model)
    reader = tf.train.load_checkpoint(prefix)
    for path, key in objects.keys.items():
        if path[-2:-1] == (_ENGINE,):
            name = tables.get(path[-1], variable_of(path[-1]))
        else:
            name = by_name.get(objects.names.get(key, ""), "")
        if name:
            yield name, reader.get_tensor(key)


def _names(model: Object) -> Mapping[str, str]:
    of_tables = {id(each) for each in model.with_tables.weights}
    layers = (each for each in model.weights if id(each) not in of_tables)
    names = {each.name.partition(":")[0]: model.name_of(each) for each in layers}
    return {**names, GLOBAL_STEP: GLOBAL_STEP}

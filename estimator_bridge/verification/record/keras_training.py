"""Gives a `TableModel`, and its exports, the names and attributes that recorders expect."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Iterator, Mapping

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.recording.files import Recording, parts_of_tables
from estimator_bridge.verification.record.description import variable_of
from estimator_bridge.verification.record.training_steps import by_name, checkpoint_of
from tf2_engine import TPUEmbedding
from tf2_engine.backends.tpu import topology
from tf2_engine.keras.no_tables import NoEngine
from tf2_engine.types import Array, Object, Variable

_ENGINE = "_tpu_embedding"
"""The attribute under which an exported layer stores the engine's tables."""


@dataclasses.dataclass(eq=False)
class KerasTraining:
    """A `TableModel`, as a recorder sees it, and the raw dataset on which `fit` evaluates."""

    model: Object
    model_dir: str
    validation: Object = None

    @functools.cached_property
    def engine(self) -> TPUEmbedding | NoEngine:
        """The engine that holds the tables, or its stand-in in a model without tables.

        Raises:
            InvalidInput: Keras optimizers train the tables, or they are on a TPU.
        """
        if topology.is_tpu(self.model.distribute_strategy):
            raise errors.InvalidInput(
                "The program trains a Keras model under a TPUStrategy, whose tables verify does "
                "not read step by step. Leave out the flag by which it asks for a TPU: tables have "
                "a TPU's arithmetic on a host, too."
            )
        engine = self.model.with_tables.tables.embedding
        if not isinstance(engine, (TPUEmbedding, NoEngine)):
            raise errors.InvalidInput(
                "The program's tables are trained by Keras optimizers, so they do not have a TPU's "
                "arithmetic. Give ColumnEmbedding optimizers of tf.tpu.experimental.embedding, or "
                'arithmetic="tpu".'
            )
        return engine

    @property
    def step(self) -> Variable:
        step: Variable = self.model.with_tables.step
        return step

    @property
    def variables(self) -> dict[str, Variable]:
        by_name, computed = self.model.checkpoints.variables(), self.model.checkpoints.computed
        return {name: variable for name, variable in by_name.items() if name not in computed}

    def restore(self, checkpoint: str, a: Recording | None) -> None:
        """Restores all variables, which must exist, from a checkpoint of either form.

        Raises:
            InvalidInput: a legacy program wrote it, and no recording of that program is known.
        """
        with Reader(checkpoint) as reader:
            is_converted = object_graph.KEY in reader.tensors
            whole = {name for name, tensor in reader.tensors.items() if tensor.is_whole}
        if is_converted:
            checkpoint_of(self).restore(checkpoint).expect_partial()
        else:
            self._assign(checkpoint, self._legacy_names(checkpoint, a), whole)
            self.engine.load()
        self.model.checkpoints.count_steps()

    def _assign(self, checkpoint: str, names: Mapping[str, str], whole: Collection[str]) -> None:
        """Assigns the variables that a legacy checkpoint contains.

        Slots whose parts are stored under several names are only assigned after the first step.
        """
        reader = tf.train.load_checkpoint(checkpoint)
        shapes: Mapping[str, list[int]] = reader.get_variable_to_shape_map()
        for name, variable in by_name(self).items():
            legacy = names.get(name, name)
            if legacy in whole and shapes[legacy] == variable.shape.as_list():
                value: Array = reader.get_tensor(legacy)
                variable.assign(tf.cast(value, variable.dtype))

    def _legacy_names(self, checkpoint: str, a: Recording | None) -> dict[str, str]:
        if a is None:
            raise errors.InvalidInput(
                f"{checkpoint} is of the legacy program, and it is not known which of its "
                "variables are tables. Convert it with `estimator-bridge convert`, and begin from "
                "the result."
            )
        parts = parts_of_tables(a.settings["tables"])
        return {
            (variable_of(table) if slot is None else variable_of(table, slot)): name
            for name, (table, slot) in parts.items()
        }


def exported_variables(
    training: KerasTraining, directory: str, a: Recording | None
) -> Iterator[tuple[str, Array]]:
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

"""The text that the tf2 form of `migrate` adds to programs that export: SavedModels.

Like that of `tf2_model`, the text is written into the migrated program.
"""

import os
from typing import Any

import tensorflow as tf2

import tf2_engine
from estimator_bridge.estimator import export as serving
from estimator_bridge.legacy.exporters import new_directories as _new_directories
from estimator_bridge.migrate.tf2_model import (
    _VALUE,
    EmbeddingModel,
    Function,
    ModeKeys,
    ModelSpec,
    Nest,
    _call,
    _key,
    _name_of_table,
)
from tf2_engine import preprocessing as pre
from tf2_engine import tpu_columns

v1 = tf2.compat.v1


class ExportableModel(EmbeddingModel):
    """A model that can be exported for predictions."""

    def export_saved_model(
        self, export_dir_base: str | bytes, serving_input_receiver_fn: Function
    ) -> bytes:
        """Writes a SavedModel into a new directory named by the time; returns its path.

        It has the values of the latest checkpoint, and needs nothing but TensorFlow: the model_fn
        builds a separate graph, in which columns look tables up as they do off a TPU.
        """
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"There is no checkpoint in {self.model_dir} to export; train first.")
        self._check_converted(checkpoint)
        final, parts = _new_directories(os.fsdecode(export_dir_base))
        try:
            with tf2.Graph().as_default(), v1.Session() as session:
                variables, signatures = self._export_graph(serving_input_receiver_fn)
                self._load(session, checkpoint, variables)
                builder = v1.saved_model.Builder(parts)
                builder.add_meta_graph_and_variables(
                    session,
                    ["serve"],
                    signatures,
                    assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                    main_op=v1.group(v1.local_variables_initializer(), v1.tables_initializer()),
                    saver=v1.train.Saver(variables, sharded=True),
                    strip_default_attrs=True,
                )
                builder.save()
            tf2.io.gfile.rename(parts, final)  # Servers see all of it, or nothing.
        finally:
            if tf2.io.gfile.exists(parts):
                tf2.io.gfile.rmtree(parts)
        return os.fsencode(final)

    def _export_graph(
        self, receiver_fn: Function
    ) -> tuple[dict[str, tf2.Variable], dict[str, Any]]:
        """Builds the graph that is exported; returns its variables and its signatures by name."""
        created: dict[str, tf2.Variable] = {}
        self._counts.clear()

        def record(create: Function, **settings: Any) -> tf2.Variable:
            name = self._numbered(settings["name"])
            created[name] = variable = create(**settings)
            return variable

        with v1.variable_creator_scope(record):
            v1.train.create_global_step()
            receiver = receiver_fn()
            if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
                raise ValueError(
                    "serving_input_receiver_fn must return a ServingInputReceiver, of features "
                    f"and receiver_tensors; it returned {receiver!r}."
                )
            features, params = self._features_to_export(receiver), dict(self.params)
            arguments = self._arguments(ModeKeys.PREDICT, params, features=features, labels=None)
            spec = _call(self._model_fn, arguments)
        # Local variables are not exported, but initialized.
        exported = {id(variable) for variable in v1.global_variables()}
        variables = {name: each for name, each in created.items() if id(each) in exported}
        return variables, _signatures(spec, receiver)

    def _features_to_export(self, receiver: Any) -> Nest:
        """Returns the features of a receiver, in the form that the model_fn takes off a TPU."""
        if isinstance(receiver, serving.TensorServingInputReceiver):
            return receiver.features
        features = dict(_named(receiver.features, "feature"))
        spec = self.embedding.engine_spec
        if self._spec.feature_columns:
            # Columns look sequences up at their full length; the engine cuts and pads them.
            for feature in spec.features:
                if feature.max_sequence_length and feature.name in features:
                    ids, length = features[feature.name], feature.max_sequence_length
                    features[feature.name] = _cut(ids, length)
            return features
        prepare, weight_keys = self._prepare()
        columns = prepare.columns
        for key, config in self._spec.feature_to_config_dict.items():
            if not isinstance(features.get(key), tf2.Tensor):
                continue
            # Like the legacy program: dense ids have no weights, and 0 is ignored in rows of ids.
            table = self._spec.table_to_config_dict[config.table_id]
            columns[key] = pre.Identity(key, table.vocabulary_size)
            if features[key].shape.rank == 2 and table.combiner is not None:
                features[key] = tf2.sparse.from_dense(features[key])
        ids, weights, lengths = pre.Preprocessing(columns)(features)
        tables = {
            table.name: v1.get_variable(table.name, [table.vocabulary_size, table.dim])
            for table in spec.tables
        }
        activations = tf2_engine.cpu_embedding_lookup(ids, weights, tables, spec)
        rest = {key: features[key] for key in features if key not in {*weight_keys, *columns}}
        return {**rest, **tpu_columns.as_features(activations, lengths)}

    def _load(
        self, session: tf2.compat.v1.Session, checkpoint: str, variables: dict[str, tf2.Variable]
    ) -> None:
        """Initializes the variables of a graph from a checkpoint."""
        reader = tf2.train.load_checkpoint(checkpoint)
        for name, variable in variables.items():
            keys = [f"global_step/{_VALUE}"] if name == "global_step" else []
            keys += [_key("variables", name)]
            keys += [
                _key("embedding", table.name)
                for table in self.embedding.engine_spec.tables
                if _name_of_table(table).fullmatch(name)
            ]
            stored = [key for key in keys if reader.has_tensor(key)]
            if not stored:
                raise ValueError(
                    f"{checkpoint} lacks {name!r}, a variable that the model_fn makes for "
                    "predictions; so the model cannot be exported."
                )
            value = reader.get_tensor(stored[0])
            session.run(variable.initializer, {variable.initial_value: value})


def _signatures(spec: ModelSpec, receiver: Any) -> dict[str, Any]:
    """Returns the signatures of an exported model, for the outputs that suit the input."""
    default = "serving_default"
    outputs = spec.export_outputs or {default: serving.PredictOutput(spec.predictions)}
    if len(outputs) == 1:
        outputs = {default: next(iter(outputs.values())), **outputs}
    elif default not in outputs:
        raise ValueError(f"Of the export_outputs {list(outputs)} one must be {default!r}.")
    alternatives = getattr(receiver, "receiver_tensors_alternatives", None) or {}
    signatures = {}
    for prefix, fed in [("", receiver.receiver_tensors), *alternatives.items()]:
        for name, output in outputs.items():
            try:
                signature = output.as_signature_def(_named(fed, "input"))
                signatures[f"{prefix}:{name}" if prefix else name] = signature
            except ValueError as error:
                v1.logging.warning("%s has no signature: %s", name, error)
    return signatures


def _named(tensors: Nest, name: str) -> dict[str, tf2.Tensor]:
    """Returns tensors by name; a single tensor gets the given name."""
    return tensors if isinstance(tensors, dict) else {name: tensors}


def _cut(ids: Nest, length: int) -> Nest:
    """Returns the ids of sequences, cut and padded to a length."""
    if isinstance(ids, tf2.RaggedTensor):
        ids = ids.to_sparse()
    if not isinstance(ids, tf2.SparseTensor):
        return ids
    kept = tf2.sparse.retain(ids, ids.indices[:, 1] < length)
    shape = tf2.concat([ids.dense_shape[:1], [length], ids.dense_shape[2:]], 0)
    return tf2.SparseTensor(kept.indices, kept.values, shape)

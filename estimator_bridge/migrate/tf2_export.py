"""What the second form of `migrate` adds to a program that exports: a SavedModel of its model.

Like that of `tf2_model`, the text is written into the migrated program.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf2

import tf2_engine
from estimator_bridge.migrate.tf2_model import (
    _VALUE,
    EmbeddingModel,
    ModeKeys,
    _called,
    _key,
    _name_of_table,
)
from tf2_engine import preprocessing as pre
from tf2_engine import tpu_columns

v1 = tf2.compat.v1


class ServingInputReceiver(NamedTuple):
    """What an exported model is fed, and the features made of that; single tensors get a name."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


class TensorServingInputReceiver(ServingInputReceiver):
    """One whose features are a single tensor, for a model_fn that takes no dict."""


def build_parsing_serving_input_receiver_fn(
    feature_spec: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function whose receiver is fed serialized tf.train.Examples, as "examples"."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf2.string, [default_batch_size], name="input_example_tensor")
        features = v1.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function whose receiver is fed each feature, of the type and shape of a tensor."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {
            key: v1.placeholder(like.dtype, [default_batch_size, *like.shape[1:]])
            for key, like in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn


class PredictOutput(NamedTuple):
    """An output of an exported model: tensors by name, or one."""

    outputs: Any

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        return v1.saved_model.predict_signature_def(received, _named(self.outputs, "output"))


class ClassificationOutput(NamedTuple):
    """Scores, classes or both, of serialized tf.train.Examples."""

    scores: Any = None
    classes: Any = None

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        examples = _examples(received)
        return v1.saved_model.classification_signature_def(examples, self.classes, self.scores)


class RegressionOutput(NamedTuple):
    """A number for each of serialized tf.train.Examples."""

    value: Any

    def signature(self, received: Any) -> Any:
        """Returns the signature of a model that is fed these tensors."""
        return v1.saved_model.regression_signature_def(_examples(received), self.value)


class ExportableModel(EmbeddingModel):
    """A model that can be exported for predictions."""

    def export_saved_model(
        self, export_dir_base: Any, serving_input_receiver_fn: Callable[[], Any]
    ) -> bytes:
        """Writes a SavedModel into a new directory named by the time; returns its path.

        Its values are those of the latest checkpoint, and it needs TensorFlow alone: the model_fn
        makes a graph of its own, in which columns look tables up as they do off a TPU.
        """
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"There is no checkpoint in {self.model_dir} to export; train first.")
        self._check_form(checkpoint)
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
            tf2.io.gfile.rename(parts, final)  # Whoever watches finds all of it, or nothing.
        finally:
            if tf2.io.gfile.exists(parts):
                tf2.io.gfile.rmtree(parts)
        return os.fsencode(final)

    def _export_graph(self, receiver_fn: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        """Makes the graph that is exported; returns its variables and its signatures by name."""
        made: dict[str, Any] = {}
        self._counts.clear()

        def note(make: Callable[..., Any], **settings: Any) -> Any:
            name = self._numbered(settings["name"])
            made[name] = variable = make(**settings)
            return variable

        with v1.variable_creator_scope(note):
            v1.train.create_global_step()
            receiver = receiver_fn()
            if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
                raise ValueError(
                    "serving_input_receiver_fn must return a ServingInputReceiver, of features "
                    f"and receiver_tensors; it returned {receiver!r}."
                )
            arguments = {
                "features": self._features_to_export(receiver),
                "labels": None,
                "mode": ModeKeys.PREDICT,
                "params": dict(self.params),
                "config": self.config,
            }
            spec = _called(self._model_fn, arguments)
        kept = {id(variable) for variable in v1.global_variables()}  # Local ones start anew.
        variables = {name: variable for name, variable in made.items() if id(variable) in kept}
        return variables, _signatures(spec, receiver)

    def _features_to_export(self, receiver: Any) -> Any:
        """Returns the features of a receiver as the model_fn takes them off a TPU."""
        if isinstance(receiver, TensorServingInputReceiver):
            return receiver.features
        features = dict(_named(receiver.features, "feature"))
        spec = self.embedding.engine_spec
        if self._spec.feature_columns:
            # Columns look up what there is; the engine cuts and pads sequences.
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
            # What the legacy program makes of dense ids: without weights, and in rows without 0.
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

    def _load(self, session: Any, checkpoint: str, variables: dict[str, Any]) -> None:
        """Gives the variables of a graph their values in a checkpoint."""
        reader = tf2.train.load_checkpoint(checkpoint)
        for name, variable in variables.items():
            keys = [f"global_step/{_VALUE}"] if name == "global_step" else []
            keys += [_key("variables", name)]
            keys += [
                _key("embedding", table.name)
                for table in self.embedding.engine_spec.tables
                if _name_of_table(table).fullmatch(name)
            ]
            found = [key for key in keys if reader.has_tensor(key)]
            if not found:
                raise ValueError(
                    f"{checkpoint} lacks {name!r}, a variable that the model_fn makes for "
                    "predictions; so the model cannot be exported."
                )
            value = reader.get_tensor(found[0])
            session.run(variable.initializer, {variable.initial_value: value})


def _signatures(spec: Any, receiver: Any) -> dict[str, Any]:
    """Returns the signatures of an exported model; outputs that do not fit the input have none."""
    default = "serving_default"
    outputs = spec.export_outputs or {default: PredictOutput(spec.predictions)}
    if len(outputs) == 1:
        outputs = {default: next(iter(outputs.values())), **outputs}
    elif default not in outputs:
        raise ValueError(f"Of the export_outputs {list(outputs)} one must be {default!r}.")
    alternatives = getattr(receiver, "receiver_tensors_alternatives", None) or {}
    found = {}
    for prefix, fed in [("", receiver.receiver_tensors), *alternatives.items()]:
        for name, output in outputs.items():
            try:
                signature = output.signature(_named(fed, "input"))
                found[f"{prefix}:{name}" if prefix else name] = signature
            except ValueError as error:
                v1.logging.warning("%s has no signature: %s", name, error)
    return found


def _named(tensors: Any, name: str) -> dict[str, Any]:
    """Returns tensors by name."""
    return tensors if isinstance(tensors, dict) else {name: tensors}


def _examples(received: dict[str, Any]) -> Any:
    """Returns the one tensor of strings that an exported model is fed."""
    if [tensor.dtype for tensor in received.values()] != [tf2.string]:
        raise ValueError(f"it takes serialized tf.train.Examples, not {sorted(received)}")
    return next(iter(received.values()))


def _cut(ids: Any, length: int) -> Any:
    """Returns the ids of sequences, cut and padded to a length."""
    if isinstance(ids, tf2.RaggedTensor):
        ids = ids.to_sparse()
    if not isinstance(ids, tf2.SparseTensor):
        return ids
    kept = tf2.sparse.retain(ids, ids.indices[:, 1] < length)
    shape = tf2.concat([ids.dense_shape[:1], [length], ids.dense_shape[2:]], 0)
    return tf2.SparseTensor(kept.indices, kept.values, shape)


def _new_directories(base: str) -> tuple[str, str]:
    """Returns a directory named by the time, and one to write it in; neither is there yet."""
    while True:
        name = str(int(time.time()))
        # Servers leave directories alone whose name is no number.
        paths = os.path.join(base, name), os.path.join(base, f"temp-{name}")
        if not any(map(tf2.io.gfile.exists, paths)):
            return paths
        time.sleep(1)

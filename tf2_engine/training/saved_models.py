"""Exports a model for predictions, as a SavedModel that needs only TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import tensorflow as tf

import tf2_engine
from tf2_engine import checkpoint_names as names
from tf2_engine import errors, log, small_types, tf_compat
from tf2_engine import preprocessing as pre
from tf2_engine.calls import call
from tf2_engine.export_folders import new_export
from tf2_engine.preprocessing.raw_features import cut_sequences
from tf2_engine.small_exports import SmallTables
from tf2_engine.training.model import Model, as_features
from tf2_engine.training.model_variables import ModelVariables
from tf2_engine.training.trainer_specs import ModeKeys, ModelSpec
from tf2_engine.types import (
    Function,
    Message,
    Nest,
    Object,
    Session,
    Variable,
)

v1 = tf.compat.v1

_DEFAULT = "serving_default"
_LOOKED_UP_WHOLE = (
    "Feature %r: the exported model looks up whole sequences, as the legacy program's export does, "
    "but training cuts them to %d ids. Cut longer sequences in the serving_input_receiver_fn, or "
    'give the spec quirks="documented".'
)


def export(
    model: Model,
    checkpoint: str,
    base: str,
    receiver_fn: Function,
    assets_extra: Mapping[str, str],
    as_text: bool,
    table_dtype: Object,
) -> bytes:
    tables = [str(table.name) for table in model.embedding.engine_spec.tables]
    dtypes = small_types.checked(table_dtype, tables)
    with (
        new_export(base, assets_extra) as (final, parts),
        tf.Graph().as_default(),
        v1.Session() as session,
    ):
        variables, signatures = _build_graph(model, receiver_fn)
        small = SmallTables(_tables(model, variables), dtypes)
        small.check(signatures)
        _load(model, session, checkpoint, variables)
        exported = small.store(session, variables.values())
        builder = v1.saved_model.Builder(parts)
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signatures,
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.group(v1.local_variables_initializer(), v1.tables_initializer()),
            saver=v1.train.Saver(_by_name(exported, variables), sharded=True),
            strip_default_attrs=True,
        )
        builder.save(as_text)
    return os.fsencode(final)


def _build_graph(
    model: Model, receiver_fn: Function
) -> tuple[dict[str, Variable], dict[str, Message]]:
    store = ModelVariables()

    def build() -> tuple[Object, ModelSpec]:
        v1.train.create_global_step()
        receiver = receiver_fn()
        if not hasattr(receiver, "features") or not hasattr(receiver, "receiver_tensors"):
            raise errors.InvalidInput(
                "serving_input_receiver_fn must return a ServingInputReceiver with features and "
                f"receiver_tensors, but it returned {receiver!r}."
            )
        data = {"features": _features(model, receiver), "labels": None}
        arguments = model.arguments(ModeKeys.PREDICT, **data)
        if model.tells_sizes:  # Otherwise `params` may be any object, as for an Estimator.
            arguments["params"] = {**model.params, "use_tpu": False}
        return receiver, call(model.model_fn, arguments)

    receiver, spec = store.call_in_graph(build)
    # Local variables are initialized, not exported.
    exported = {id(variable) for variable in v1.global_variables()}
    variables = {name: each for name, each in store.variables.items() if id(each) in exported}
    return variables, _signatures(spec, receiver)


def _by_name(
    exported: Sequence[Variable], variables: Mapping[str, Variable]
) -> Mapping[str, Variable] | Sequence[Variable]:
    """Maps names in the model to exported variables, for a Saver.

    A variable's op has a different name if a placeholder took the name first, for instance because
    a feature and its table have the same name.
    """
    names_of = {id(variable): name for name, variable in variables.items()}
    by_name = {names_of.get(id(each), each.op.name): each for each in exported}
    return by_name if any(name != each.op.name for name, each in by_name.items()) else exported


def _features(model: Model, receiver: Object) -> Nest:
    spec = model.embedding.engine_spec
    if isinstance(receiver.features, tf.Tensor) or not spec.features:
        return receiver.features
    features = dict(receiver.features)
    if getattr(model.spec, "feature_columns", None):
        return {**features, **_cut_sequences(model, features)}
    prepare, weight_keys = model.preprocessing()
    columns = prepare.columns
    tables = {table.name: table for table in spec.tables}
    for feature in spec.features:
        key, table = feature.name, tables[feature.table]
        if not isinstance(features.get(key), tf.Tensor):
            continue
        # As in the legacy program, dense ids have no weights, and 0 in dense ids of rank 2 is
        # not an id.
        columns[key] = pre.Identity(key, table.vocabulary_size)
        if features[key].shape.rank == 2 and not feature.max_sequence_length:
            features[key] = tf.sparse.from_dense(features[key])
    ids, weights, lengths = pre.Preprocessing(columns)(features)
    variables = {
        name: v1.get_variable(name, [table.vocabulary_size, table.dim])
        for name, table in tables.items()
    }
    activations = tf2_engine.cpu_embedding_lookup(ids, weights, variables, spec)
    rest = {key: features[key] for key in features if key not in {*weight_keys, *columns}}
    return {**rest, **as_features(activations, lengths)}


def _cut_sequences(model: Model, features: Mapping[str, Nest]) -> dict[str, Nest]:
    """Cuts and pads sequences as in training, because TPU columns look up sequences of any length.

    Sequences are cut only if the spec's `quirks` are "documented".
    """
    cut: dict[str, Nest] = {}
    for feature in model.embedding.engine_spec.features:
        name, length = feature.name, feature.max_sequence_length
        if not length or name not in features:
            continue
        if model.spec.quirks == "documented":
            cut[name] = cut_sequences(features[name], length)
        else:
            log.warning(_LOOKED_UP_WHOLE, name, length)
    return cut


def _tables(model: Model, variables: Mapping[str, Variable]) -> dict[str, list[Variable]]:
    return {
        str(table.name): [
            variable
            for name, variable in variables.items()
            if names.legacy_names(table).fullmatch(name)
        ]
        for table in model.embedding.engine_spec.tables
    }


def _load(
    model: Model, session: Session, checkpoint: str, variables: Mapping[str, Variable]
) -> None:
    reader = tf.train.load_checkpoint(checkpoint)
    for name, variable in variables.items():
        keys = [names.KEY_OF_STEP] if name == names.GLOBAL_STEP else []
        keys += [names.key_of_variable(name)]
        keys += [
            names.key_of_table(str(table.name))
            for table in model.embedding.engine_spec.tables
            if names.legacy_names(table).fullmatch(name)
        ]
        stored = [key for key in keys if reader.has_tensor(key)]
        if not stored:
            raise errors.InvalidInput(
                f"The model cannot be exported: {checkpoint} lacks {name!r}, a variable that the "
                "model_fn creates only for predictions. Create it in training, too."
            )
        value = reader.get_tensor(stored[0])
        session.run(variable.initializer, {variable.initial_value: value})


def _signatures(spec: ModelSpec, receiver: Object) -> dict[str, Message]:
    make_default = tf_compat.export_output_classes()["PredictOutput"]
    outputs = spec.export_outputs or {_DEFAULT: make_default(spec.predictions)}
    if len(outputs) == 1:
        outputs = {_DEFAULT: next(iter(outputs.values())), **outputs}
    elif _DEFAULT not in outputs:
        raise errors.InvalidInput(
            f"The export_outputs are {list(outputs)}. Name one of them {_DEFAULT!r}."
        )
    alternatives = getattr(receiver, "receiver_tensors_alternatives", None) or {}
    signatures: dict[str, Message] = {}
    for prefix, fed in [("", receiver.receiver_tensors), *alternatives.items()]:
        inputs = fed if isinstance(fed, dict) else {"input": fed}
        for name, output in outputs.items():
            try:
                signature = output.as_signature_def(inputs)
                signatures[f"{prefix}:{name}" if prefix else name] = signature
            except ValueError as error:
                log.warning("%s has no signature: %s", name, error)
    return signatures

"""`model_to_estimator`: converts a compiled Keras 2 model to an estimator."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.head import DEFAULT
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2, PathLike
from estimator_bridge.runtime.estimator.estimator_arguments import read_config
from tf2_engine import log, tf_compat
from tf2_engine.types import Array, Nest, Object, Tensor

keras = tf_compat.keras2()

_BY_OBJECT, _BY_NAME = "checkpoint", "saver"
_FORMATS = (None, _BY_OBJECT, _BY_NAME)


def model_to_estimator(
    keras_model: Object = None,
    keras_model_path: PathLike | None = None,
    custom_objects: Mapping[str, Object] | None = None,
    model_dir: PathLike | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = None,
    use_v2_estimator: bool = False,
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: OutputFunctions | None = None,
) -> Estimator:
    """Makes an estimator from a compiled Keras model; training starts from the model's weights.

    An input_fn may return {'features': ..., 'sample_weights': ...} as features.

    Args:
        keras_model: a compiled Keras 2 model (of `tf.keras` on TensorFlow 2.15, of `tf_keras` on
            later versions). The weights of a subclass of Model are not copied: training starts
            from new weights.
        keras_model_path: the path of a saved model, instead of `keras_model`.
        custom_objects: maps names to layers and functions that the program defines.
        checkpoint_format: 'checkpoint' (the default) stores variables under the keys of
            `tf.train.Checkpoint`, and 'saver' under their names. Subclasses of Model need 'saver'.
        metric_names_map: maps the names of metrics in Keras to their names in evaluations.
        export_outputs: maps the names of model outputs to the classes of their export outputs.

    Raises:
        InvalidInput: not exactly one model is given; the model is not compiled, cannot be copied,
            or is a Keras 3 model; Keras cannot convert the optimizer; or the checkpoint format does
            not fit the model.
    """
    if (keras_model is None) == (keras_model_path is None):
        raise errors.InvalidInput(
            "Either `keras_model` or `keras_model_path` needs to be provided, but not both, got "
            f"{keras_model!r} and {keras_model_path!r}."
        )
    if keras_model is not None:
        _check_is_copied(keras_model, custom_objects)
    config = read_config(config, model_dir)
    model: Object = keras_model
    if model is None:
        assert keras_model_path is not None
        model = keras.models.load_model(os.fspath(keras_model_path), custom_objects)
    by_object = _is_by_object(checkpoint_format, model)
    if not getattr(model, "optimizer", None):
        raise errors.InvalidInput(
            "The given keras model has not been compiled yet. Please compile the model with "
            "`model.compile()` before calling `model_to_estimator()`."
        )
    source = KerasSource(
        model=model,
        custom_objects=custom_objects,
        by_object=by_object,
        metric_names=metric_names_map,
        export_outputs=export_outputs,
        optimizer_settings=_optimizer_settings(model),
    )
    kind = EstimatorV2 if use_v2_estimator else Estimator
    return kind(source.model_fn, config=config, warm_start_from=_first_checkpoint(source, config))


def _check_is_copied(model: Object, custom_objects: Mapping[str, Object] | None) -> None:
    if not isinstance(model, keras.Model):
        raise errors.InvalidInput(
            f"`keras_model` is not a Keras 2 model, but a {type(model).__module__}."
            f"{type(model).__name__}. Make it with `tf_keras`, or with `tf.keras` and the "
            "environment variable TF_USE_LEGACY_KERAS=1."
        )
    if tf_compat.is_graph_network(model) or isinstance(model, keras.models.Sequential):
        return
    try:
        with keras.utils.CustomObjectScope(dict(custom_objects or {})):
            type(model).from_config(model.get_config())
    except NotImplementedError:
        raise errors.InvalidInput(
            "Subclassed `Model`s passed to `model_to_estimator` must implement `Model.get_config` "
            f"and `Model.from_config`; {type(model).__name__} does not. Define both."
        ) from None


def _is_by_object(checkpoint_format: str | None, model: Object) -> bool:
    if checkpoint_format not in _FORMATS:
        raise errors.InvalidInput(
            f'Checkpoint format must be one of "{_BY_OBJECT}" or "{_BY_NAME}". Got '
            f"{checkpoint_format}."
        )
    by_object = checkpoint_format != _BY_NAME
    is_graph = tf_compat.is_graph_network(model) or isinstance(model, keras.models.Sequential)
    if by_object and not is_graph:
        raise errors.InvalidInput(
            "Object-based checkpoints are currently not supported with subclassed models. Give "
            f"checkpoint_format='{_BY_NAME}' for {type(model).__name__}."
        )
    return by_object


def _optimizer_settings(model: Object) -> Object:
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.experimental.Optimizer):
        if not tf.executing_eagerly():
            raise errors.InvalidInput(
                "Please set your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`"
                ", e.g., `tf.keras.optimizers.legacy.Adam`. Received optimizer type: "
                f"{type(optimizer)}."
            )
        optimizer = _legacy_optimizer(optimizer)
        model.optimizer = optimizer
    try:
        if isinstance(optimizer, (tuple, list)):
            return [each.get_config() for each in optimizer]
        return optimizer.get_config()
    except (NotImplementedError, AttributeError):
        return None


def _legacy_optimizer(optimizer: Object) -> Object:
    name = type(optimizer).__name__
    legacy = keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)
    # Keras 2.15 finds the class by its public name in a registry that tf_keras also writes to.
    if not isinstance(legacy, keras.optimizers.legacy.Optimizer):
        raise errors.InvalidInput(
            f"Estimators train in a graph, in which tf.keras.optimizers.{name} does not work. "
            f"Keras converts it to an optimizer of {type(legacy).__module__}, because the program "
            "imports both tf_keras and tf.keras. Compile the model with "
            f"tf.keras.optimizers.legacy.{name}, or import only one of the two."
        )
    log.warning(
        "Estimators train in a graph, in which tf.keras.optimizers.%s does not work. The model "
        "gets the optimizer of the same name in tf.keras.optimizers.legacy instead.",
        name,
    )
    return legacy


def _first_checkpoint(source: KerasSource, config: RunConfig) -> str | None:
    model = source.model
    if not tf_compat.has_keras_weights(model):
        # The session that initializes the weights gets the settings of the program.
        session = tf.Session(config=config.session_config)
        tf_compat.keras2_v1().backend.set_session(session)
    if tf_compat.is_graph_network(model) and config.is_chief:
        folder = os.path.join(config.model_dir, "keras")
        return tf.train.latest_checkpoint(folder) or _save_weights(source, config, folder)
    if model.built:
        log.warning(
            "%s is a subclass of Model, so its weights are not copied: the estimator starts from "
            "new weights. The model itself does not change.",
            type(model).__name__,
        )
    return None


def _save_weights(source: KerasSource, config: RunConfig, folder: str) -> str:
    weights: list[Array] = []
    if tf_compat.has_keras_weights(source.model):
        weights = source.model.get_weights()
    tf.gfile.MakeDirs(folder)
    path = os.path.join(folder, "keras_model.ckpt")
    with tf.Graph().as_default():
        tf.random.set_random_seed(config.tf_random_seed)
        tf.train.create_global_step()
        model = clone(source, ModeKeys.TRAIN)
        # This creates the optimizer's variables, which belong in the checkpoint.
        tf_compat.keras_train_op(model, is_training=True)
        with tf.Session(config=config.session_config) as session:
            if weights:
                model.set_weights(weights)
            keras.__internal__.backend.initialize_variables(session)
            if source.by_object:
                _track_step(model)
                model.save_weights(path)
            else:
                tf.train.Saver().save(session, path)
    return path


_FEATURES, _WEIGHTS = "features", "sample_weights"


def _read_batch(model: Object, features: Nest, labels: Nest) -> tuple[Nest, Nest, Nest]:
    weights = None
    if isinstance(features, dict) and set(features) == {_FEATURES, _WEIGHTS}:
        features, weights = features[_FEATURES], features[_WEIGHTS]
    if isinstance(model.inputs, dict):
        inputs: Nest = {name: _tensor(features[name]) for name in model.inputs}
    elif model.inputs is None and isinstance(features, dict):
        inputs = {name: _tensor(value) for name, value in features.items()}
    else:
        names = _names(model, "input_names", "input", features)
        inputs = _in_order(features, names, "features", "inputs")
    names = _names(model, "output_names", "output", labels)
    return inputs, _in_order(labels, names, "labels", "outputs"), weights


def _weights_by_output(weights: Nest, outputs: Sequence[str]) -> list[Object]:
    if isinstance(weights, (list, tuple)) and not weights:
        return [None] * len(outputs)
    if isinstance(weights, Mapping) and (len(outputs) > 1 or outputs[0] in weights):
        unknown = sorted(set(weights) - set(outputs))
        if unknown and len(outputs) > 1:
            raise errors.InvalidInput(
                f"Unknown entries in sample_weights dictionary: {unknown}. Only expected following "
                f"keys: {list(outputs)}. Leave them out, or rename them."
            )
        return [weights.get(name) for name in outputs]
    if isinstance(weights, (list, tuple)):
        if len(weights) == len(outputs):
            return list(weights)
        if len(outputs) > 1:
            raise errors.InvalidInput(
                f"Provided `sample_weights` was a list of {len(weights)} elements, but the model "
                f"has {len(outputs)} outputs. Pass one element for each output, or a dict that "
                "maps outputs to weights."
            )
    if len(outputs) > 1:
        raise errors.WrongType(
            "The model has multiple outputs, so `sample_weights` should be either a list or a "
            f"dict, got {type(weights).__name__}. The outputs are {list(outputs)}."
        )
    return [weights]


def _names(model: Object, attribute: str, prefix: str, values: Nest) -> list[str]:
    if not isinstance(values, dict):
        return []
    if tf_compat.is_graph_network(model):
        return list(getattr(model, attribute))
    return [f"{prefix}_{number}" for number in range(1, len(values) + 1)]


def _in_order(values: Nest, names: Sequence[str], what: str, of: str) -> list[Tensor] | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        items = values if isinstance(values, (list, tuple)) else [values]
        return [_tensor(item) for item in items]
    missing = sorted(set(names) - set(values))
    if missing:
        raise errors.MissingKey(
            f"The dictionary passed into {what} does not cover requested {of} keys defined in the "
            f"keras model. Expected keys: {sorted(names)}; {what} keys: {sorted(values)}; missed "
            f"keys: {missing}. Add them in the input_fn."
        )
    return [_tensor(values[name]) for name in names]


def _tensor(value: Object) -> Tensor:
    return value if tf.is_tensor(value) else tf.convert_to_tensor_or_sparse_tensor(value)


_NUMBER_OF_CLONE = re.compile(r"_\d$")

OutputFunctions = Mapping[str, Callable[[Tensor], Object]]


@dataclasses.dataclass(frozen=True)
class KerasSource:
    """A compiled Keras model, and the options of the estimator that trains it."""

    model: Object
    custom_objects: Mapping[str, Object] | None
    by_object: bool  # whether checkpoints have keys of `tf.train.Checkpoint`, not variable names
    metric_names: Mapping[str, str] | None
    export_outputs: OutputFunctions | None
    optimizer_settings: Object  # the config of the model's optimizer, or a list of configs

    def model_fn(self, features: Nest, labels: Nest, mode: str) -> EstimatorSpec:
        model = clone(self, mode, features, labels, self.optimizer_settings)
        predictions = dict(zip(_output_names(model), model.outputs, strict=True))
        loss = train_op = metrics = None
        if mode != ModeKeys.PREDICT:
            train_op = tf_compat.keras_train_op(model, mode == ModeKeys.TRAIN)
            loss = model.total_loss
            metrics = self._metrics(model)
        tf_compat.restore_reset_model(self.model, model)
        scaffold = None
        if self.by_object:
            _track_step(model)
            scaffold = tf.train.Scaffold(saver=tf_compat.saver_by_object(model))
        return EstimatorSpec(
            mode,
            predictions,
            loss,
            train_op,
            metrics,
            export_outputs=self._outputs(model.output_names, predictions),
            scaffold=scaffold,
        )

    def _metrics(self, model: Object) -> dict[str, Object] | None:
        compiled = tf_compat.compiled_metrics(model)
        if compiled is None:
            return None
        if not self.metric_names:
            return {metric.name: metric for metric in compiled}
        known = {metric.name for metric in compiled}
        without_name = sorted(known - set(self.metric_names))
        if without_name:
            raise errors.InvalidInput(
                "Invalid `metric_names_map`. The following keras model metric names:"
                f'"{without_name}" do not exist in the `metric_names_map` dictionary. Add them.'
            )
        unknown = sorted(set(self.metric_names) - known)
        if unknown:
            raise errors.InvalidInput(
                "Invalid `metric_names_map`. There are unexpected keys in the `metric_names_map` "
                f"dictionary. Expected keys: {sorted(known)}, Received: {unknown}. Leave them out."
            )
        return {self.metric_names[metric.name]: metric for metric in compiled}

    def _outputs(
        self, names: Sequence[str], predictions: Mapping[str, Tensor]
    ) -> dict[str, Object]:
        predict: Object = tf_compat.export_output_classes()["PredictOutput"]
        outputs = {DEFAULT: predict(predictions)}
        chosen = self.export_outputs or {}
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise errors.MissingKey(
                "`export_outputs` has keys that are not outputs of the model. Expected keys: "
                f"{list(names)}; keys of `export_outputs`: {sorted(chosen)}; missed keys: "
                f"{unknown}. Rename them."
            )
        outputs.update((name, kind(predictions[name])) for name, kind in chosen.items())
        return outputs


def clone(
    source: KerasSource,
    mode: str,
    features: Nest = None,
    labels: Nest = None,
    optimizer_settings: Object = None,
) -> Object:
    """Copies the model into the default graph. Without features, its inputs are placeholders."""
    model = source.model
    keras.backend.set_learning_phase(mode == ModeKeys.TRAIN)
    inputs, targets, weights = _read_batch(model, features, labels)
    is_compiled = mode != ModeKeys.PREDICT
    step = None
    if is_compiled:
        step = tf.train.get_or_create_global_step()
        keras.__internal__.backend.track_variable(step)
    copy = keras.__internal__.models.clone_and_build_model(
        model,
        inputs,
        targets,
        source.custom_objects,
        compile_clone=is_compiled,
        in_place_reset=not tf_compat.is_graph_network(model),
        optimizer_iterations=step,
        optimizer_config=optimizer_settings,
    )
    if weights is not None:
        tf_compat.weigh_losses(copy, _weights_by_output(weights, copy.output_names))
    return copy


def _track_step(model: Object) -> None:
    tf_compat.track(model, "estimator_global_step", tf.train.get_global_step())


def _output_names(model: Object) -> list[str]:
    if not tf.distribute.has_strategy():
        return list(model.output_names)
    return [_NUMBER_OF_CLONE.sub("", name) for name in model.output_names]

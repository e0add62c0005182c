"""Defines `model_to_estimator`, which converts a compiled Keras 2 model to an estimator."""

from __future__ import annotations

import os
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.keras_models.model_function import (
    KerasSource,
    Outputs,
    clone,
    track_step,
)
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2, PathLike
from estimator_bridge.runtime.estimator.estimator_arguments import read_config
from tf2_engine import log, tf_compat
from tf2_engine.types import Array, Object

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
    export_outputs: Outputs | None = None,
) -> Estimator:
    """Makes an estimator from a compiled Keras model; training starts from the model's weights.

    An input_fn may return {'features': ..., 'sample_weights': ...} as features.

    Args:
        keras_model: a compiled model of Keras 2: `tf.keras` on TensorFlow 2.15, `tf_keras` later.
            If the program defines a subclass of Model, the weights are not copied.
        keras_model_path: the path of a saved model; can be given instead of `keras_model`.
        custom_objects: layers and functions that the program defines, by name.
        checkpoint_format: how checkpoints store variables: 'checkpoint' (the default) by keys of
            `tf.train.Checkpoint`, or 'saver' by name. Subclasses of Model need 'saver'.
        use_v2_estimator: whether to return an estimator of TensorFlow 2.
        metric_names_map: maps the names that metrics have in Keras to the names that they get in
            evaluations.
        export_outputs: for each output of the model, the class of its export signature.

    Raises:
        InvalidInput: not exactly one model is given; the model is not compiled, cannot be copied,
            or is of Keras 3; Keras cannot convert the optimizer; or the checkpoint format does not
            fit the model.
    """
    if (keras_model is None) == (keras_model_path is None):
        raise errors.InvalidInput(
            "Either `keras_model` or `keras_model_path` needs to be provided, but not both, got "
            f"{keras_model!r} and {keras_model_path!r}."
        )
    if keras_model is not None:
        _check_kind(keras_model)
        _check_is_copied(keras_model, custom_objects)
    config = read_config(config, model_dir)
    model: Object = keras_model
    if model is None:
        assert keras_model_path is not None
        model = keras.models.load_model(os.fspath(keras_model_path), custom_objects)
    by_object = _is_by_object(checkpoint_format, model)
    _check_is_compiled(model)
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


def _check_kind(model: Object) -> None:
    if not isinstance(model, keras.Model):
        raise errors.InvalidInput(
            f"`keras_model` is not a model of Keras 2, but of {type(model).__module__}."
            f"{type(model).__name__}. Make it with `tf_keras`, or with `tf.keras` and the "
            "environment variable TF_USE_LEGACY_KERAS=1."
        )


def _check_is_copied(model: Object, custom_objects: Mapping[str, Object] | None) -> None:
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


def _check_is_compiled(model: Object) -> None:
    if not getattr(model, "optimizer", None):
        raise errors.InvalidInput(
            "The given keras model has not been compiled yet. Please compile the model with "
            "`model.compile()` before calling `model_to_estimator()`."
        )


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
            f"tf.keras.optimizers.{name} does not train in graphs, as estimators do, and "
            f"Keras converts it to an optimizer of {type(legacy).__module__}, because the program "
            "imports both tf_keras and tf.keras. Compile the model with "
            f"tf.keras.optimizers.legacy.{name}, or import only one of the two."
        )
    log.warning(
        "tf.keras.optimizers.%s does not train in graphs, as estimators do: the model gets "
        "the optimizer of this name in tf.keras.optimizers.legacy.",
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
            "%s is a subclass of Model, whose weights are not copied: the estimator starts from "
            "new ones. The model itself stays as it is.",
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
                track_step(model)
                model.save_weights(path)
            else:
                tf.train.Saver().save(session, path)
    return path

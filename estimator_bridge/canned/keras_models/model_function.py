"""The model_fn of a Keras model, which clones the model in each graph."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.keras_models.tensors_by_name import keras_batch, weights_by_output
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

keras = tf_compat.keras2()

_SERVING = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_NUMBER_OF_CLONE = re.compile(r"_\d$")

Outputs = Mapping[str, Callable[[Tensor], Object]]


@dataclasses.dataclass(frozen=True)
class KerasSource:
    """A Keras model, and how its estimator saves, measures and exports.

    Attributes:
        model: compiled; it is cloned, and stays as it is.
        custom_objects: the program's own layers and functions by name.
        by_object: whether checkpoints have keys of `tf.train.Checkpoint` rather than variable
            names.
        metric_names: maps Keras's names of metrics to the estimator's; None keeps them.
        export_outputs: for each output, the class of its signature; None means predictions.
        optimizer_settings: the config of the model's optimizer, or a list of configs.
    """

    model: Object
    custom_objects: Mapping[str, Object] | None
    by_object: bool
    metric_names: Mapping[str, str] | None
    export_outputs: Outputs | None
    optimizer_settings: Object

    def model_fn(self, features: Nest, labels: Nest, mode: str) -> EstimatorSpec:
        model = clone(self, mode, features, labels, self.optimizer_settings)
        predictions = dict(zip(_output_names(model), model.outputs, strict=True))
        loss = train_op = metrics = None
        if mode != ModeKeys.PREDICT:
            train_op = tf_compat.keras_train_op(model, mode == ModeKeys.TRAIN)
            loss = model.total_loss
            metrics = self._metrics(model)
        tf_compat.restore_reset_model(self.model, model)
        scaffold = tf.train.Scaffold(saver=_object_saver(model)) if self.by_object else None
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
        outputs = {_SERVING: predict(predictions)}
        chosen = self.export_outputs or {}
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise errors.MissingKey(
                "`export_outputs` has keys that are no outputs of the model. Expected keys: "
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
    """Copies a source's model into the default graph, compiled unless for predictions.

    The global step counts the steps of its optimizer. Without features its inputs are placeholders.
    """
    model = source.model
    keras.backend.set_learning_phase(mode == ModeKeys.TRAIN)
    batch = keras_batch(model, features, labels)
    is_compiled = mode != ModeKeys.PREDICT
    step = None
    if is_compiled:
        step = tf.train.get_or_create_global_step()
        keras.__internal__.backend.track_variable(step)
    copy = keras.__internal__.models.clone_and_build_model(
        model,
        batch.inputs,
        batch.targets,
        source.custom_objects,
        compile_clone=is_compiled,
        in_place_reset=not tf_compat.is_graph_network(model),
        optimizer_iterations=step,
        optimizer_config=optimizer_settings,
    )
    if batch.weights is not None:
        tf_compat.weigh_losses(copy, weights_by_output(batch.weights, copy.output_names))
    return copy


def track_step(model: Object) -> None:
    """Adds the global step to the checkpoints of a model."""
    tf_compat.track(model, "estimator_global_step", tf.train.get_global_step())


def _object_saver(model: Object) -> tf.train.Saver:
    track_step(model)
    return tf_compat.saver_by_object(model)


def _output_names(model: Object) -> list[str]:
    """The names of a model's outputs; they are the same on all replicas."""
    if not tf.distribute.has_strategy():
        return list(model.output_names)
    return [_NUMBER_OF_CLONE.sub("", name) for name in model.output_names]

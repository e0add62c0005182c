"""The model_fn of a Keras model, which clones the model in each graph."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.single_head import DEFAULT
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

_FEATURES, _WEIGHTS = "features", "sample_weights"


class KerasBatch(NamedTuple):
    """A batch in the form that a Keras model takes.

    Inputs are in the model's order or keyed by name; targets are in the model's order. `weights`
    are the weights that the program gives to examples, or None.
    """

    inputs: Nest
    targets: list[Tensor] | None
    weights: Nest


def keras_batch(model: Object, features: Nest, labels: Nest) -> KerasBatch:
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
    return KerasBatch(inputs, _in_order(labels, names, "labels", "outputs"), weights)


def weights_by_output(weights: Nest, outputs: Sequence[str]) -> list[Object]:
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
                f"has {len(outputs)} outputs. Pass one for each output, or a dict that maps "
                "outputs to weights."
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


keras = tf_compat.keras2()

_NUMBER_OF_CLONE = re.compile(r"_\d$")

Outputs = Mapping[str, Callable[[Tensor], Object]]


@dataclasses.dataclass(frozen=True)
class KerasSource:
    """A compiled Keras model, and the options of the estimator that trains it.

    Attributes:
        by_object: whether checkpoints have keys of `tf.train.Checkpoint`, not variable names.
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
    """Copies the model into the default graph, and compiles it unless it only predicts.

    Without features, the inputs of the copy are placeholders.
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
    tf_compat.track(model, "estimator_global_step", tf.train.get_global_step())


def _object_saver(model: Object) -> tf.train.Saver:
    track_step(model)
    return tf_compat.saver_by_object(model)


def _output_names(model: Object) -> list[str]:
    if not tf.distribute.has_strategy():
        return list(model.output_names)
    return [_NUMBER_OF_CLONE.sub("", name) for name in model.output_names]

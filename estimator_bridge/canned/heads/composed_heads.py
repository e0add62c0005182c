"""Heads made of heads: `MultiHead` for several kinds of labels, `SequentialHead` for sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.head import (
    DEFAULT,
    PREDICT,
    Head,
    HeadCall,
    KerasMetrics,
    add_loss_summaries,
    make_train_op,
)
from estimator_bridge.canned.result_names import MetricKeys
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.program_types import Features
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

keras = tf_compat.keras2()


class MultiHead(Head):
    """Combines heads that share the logits of a model; the loss is the sum of all heads' losses.

    Labels are a dict keyed by head name. Logits are also a dict keyed by head name, or one tensor
    whose last axis has the logits of all heads, in the order of `heads`. Predictions are a dict
    keyed by (head name, prediction key). `head_weights` are factors for the heads' losses.

    Raises:
        InvalidInput: there are no heads, a head has no name, or there are more or fewer weights
            than heads.
    """

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        if not heads:
            raise errors.InvalidInput(f"Must specify heads. Given: {heads}.")
        if head_weights and len(head_weights) != len(heads):
            raise errors.InvalidInput(
                "heads and head_weights must have the same size. Given len(heads): "
                f"{len(heads)}. Given len(head_weights): {len(head_weights)}."
            )
        for head in heads:
            if head.name is None:
                raise errors.InvalidInput(
                    f"All given heads must have name specified. Given: {head}."
                )
        self._heads = {str(head.name): head for head in heads}
        self._weights = tuple(head_weights or ())

    @property
    def name(self) -> str:
        return "_".join(self._heads)

    @property
    def logits_dimension(self) -> int:
        return sum(head.logits_dimension for head in self._heads.values())

    @property
    def loss_reduction(self) -> str:
        reductions = [head.loss_reduction for head in self._heads.values()]
        if len(set(reductions)) > 1:
            raise errors.InvalidInput(
                f"The loss_reduction must be the same for different heads. Given: {reductions}."
            )
        return reductions[0]

    def loss(
        self,
        labels: Nest,
        logits: Nest,
        features: Features | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Tensor:
        by_head = self._by_head(logits, labels)
        losses = [
            head.loss(labels[name], by_head[name], features, mode)
            for name, head in self._heads.items()
        ]
        return self._merged(losses, regularization_losses)

    def _merged(
        self, losses: Sequence[Object], regularization_losses: Sequence[Tensor] | None = None
    ) -> Tensor:
        with tf.name_scope("merge_losses"):
            if self._weights:
                pairs = zip(losses, self._weights, strict=True)
                losses = [tf.multiply(loss, weight) for loss, weight in pairs]
            loss = tf.add_n(losses)
            if regularization_losses is not None:
                loss += tf.add_n(regularization_losses)
            return loss

    def predictions(self, logits: Nest, keys: Sequence[str] | None = None) -> dict[Object, Tensor]:
        by_head = self._by_head(logits)
        with tf.name_scope("merge_pred"):
            return {
                (name, key): value
                for name, head in self._heads.items()
                for key, value in head.predictions(by_head[name]).items()
            }

    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> KerasMetrics:
        means: KerasMetrics = {}
        if regularization_losses is not None:
            key = MetricKeys.LOSS_REGULARIZATION
            means[self._summary_key(key)] = keras.metrics.Mean(name=key)
        with tf.name_scope("merge_eval"):
            keys = [_loss_key(name) for name in self._heads]
            means.update({key: keras.metrics.Mean(name=key) for key in keys})
        return means

    def update_metrics(
        self,
        eval_metrics: KerasMetrics,
        features: Features,
        logits: Nest,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> KerasMetrics:
        by_head = self._by_head(logits, labels)
        if regularization_losses is not None:
            key = self._summary_key(MetricKeys.LOSS_REGULARIZATION)
            eval_metrics[key].update_state(values=tf.add_n(regularization_losses))
        for name, head in self._heads.items():
            own_logits, own_labels = by_head[name], labels[name]
            loss = head.loss(own_labels, own_logits, features)
            eval_metrics[_loss_key(name)].update_state(values=loss)
            updated = head.update_metrics(head.metrics(), features, own_logits, own_labels)
            eval_metrics.update(updated or {})
        return eval_metrics

    def _estimator_spec(self, call: HeadCall) -> EstimatorSpec:
        features, mode, logits, labels = call[:4]
        with tf.name_scope(self.name, "multi_head"):
            specs = self._specs(call)
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions, export_outputs=merged_outputs(specs))
            regularization_losses = call.regularization_losses
            loss = self.loss(labels, logits, features, mode, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self.metrics(regularization_losses)
                metrics = self.update_metrics(
                    metrics, features, logits, labels, regularization_losses
                )
                return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
            train_op = make_train_op(loss, self.loss_reduction, call)
            add_loss_summaries(loss, regularization_losses)
            return EstimatorSpec(mode, predictions, loss, train_op)

    def _specs(self, call: HeadCall) -> dict[str, EstimatorSpec]:
        by_head = self._by_head(call.logits, call.labels)
        return {
            name: head.create_estimator_spec(
                features=call.features,
                mode=call.mode,
                logits=by_head[name],
                labels=call.labels[name] if call.labels else None,
                train_op_fn=lambda loss: tf.no_op(),
            )
            for name, head in self._heads.items()
        }

    def _by_head(self, logits: Nest, labels: Nest = None) -> Mapping[str, Tensor]:
        if labels is not None:
            if not isinstance(labels, Mapping):
                raise errors.InvalidInput(
                    f"labels must be a dict. Given: {labels}. Return a dict that maps the name of "
                    "each head to its labels."
                )
            self._check_names("labels", labels)
        if isinstance(logits, Mapping):
            self._check_names("logits", logits)
            return logits
        return self._split(logits)

    def _check_names(self, what: str, values: Mapping[str, Tensor]) -> None:
        missing = sorted(set(self._heads) - set(values))
        if missing:
            raise errors.InvalidInput(
                f"{what} has missing values for head(s): {missing}. Given: {sorted(values)}."
            )

    def _split(self, logits: Tensor) -> dict[str, Tensor]:
        with tf.name_scope("split_logits"):
            logits = tf.convert_to_tensor(logits)
            sizes = [head.logits_dimension for head in self._heads.values()]
            received = logits.shape[-1]
            if received is not None and received != sum(sizes):
                raise errors.InvalidInput(
                    f"Could not split logits of shape {logits.shape} among the heads, which have "
                    f"{sizes} logits. The last dimension should equal {sum(sizes)} but is "
                    f"{received}."
                )
            outer = tf.shape(logits)[:-1]
            zeros, whole = tf.zeros_like(outer), -1 * tf.ones_like(outer)
            parts: dict[str, Tensor] = {}
            start = 0
            for name, size in zip(self._heads, sizes, strict=True):
                begin, end = tf.concat([zeros, [start]], 0), tf.concat([whole, [size]], 0)
                parts[name] = tf.slice(logits, begin, end)
                start += size
            return parts


def _loss_key(name: str) -> str:
    return f"{MetricKeys.LOSS}/{name}"


def merged_outputs(specs: Mapping[str, EstimatorSpec]) -> dict[str, Object]:
    predict: Object = tf_compat.export_output_classes()["PredictOutput"]
    merged: dict[str, Object] = {}
    predictions: dict[str, Tensor] = {}
    for name, spec in specs.items():
        outputs = spec.export_outputs or {}
        if not merged:
            merged[DEFAULT] = _default_output(name, outputs)
        for key, output in outputs.items():
            merged[name if key == DEFAULT else f"{name}/{key}"] = output
        whole = outputs.get(PREDICT)
        if isinstance(whole, predict):
            predictions |= {f"{name}/{key}": value for key, value in whole.outputs.items()}
    merged[PREDICT] = predict(predictions)
    return merged


def _default_output(name: str, outputs: Mapping[str, Object]) -> Object:
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    if DEFAULT not in outputs:
        raise errors.InvalidInput(
            f"{name} did not specify default export_outputs. Given: {sorted(outputs)}. The first "
            f"head must have an output with the key {DEFAULT!r}."
        )
    return outputs[DEFAULT]


class SequentialHead(Head):
    """Applies a head to every step of a sequence, except for padding.

    Args:
        sequence_length_mask: the key of a feature, [batch, steps] bool: True for real steps, False
            for padding.
        feature_columns: the keys of the features that `head` reads in each step, such as weights.

    Raises:
        WrongType: a key is not a str.
        InvalidInput: the head is a `MultiHead`.
    """

    def __init__(
        self,
        static_head: Head,
        sequence_length_mask: str = "sequence_length_mask",
        feature_columns: str | Sequence[str] | None = None,
    ) -> None:
        keys = [feature_columns] if isinstance(feature_columns, str) else feature_columns or []
        for key in (sequence_length_mask, *keys):
            if not isinstance(key, str):
                raise errors.WrongType(
                    f"The keys of the mask and of weights must be strings, got {key!r}."
                )
        if isinstance(static_head, MultiHead):
            raise errors.InvalidInput(
                "`MultiHead` is not supported for sequences. Pass a single head."
            )
        self.static_head, self._keys = static_head, list(keys)
        self.input_sequence_mask_key = sequence_length_mask

    @property
    def name(self) -> str | None:
        return f"{self.static_head.name}_sequential" if self.static_head.name else None

    @property
    def logits_dimension(self) -> int:
        return self.static_head.logits_dimension

    @property
    def loss_reduction(self) -> str:
        return self.static_head.loss_reduction

    def loss(
        self,
        labels: Nest,
        logits: Tensor,
        features: Features | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Tensor:
        labels, logits, features = self._steps(labels, logits, features or {})
        return self.static_head.loss(labels, logits, features, mode, regularization_losses)

    def predictions(
        self, logits: Tensor, keys: Sequence[str] | None = None
    ) -> dict[Object, Tensor]:
        return self.static_head.predictions(logits, keys)

    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> KerasMetrics:
        return self.static_head.metrics(regularization_losses)

    def update_metrics(
        self,
        eval_metrics: KerasMetrics,
        features: Features,
        logits: Tensor,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> KerasMetrics:
        labels, logits, features = self._steps(labels, logits, features)
        return self.static_head.update_metrics(
            eval_metrics, features, logits, labels, regularization_losses
        )

    def _estimator_spec(self, call: HeadCall) -> EstimatorSpec:
        key, features = self.input_sequence_mask_key, call.features
        if call.mode == ModeKeys.PREDICT:
            spec = self.static_head.create_estimator_spec(features, call.mode, call.logits)
            return spec._replace(predictions={**spec.predictions, key: features[key]})
        labels, logits, features = self._steps(call.labels, call.logits, features)
        of_steps = call._replace(features=features, logits=logits, labels=labels)
        return self.static_head.create_estimator_spec(*of_steps)

    def _steps(
        self, labels: Nest, logits: Tensor, features: Features
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        for key in (self.input_sequence_mask_key, *self._keys):
            if key not in features:
                raise errors.InvalidInput(
                    f"The sequence_length_mask key or column `{key}` should be included in the "
                    f"features dictionary, which has {sorted(features)}."
                )
        mask = features[self.input_sequence_mask_key]
        if mask.shape.rank != 2:
            raise errors.InvalidInput(
                f"Mask is expected to have two dimensions, got {mask.shape.rank} instead."
            )
        with tf.name_scope("flatten"):
            count = tf.reduce_sum(tf.cast(mask, tf.int32))
            flat_logits = _flat(logits, mask, count)
            flat_labels = _flat(labels, mask, count)
            weights = {key: _flat(features[key], mask, count) for key in self._keys}
        return flat_labels, flat_logits, weights


def _flat(tensor: Nest, mask: Tensor, count: Tensor) -> Tensor:
    shape = tensor.shape
    if shape.rank < 2:
        raise errors.InvalidInput(
            "Labels, logits and weights of sequences must have the shape [batch, steps, ...], got "
            f"{shape}."
        )
    if isinstance(tensor, tf.SparseTensor):
        flat = tf.sparse.reorder(tensor).values
        if shape.rank > 2:
            flat = tf.reshape(tensor.values, tf.concat([[-1], shape[2:]], axis=0))
    else:
        flat = tf.boolean_mask(tensor, mask)
    inner = shape[2:]
    if shape.rank == 2:
        flat, inner = tf.expand_dims(flat, -1), [1]
    expected = tf.concat([[count], inner], axis=0)
    message = "Tensor shape is incompatible with provided mask."
    if tf.executing_eagerly():
        if flat.shape.as_list() != expected.numpy().tolist():
            raise errors.InvalidInput(
                f"{message} With the mask applied, the shape is {flat.shape}, but "
                f"{expected.numpy()} was expected."
            )
        return flat
    fits = tf.debugging.assert_equal(tf.shape(flat), expected, message=message)
    with tf.control_dependencies([fits]):
        return tf.identity(flat)

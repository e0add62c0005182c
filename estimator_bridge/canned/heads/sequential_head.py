"""`SequentialHead`: applies a head to every step of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.head import Head, HeadCall, Metrics
from estimator_bridge.canned.heads.multi_head import MultiHead
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from estimator_bridge.runtime.program_types import Features
from tf2_engine.types import Nest, Object, Tensor


class SequentialHead(Head):
    """Applies a head to every step of a sequence, except for padding.

    Args:
        static_head: the head of one step.
        sequence_length_mask: the key of the feature, [batch, steps] bool, that is true for steps
            that are not padding.
        feature_columns: the keys of the features that the head of a step reads, such as weights.

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

    def metrics(self, regularization_losses: Sequence[Tensor] | None = None) -> Metrics:
        return self.static_head.metrics(regularization_losses)

    def update_metrics(
        self,
        eval_metrics: Metrics,
        features: Features,
        logits: Tensor,
        labels: Nest,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Metrics:
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
            f"Labels, logits and weights of sequences are [batch, steps, ...], got shape {shape}."
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
            raise errors.InvalidInput(f"{message} It is {flat.shape}, expected {expected.numpy()}.")
        return flat
    fits = tf.debugging.assert_equal(tf.shape(flat), expected, message=message)
    with tf.control_dependencies([fits]):
        return tf.identity(flat)

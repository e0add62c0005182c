"""Applies the head of one example to every step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.heads.head_layer import Features, HeadLayer
from tf2_engine.keras.layer_settings import Arguments, PassiveLayer, plain
from tf2_engine.keras.signatures import Outputs
from tf2_engine.types import Object, Tensor

Steps = Object
"""A value per step: [batch, steps, ...], or a SparseTensor of the existing steps."""


class SequenceHeadLayer(PassiveLayer):
    """The loss, predictions and metrics of a head for every step of sequences.

        head = SequenceHead(BinaryClassHead(weight_column="weight"))
        loss = head.loss(labels, logits, mask, features)

    Args:
        head: the head of one step. If it has weights, they are a feature with a weight per step.
        mask_key: the key of the mask in predictions, which tells which steps exist.

    Raises:
        InvalidSpec: `head` has several kinds of labels, or its weights are a `Numeric`.
    """

    def __init__(
        self,
        head: HeadLayer,
        mask_key: str = "sequence_mask",
        name: str | None = None,
        **options: Object,
    ) -> None:
        super().__init__(name=name, **options)
        head = plain(head)
        if not isinstance(head, HeadLayer):
            raise errors.InvalidSpec(
                f"`head`: {head!r} is not a head for a single kind of labels. Give one, such as a "
                "BinaryClassHead."
            )
        if not isinstance(head.weight_column, str | None):
            raise errors.InvalidSpec(
                f"`head`: its weights of steps are {head.weight_column!r}. Give it the key of a "
                "feature."
            )
        self._arguments = Arguments({"head": head, "mask_key": mask_key})
        self.head, self.units, self._mask_key = head, head.units, mask_key
        self.built = True

    @do_not_convert
    def loss(
        self, labels: Steps, logits: Tensor, mask: Tensor, features: Features | None = None
    ) -> Tensor:
        """Computes the loss of the steps of a batch, a float32 scalar.

        Args:
            labels: [batch, steps], or a SparseTensor.
            logits: [batch, steps, units] float32.
            mask: [batch, steps] bool: which steps exist.
            features: the features of the batch, if one of them holds weights, [batch, steps] or a
                SparseTensor.
        """
        return self.head.loss(*self._flat(labels, logits, mask, features))

    @do_not_convert
    def update_metrics(
        self, labels: Steps, logits: Tensor, mask: Tensor, features: Features | None = None
    ) -> None:
        self.head.update_metrics(*self._flat(labels, logits, mask, features))

    def results(self) -> dict[str, Tensor]:
        return self.head.results()

    def predictions(self, logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Computes the predictions of each step, with the mask, by the keys of estimators."""
        return {**self.head.predictions(logits), self._mask_key: mask}

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        of_head = {key: each for key, each in predictions.items() if key != self._mask_key}
        return self.head.signatures(of_head)

    def call(self, logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return self.predictions(logits, mask)

    def _flat(
        self, labels: Steps, logits: Tensor, mask: Tensor, features: Features | None
    ) -> tuple[Tensor, Tensor, Features]:
        key = self.head.weight_column
        weights = {}
        if isinstance(key, str):
            weights[key] = _of_steps((features or {})[key], mask)
        return _of_steps(labels, mask), tf.boolean_mask(logits, mask), weights


def _of_steps(values: Steps, mask: Tensor) -> Tensor:
    """Selects the values of the steps in a mask, [steps, values per step]."""
    if isinstance(values, tf.SparseTensor):
        flat = tf.sparse.reorder(values).values
        width = 1
    else:
        values = tf.convert_to_tensor(values)
        flat = tf.boolean_mask(values, mask)
        width = values.shape[2] if values.shape.rank > 2 else 1
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    return tf.reshape(flat, [count, width])

"""Combinations of heads: several heads on one model, or one head applied to each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.heads.head_layer import PREDICT, SERVING_DEFAULT, HeadFeatures, HeadLayer
from tf2_engine.keras.layer_settings import PassiveLayer, keras_of
from tf2_engine.keras.saved_model import Outputs, outputs_of
from tf2_engine.types import Object, Tensor


class MultiHeadLayer(PassiveLayer):
    """Combines several heads on one model. The loss is the sum of the heads' losses.

    The logits of all heads are concatenated in the order of `heads`. Labels are a dict
    that maps each head's suffix to the head's labels.

    Args:
        heads: heads, each with a different `suffix`.
        head_weights: a factor for the loss of each head; by default 1.
    """

    def __init__(
        self,
        heads: Sequence[HeadLayer],
        head_weights: Sequence[float] | None = None,
        name: str | None = None,
        **options: Object,
    ) -> None:
        super().__init__({"heads": [*heads], "head_weights": head_weights}, name, **options)
        suffixes = [each.suffix for each in heads]
        if not all(suffixes) or len({*suffixes}) < len(suffixes):
            raise errors.InvalidSpec(
                f"`heads` have the suffixes {suffixes}, which must be different and not empty. "
                "Give each head its own `suffix`."
            )
        if head_weights is not None and len(head_weights) != len(heads):
            raise errors.InvalidSpec(
                f"`head_weights` has {len(head_weights)} weights for {len(heads)} heads. Give one "
                "weight for each head."
            )
        self.heads = [*heads]
        self.units = sum(each.units for each in heads)
        metrics = keras_of(self).metrics
        self._losses_by_head = [metrics.Mean(name=f"loss/{each}") for each in suffixes]
        self.built = True

    @do_not_convert
    def loss(
        self, labels: Mapping[str, Object], logits: Tensor, features: HeadFeatures | None = None
    ) -> Tensor:
        losses = self._losses_of(labels, logits, features)
        weights = self._arguments.values["head_weights"]
        if weights is not None:
            losses = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
        return tf.add_n(losses)

    @do_not_convert
    def update_metrics(
        self, labels: Mapping[str, Object], logits: Tensor, features: HeadFeatures | None = None
    ) -> None:
        losses = self._losses_of(labels, logits, features)
        for metric, loss in zip(self._losses_by_head, losses, strict=True):
            metric.update_state(loss)
        for head, part in zip(self.heads, self._split(logits), strict=True):
            head.update_metrics(labels[head.suffix], part, features)

    def results(self) -> dict[str, Tensor]:
        results = {each.name: each.result() for each in self._losses_by_head}
        for head in self.heads:
            results |= head.results()
        return results

    @do_not_convert
    def predictions(self, logits: Tensor) -> dict[tuple[str, str], Tensor]:
        return {
            (head.suffix, key): value
            for head, part in zip(self.heads, self._split(logits), strict=True)
            for key, value in head.predictions(part).items()
        }

    def signatures(self, predictions: Mapping[tuple[str, str], Tensor]) -> dict[str, Outputs]:
        merged: dict[str, Outputs] = {}
        together: dict[str, Tensor] = {}
        for head in self.heads:
            of_head = {key: each for (of, key), each in predictions.items() if of == head.suffix}
            for name, outputs in head.signatures(of_head).items():
                is_default = name == SERVING_DEFAULT
                if is_default:
                    merged.setdefault(SERVING_DEFAULT, outputs)
                merged[head.suffix if is_default else f"{head.suffix}/{name}"] = outputs
                if name == PREDICT:
                    values = outputs_of(outputs).items()
                    together |= {f"{head.suffix}/{key}": value for key, value in values}
        return {**merged, PREDICT: together}

    def call(self, logits: Tensor) -> dict[tuple[str, str], Tensor]:
        return self.predictions(logits)

    def _losses_of(
        self, labels: Mapping[str, Object], logits: Tensor, features: HeadFeatures | None
    ) -> list[Tensor]:
        missing = [each.suffix for each in self.heads if each.suffix not in labels]
        if missing:
            raise errors.InvalidInput(
                f"There are no labels for heads {missing}, only for {sorted(labels)}. "
                "Pass a dict that maps each head's suffix to the head's labels."
            )
        return [
            head.loss(labels[head.suffix], part, features)
            for head, part in zip(self.heads, self._split(logits), strict=True)
        ]

    def _split(self, logits: Tensor) -> list[Tensor]:
        return list(tf.split(logits, [each.units for each in self.heads], -1))


StepValues = Object
"""Values of steps: [batch, steps, ...], or a SparseTensor without steps after a sequence's end."""


class SequenceHeadLayer(PassiveLayer):
    """Applies a head to every step of each sequence.

        head = SequenceHead(BinaryClassHead(weight_column="weight"))
        loss = head.loss(labels, logits, mask, features)

    Args:
        head: the head for one step. Its `weight_column`, if any, has a weight per step.
        mask_key: the key of the mask in predictions. The mask is False after a sequence's end.

    Raises:
        InvalidSpec: `head` is a `MultiHead`, or its `weight_column` is a `Numeric`.
    """

    def __init__(
        self,
        head: HeadLayer,
        mask_key: str = "sequence_mask",
        name: str | None = None,
        **options: Object,
    ) -> None:
        super().__init__({"head": head, "mask_key": mask_key}, name, **options)
        if not isinstance(head, HeadLayer):
            raise errors.InvalidSpec(
                f"`head`: {head!r} is not a single head. Pass a head such as a "
                "BinaryClassHead, but not a MultiHead."
            )
        if not isinstance(head.weight_column, str | None):
            raise errors.InvalidSpec(
                f"`head`: its `weight_column` is {head.weight_column!r}. Set `weight_column` to "
                "the key of a feature."
            )
        self.head, self.units, self._mask_key = head, head.units, mask_key
        self.built = True

    @do_not_convert
    def loss(
        self, labels: StepValues, logits: Tensor, mask: Tensor, features: HeadFeatures | None = None
    ) -> Tensor:
        """Computes the loss of all steps in a batch, a float32 scalar.

        Args:
            labels: [batch, steps], or a SparseTensor.
            logits: [batch, steps, units] float32.
            mask: [batch, steps] bool, False after a sequence's end.
            features: needed for a `weight_column`, which is [batch, steps] or a SparseTensor.
        """
        return self.head.loss(*self._flat(labels, logits, mask, features))

    @do_not_convert
    def update_metrics(
        self, labels: StepValues, logits: Tensor, mask: Tensor, features: HeadFeatures | None = None
    ) -> None:
        self.head.update_metrics(*self._flat(labels, logits, mask, features))

    def results(self) -> dict[str, Tensor]:
        return self.head.results()

    def predictions(self, logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Computes predictions for each step, under the keys of estimators, and adds the mask."""
        return {**self.head.predictions(logits), self._mask_key: mask}

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        of_head = {key: each for key, each in predictions.items() if key != self._mask_key}
        return self.head.signatures(of_head)

    def call(self, logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return self.predictions(logits, mask)

    def _flat(
        self, labels: StepValues, logits: Tensor, mask: Tensor, features: HeadFeatures | None
    ) -> tuple[Tensor, Tensor, HeadFeatures]:
        key = self.head.weight_column
        weights = {}
        if isinstance(key, str):
            weights[key] = _of_steps((features or {})[key], mask)
        return _of_steps(labels, mask), tf.boolean_mask(logits, mask), weights


def _of_steps(values: StepValues, mask: Tensor) -> Tensor:
    if isinstance(values, tf.SparseTensor):
        flat = tf.sparse.reorder(values).values
        width = 1
    else:
        values = tf.convert_to_tensor(values)
        flat = tf.boolean_mask(values, mask)
        width = values.shape[2] if values.shape.rank > 2 else 1
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    return tf.reshape(flat, [count, width])

"""The head of classes that do not exclude each other."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.heads.class_heads import ClassHeadLayer
from tf2_engine.keras.heads.head_layer import BatchLosses, in_range, spread
from tf2_engine.keras.heads.head_metrics import metrics_at, thresholds_of, update_at
from tf2_engine.keras.layer_settings import plain
from tf2_engine.types import Object, SparseTensor, Tensor


class MultiLabelHeadLayer(ClassHeadLayer):
    """Any number of several classes. The sigmoid of each logit is the probability of its class.

    The loss of an example is the mean of the sigmoid cross entropy over the classes. Labels are
    zeros and ones, [batch, n_classes], or a SparseTensor with the ids or names of each example.

    Args:
        n_classes: the number of classes.
        label_vocabulary: the labels as strings. None: they are integers below `n_classes`.
        classes_for_class_based_metrics: classes, by id or name, that get their own metrics.
        thresholds, options: as in `BinaryClassHead`.

    Raises:
        InvalidSpec: there is no such class.
    """

    def __init__(
        self,
        n_classes: int,
        label_vocabulary: Sequence[str] | None = None,
        thresholds: Sequence[float] = (),
        classes_for_class_based_metrics: Sequence[int | str] = (),
        **options: Object,
    ) -> None:
        names = plain(label_vocabulary) or [f"class{id_}" for id_ in range(n_classes)]
        chosen = [*plain(classes_for_class_based_metrics)]
        arguments = {
            "n_classes": n_classes,
            "thresholds": thresholds_of(plain(thresholds)),
            "classes_for_class_based_metrics": [_id_of(each, names) for each in chosen],
        }
        super().__init__(n_classes, label_vocabulary, arguments, **options)
        self.units = n_classes

    @do_not_convert
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits, probabilities and the names of all classes, [batch, n_classes]."""
        names = self._of_all(self._names, logits)
        return {"logits": logits, "probabilities": tf.sigmoid(logits), "classes": names}

    def _checked_labels(self, labels: Object, logits: Tensor) -> Tensor:
        if isinstance(labels, tf.SparseTensor):
            return self._indicators(labels)
        labels = tf.reshape(labels, tf.shape(logits))
        return in_range(labels, 2, "Labels must be 0 or 1 for each class, or a SparseTensor.")

    def _indicators(self, labels: SparseTensor) -> Tensor:
        ids = labels.values if labels.dtype != tf.string else self._looked_up(labels.values)
        message = f"Labels must be in [0, {self._count - 1}], or in the vocabulary."
        known = labels.with_values(in_range(ids, self._count, message))
        return tf.cast(tf.sparse.to_indicator(known, self._count), tf.int64)

    def _looked_up(self, names: Tensor) -> Tensor:
        if self._ids is None:
            raise errors.InvalidInput(
                "Labels are strings, and the head has no `label_vocabulary`. Give it, or give ids."
            )
        return self._ids.lookup(names)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        of_classes = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(labels, logits.dtype), logits=logits
        )
        return tf.reduce_mean(of_classes, -1, keepdims=True)

    @property
    def _classes_with_metrics(self) -> dict[int, str]:
        values = self._arguments.values
        names = values["label_vocabulary"]
        chosen = values["classes_for_class_based_metrics"]
        return {id_: names[id_] if names else f"class{id_}" for id_ in chosen}

    def _metrics_of(self, metrics: Object) -> list[Object]:
        all_metrics = [
            *super()._metrics_of(metrics),
            metrics.AUC(name="auc"),
            metrics.AUC(curve="PR", name="auc_precision_recall"),
            *metrics_at(metrics, self._arguments.values["thresholds"]),
        ]
        for name in self._classes_with_metrics.values():
            mean, auc, auc_pr = _keys_of(name)
            all_metrics += [metrics.Mean(name=mean), metrics.AUC(name=auc)]
            all_metrics.append(metrics.AUC(curve="PR", name=auc_pr))
        return all_metrics

    def _update(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> None:
        chances, metrics = tf.sigmoid(logits), self._metric_objects
        weights = spread(losses.weights, logits)
        for key in ("auc", "auc_precision_recall"):
            metrics[key].update_state(losses.labels, chances, weights)
        update_at(metrics, self._arguments.values["thresholds"], losses, chances)
        for id_, name in self._classes_with_metrics.items():
            of_class, truth = chances[:, id_ : id_ + 1], losses.labels[:, id_ : id_ + 1]
            mean, *areas = _keys_of(name)
            metrics[mean].update_state(of_class, losses.weights)
            for key in areas:
                metrics[key].update_state(truth, of_class, losses.weights)


def _keys_of(name: str) -> list[str]:
    return [f"{key}/{name}" for key in ("probability_mean", "auc", "auc_precision_recall")]


def _id_of(chosen: int | str, names: Sequence[str]) -> int:
    id_ = names.index(chosen) if chosen in names else chosen
    if not isinstance(id_, int) or not 0 <= id_ < len(names):
        raise errors.InvalidSpec(
            f"`classes_for_class_based_metrics`: {chosen!r} is not a class of {[*names]}. Give ids "
            "or names of the vocabulary."
        )
    return id_

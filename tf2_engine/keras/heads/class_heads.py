"""Heads for classification, with one logit for two classes, or one logit per class."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.heads.head_layer import (
    CLASSIFICATION,
    PREDICT,
    REGRESSION,
    SERVING_DEFAULT,
    BatchLosses,
    HeadLayer,
    Inputs,
    in_range,
    spread,
)
from tf2_engine.keras.layer_settings import keras_of
from tf2_engine.keras.saved_model import OfExamples, Outputs
from tf2_engine.types import Object, SparseTensor, Tensor

_EPSILON = 1e-6
"""Added to counts before they are divided, as in the legacy metric."""


@functools.cache
def v1_auc(keras: types.ModuleType) -> type:
    class V1AUC(keras.metrics.AUC):  # type: ignore[name-defined]
        def __init__(self, curve: str = "ROC", name: str | None = None) -> None:
            super().__init__(curve=curve, name=name)
            self._is_roc = curve == "ROC"

        def result(self) -> Tensor:
            counts = (
                *(self.true_positives, self.false_positives),
                *(self.true_negatives, self.false_negatives),
            )
            tp, fp, tn, fn = map(tf.convert_to_tensor, counts)
            recall = (tp + _EPSILON) / (tp + fn + _EPSILON)
            if self._is_roc:
                x, y = fp / (fp + tn + _EPSILON), recall
            else:
                x, y = recall, (tp + _EPSILON) / (tp + fp + _EPSILON)
            return tf.reduce_sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2.0)

    return V1AUC


def thresholds_of(thresholds: Sequence[float]) -> list[float]:
    if not all(0.0 < each < 1.0 for each in thresholds):
        raise errors.InvalidSpec(
            f"`thresholds`: {[*thresholds]} are not all between 0 and 1. Pass probabilities."
        )
    return [*thresholds]


def metrics_at(metrics: Object, thresholds: Sequence[float]) -> Iterator[tuple[str, Object]]:
    for each in thresholds:
        ending = f"/positive_threshold_{each:g}"
        yield "examples", metrics.BinaryAccuracy(name=f"accuracy{ending}", threshold=each)
        yield "chances", metrics.Precision(name=f"precision{ending}", thresholds=each)
        yield "chances", metrics.Recall(name=f"recall{ending}", thresholds=each)


_UNKNOWN_ID, _UNKNOWN_NAME = -1, "UNK"


class ClassHeadLayer(HeadLayer):
    """Base class of heads for `count` classes, whose default names are "0", "1", and so on."""

    def __init__(
        self,
        count: int,
        label_vocabulary: Sequence[str] | None,
        arguments: Mapping[str, Object],
        **options: Object,
    ) -> None:
        names = None if label_vocabulary is None else list(label_vocabulary)
        if names is not None and len(names) != count:
            raise errors.InvalidSpec(
                f"`label_vocabulary` has {len(names)} names for {count} classes: {names}. Give one "
                "name for each class."
            )
        super().__init__({**arguments, "label_vocabulary": names}, **options)
        self._count = count
        self._names = tf.constant(names or list(map(str, range(count))))
        self._ids: Object = None
        if names is not None:
            ids = tf.range(count, dtype=tf.int64)
            pairs = tf.lookup.KeyValueTensorInitializer(self._names, ids)
            self._ids = tf.lookup.StaticHashTable(pairs, _UNKNOWN_ID)

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        scores = predictions["probabilities"]
        classes = OfExamples({"classes": self._of_all(self._names, scores), "scores": scores})
        return {SERVING_DEFAULT: classes, CLASSIFICATION: classes, PREDICT: dict(predictions)}

    def _ids_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        labels = tf.reshape(labels, [tf.shape(logits)[0], 1])
        ids = labels if self._ids is None else self._ids.lookup(labels)
        return in_range(
            ids, self._count, f"Labels must be in [0, {self._count - 1}], or in the vocabulary."
        )

    def _inputs_of_chances(self, chances: Tensor, losses: BatchLosses) -> Inputs:
        labels, weights = losses.labels, losses.weights
        inputs: Inputs = {"chances": (labels, chances, spread(weights, chances))}
        if self._arguments.values["thresholds"]:
            # The accuracy of an example is a mean over classes, so each example has one weight.
            of_examples = None if weights is None else tf.squeeze(weights, -1)
            inputs["examples"] = (labels, chances, of_examples)
        return inputs

    def _of_classes(self, logits: Tensor) -> dict[str, Tensor]:
        ids = tf.expand_dims(tf.argmax(logits, -1), -1)
        return {
            "probabilities": tf.nn.softmax(logits),
            "class_ids": ids,
            "classes": tf.gather(self._names, ids),
            "all_class_ids": self._of_all(tf.range(self._count), logits),
            "all_classes": self._of_all(self._names, logits),
        }

    def _of_all(self, values: Tensor, logits: Tensor) -> Tensor:
        return tf.tile(values[tf.newaxis], [tf.shape(logits)[0], 1])


class MultiClassHeadLayer(ClassHeadLayer):
    """A head for examples with one of several classes. The loss is the softmax cross entropy.

    Args:
        label_vocabulary: the classes, if labels are strings. By default labels are integers below
            `n_classes`.
        options: as in `BinaryClassHead`.
    """

    def __init__(
        self, n_classes: int, label_vocabulary: Sequence[str] | None = None, **options: Object
    ) -> None:
        super().__init__(n_classes, label_vocabulary, {"n_classes": n_classes}, **options)
        self.units = n_classes

    @do_not_convert
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits, probabilities, the predicted class and all classes, each [batch, …]."""
        return {"logits": logits, **self._of_classes(logits)}

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        return self._ids_of(labels, logits)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        ids = tf.squeeze(labels, -1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
        return tf.expand_dims(losses, -1)

    def _metrics_of(self, metrics: Object) -> Iterator[tuple[str, Object]]:
        yield from super()._metrics_of(metrics)
        yield "classes", metrics.Accuracy(name="accuracy")

    def _inputs_of(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> Inputs:
        ids = tf.expand_dims(tf.argmax(logits, -1), -1)
        return {"classes": (losses.labels, ids, losses.weights)}


class BinaryClassHeadLayer(ClassHeadLayer):
    """A head for two classes. The logit's sigmoid is the probability of class 1.

    Args:
        label_vocabulary: the two classes, if labels are strings. By default labels are 0 and 1, of
            any numeric type.
        v1_auc: whether to compute AUCs like `tf.compat.v1.metrics.auc`. Keras' AUCs differ in the
            last digits, and define the area under the precision-recall curve differently.
        thresholds: the probabilities at which to report accuracy, precision and recall.
        options: the options of all heads. `weight_column` is the key of the feature that contains a
            weight per example, or a `Numeric`. If `reduction` is "sum", the loss is the sum of the
            weighted losses. This sum is divided by the number of losses with "sum_over_batch_size"
            (the default), by the sum of the weights with "mean", and by the number of nonzero
            weights with "sum_by_nonzero_weights". `loss_fn` takes `labels`, `logits` and optionally
            `features`, and returns a loss per example, [batch, 1]. `suffix` is appended to the
            names of metrics, after a "/".
    """

    def __init__(
        self,
        label_vocabulary: Sequence[str] | None = None,
        v1_auc: bool = False,
        thresholds: Sequence[float] = (),
        **options: Object,
    ) -> None:
        arguments = {"v1_auc": v1_auc, "thresholds": thresholds_of(thresholds)}
        super().__init__(2, label_vocabulary, arguments, **options)

    @do_not_convert
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits, probabilities, the predicted class and both classes, each [batch, …]."""
        of_both = tf.concat([tf.zeros_like(logits), logits], -1)
        return {"logits": logits, "logistic": tf.sigmoid(logits), **self._of_classes(of_both)}

    def signatures(self, predictions: Mapping[str, Tensor]) -> dict[str, Outputs]:
        outputs = OfExamples({"outputs": predictions["logistic"]})
        return {**super().signatures(predictions), REGRESSION: outputs}

    def _computed_results(self) -> dict[str, Tensor]:
        ones, count = (getattr(self._metric_objects["label/mean"], n) for n in ("total", "count"))
        ones, count = tf.convert_to_tensor(ones), tf.convert_to_tensor(count)
        return {"accuracy_baseline": tf.math.divide_no_nan(tf.maximum(ones, count - ones), count)}

    def _checked_labels(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.cast(self._ids_of(labels, logits), tf.float32)

    def _losses_of(self, labels: Tensor, logits: Tensor) -> Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _metrics_of(self, metrics: Object) -> Iterator[tuple[str, Object]]:
        is_v1 = self._arguments.values["v1_auc"]
        auc = v1_auc(keras_of(self)) if is_v1 else metrics.AUC
        yield from super()._metrics_of(metrics)
        yield "classes", metrics.Accuracy(name="accuracy")
        yield "classes", metrics.Precision(name="precision")
        yield "classes", metrics.Recall(name="recall")
        yield "chance", metrics.Mean(name="prediction/mean")
        yield "label", metrics.Mean(name="label/mean")
        yield "chances", auc(name="auc")
        yield "chances", auc(curve="PR", name="auc_precision_recall")
        yield from metrics_at(metrics, self._arguments.values["thresholds"])

    def _inputs_of(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> Inputs:
        chances, weights = tf.sigmoid(logits), spread(losses.weights, logits)
        return {
            "classes": (losses.labels, tf.cast(logits > 0.0, tf.float32), losses.weights),
            "chance": (chances, weights),
            "label": (losses.labels, weights),
            **self._inputs_of_chances(chances, losses),
        }


class MultiLabelHeadLayer(ClassHeadLayer):
    """A head for examples with any number of classes. Probabilities are sigmoids of logits.

    The loss of an example is the mean over the classes of the sigmoid cross entropy. Labels are
    zeros and ones, [batch, n_classes], or a SparseTensor with the class ids or names of each
    example.

    Args:
        n_classes, label_vocabulary: as in `MultiClassHead`.
        classes_for_class_based_metrics: the ids or names of classes that get metrics of their own.
        thresholds, options: as in `BinaryClassHead`.
    """

    def __init__(
        self,
        n_classes: int,
        label_vocabulary: Sequence[str] | None = None,
        thresholds: Sequence[float] = (),
        classes_for_class_based_metrics: Sequence[int | str] = (),
        **options: Object,
    ) -> None:
        names = label_vocabulary or [f"class{id_}" for id_ in range(n_classes)]
        arguments = {
            "n_classes": n_classes,
            "thresholds": thresholds_of(thresholds),
            "classes_for_class_based_metrics": [
                _id_of(each, names) for each in classes_for_class_based_metrics
            ],
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
                "Labels are strings, but the head has no `label_vocabulary`. Pass one, or pass ids."
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

    def _metrics_of(self, metrics: Object) -> Iterator[tuple[str, Object]]:
        yield from super()._metrics_of(metrics)
        yield "chances", metrics.AUC(name="auc")
        yield "chances", metrics.AUC(curve="PR", name="auc_precision_recall")
        yield from metrics_at(metrics, self._arguments.values["thresholds"])
        for each in self._classes_with_metrics.values():
            yield f"chance/{each}", metrics.Mean(name=f"probability_mean/{each}")
            yield f"chances/{each}", metrics.AUC(name=f"auc/{each}")
            yield f"chances/{each}", metrics.AUC(curve="PR", name=f"auc_precision_recall/{each}")

    def _inputs_of(self, labels: Tensor, logits: Tensor, losses: BatchLosses) -> Inputs:
        chances = tf.sigmoid(logits)
        inputs = self._inputs_of_chances(chances, losses)
        for id_, name in self._classes_with_metrics.items():
            of_class, truth = chances[:, id_ : id_ + 1], losses.labels[:, id_ : id_ + 1]
            inputs[f"chance/{name}"] = (of_class, losses.weights)
            inputs[f"chances/{name}"] = (truth, of_class, losses.weights)
        return inputs


def _id_of(chosen: int | str, names: Sequence[str]) -> int:
    id_ = names.index(chosen) if chosen in names else chosen
    if not isinstance(id_, int) or not 0 <= id_ < len(names):
        raise errors.InvalidSpec(
            f"`classes_for_class_based_metrics`: {chosen!r} is not one of the classes {[*names]}. "
            "Give ids, or names from the vocabulary."
        )
    return id_

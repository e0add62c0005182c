"""The classes of a classifier: their ids and names."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from estimator_bridge import errors
from tf2_engine import tf_compat
from tf2_engine.types import Object, Tensor

_TABLES = {
    "name": (tf_compat.index_table_from_tensor, "class_id_lookup"),
    "id": (tf_compat.index_to_string_table_from_tensor, "class_string_lookup"),
}
"""The function that makes each table, and the table's name."""


class LabelClasses:
    """Classes with ids from 0 up; without a vocabulary their names are their ids as strings.

    Attributes:
        count: the number of classes.
        vocabulary: the names in the order of the ids, or None.
    """

    def __init__(self, count: int, vocabulary: Sequence[str] | None) -> None:
        self.count, self.vocabulary = count, vocabulary
        self._eager_tables: dict[str, Object] = {}

    def ids_of(self, names: Tensor) -> Tensor:
        """Looks up int64 ids by name; -1 for names outside of the vocabulary."""
        return self._table("name").lookup(names)

    def names_of(self, ids: Tensor) -> Tensor:
        """Looks up names by int64 id."""
        if not self.vocabulary:
            return tf.strings.as_string(ids, name="str_classes")
        return self._table("id").lookup(ids)

    def all_ids(self, logits: Tensor) -> Tensor:
        """Repeats all ids for each example of the logits, [batch, classes] int32."""
        batch = tf.shape(logits)[0]
        return tf.tile(tf.expand_dims(tf.range(self.count), 0), [batch, 1])

    def all_names(self, logits: Tensor) -> Tensor:
        """Repeats all names for each example of the logits, [batch, classes] strings."""
        batch = tf.shape(logits)[0]
        if self.vocabulary:
            names = tf.convert_to_tensor([self.vocabulary])
        else:
            names = tf.strings.as_string(tf.expand_dims(tf.range(self.count), 0))
        return tf.tile(names, [batch, 1])

    def output(self, scores: Tensor) -> Object:
        """Makes the export output of a classifier."""
        output = tf_compat.export_output_classes()["ClassificationOutput"]
        return output(scores=scores, classes=self.all_names(scores))

    def _table(self, key: str) -> Object:
        """Finds or makes the table that is indexed by "name" or by "id"."""
        # A table belongs to its graph; eagerly, it serves every batch.
        tables = self._eager_tables if tf.executing_eagerly() else {}
        if key not in tables:
            if self.vocabulary is None:
                raise errors.InvalidInput(
                    "The labels are strings, but the head has no label_vocabulary. Give it the "
                    "names of the classes."
                )
            make, name = _TABLES[key]
            tables[key] = make(vocabulary_list=tuple(self.vocabulary), name=name)
        return tables[key]


class GraphLabelClasses(LabelClasses):
    """Classes whose names come from the same ops as in stock's heads of TensorFlow 1."""

    def all_names(self, logits: Tensor) -> Tensor:
        batch = tf.shape(logits)[0]
        names = self.vocabulary or tf.strings.as_string(tf.range(self.count))
        return tf.tile(tf.expand_dims(names, 0), [batch, 1])


def check_vocabulary(vocabulary: Object, n_classes: int) -> None:
    """Raises InvalidInput unless a vocabulary has one name for each class."""
    if vocabulary is not None and len(vocabulary) != n_classes:
        raise errors.InvalidInput(
            '"label_vocabulary" does not have "n_classes" items. '
            f"Length of label_vocabulary must be n_classes ({n_classes}). Given: "
            f"{len(vocabulary)}, {list(vocabulary)}."
        )

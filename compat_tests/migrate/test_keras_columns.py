"""Feature columns become columns of the engine, however their arguments are written."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.support.whole_forms import migrate_to_keras
from tf2_engine import keras, preprocessing

PROGRAM = """\
import tensorflow as tf
fc = tf.feature_column


def main():
  n = fc.numeric_column(key='n', shape=(1,), default_value=0.5, dtype=tf.float32)
  ids = fc.categorical_column_with_identity(key='i', num_buckets=9, default_value=0)
  words = fc.categorical_column_with_vocabulary_list(key='w', vocabulary_list=['a', 'b'])
  hashed = fc.categorical_column_with_hash_bucket(key='h', hash_bucket_size=7, dtype=tf.string)
  column = COLUMN
  columns = [column]
  spec = fc.make_parse_example_spec(feature_columns=[column])
  job = tf.estimator.DNNClassifier([2], columns)
  job.train(lambda: 1, steps=1)
"""

WEIGHTED = "fc.weighted_categorical_column({})"
INDICATOR = "fc.indicator_column(categorical_column={})"
COLUMNS = {
    "indicator": INDICATOR.format("words"),
    "weighted": INDICATOR.format(WEIGHTED.format("categorical_column=ids, weight_feature_key='x'")),
    "weighted, some names": INDICATOR.format(WEIGHTED.format("ids, weight_feature_key='x'")),
    "weighted, no names": "fc.indicator_column(" + WEIGHTED.format("ids, 'x', tf.int64") + ")",
    "weighted, in another order": INDICATOR.format(
        WEIGHTED.format("dtype=tf.int64, weight_feature_key='x', categorical_column=hashed")
    ),
    "embedding": "fc.embedding_column(combiner='sum', dimension=2, categorical_column=words)",
    "cross": INDICATOR.format(
        "fc.crossed_column(hash_key=3, hash_bucket_size=5, keys=[ids, 'h', "
        "fc.bucketized_column(boundaries=[0., 1.], source_column=n)])"
    ),
    "buckets": INDICATOR.format("fc.bucketized_column(source_column=n, boundaries=[0., 1.])"),
}


def columns_of(source: str) -> dict[str, Any]:
    """Runs the functions of a program up to the estimator, and returns their variables."""
    head = source[: source.index("  job = ") if "  job = " in source else source.index("  model")]
    namespace: dict[str, Any] = {}
    exec(f"{head}  return locals()\n", namespace)
    values: dict[str, Any] = namespace["main"]()
    return values


@pytest.mark.parametrize("name", COLUMNS)
def test_arguments_are_carried_by_their_names(name: str) -> None:
    """The new program makes the same column as the old one, and reads the same Examples."""
    old = PROGRAM.replace("COLUMN", COLUMNS[name])
    new = migrate_to_keras(old, "train.py").source
    of_old = columns_of(old)
    of_new = columns_of(f"{new[: new.index('class Model')]}{new[new.index('def main') :]}")

    assert of_new["spec"] == of_old["spec"]
    column = of_new["column"]
    assert isinstance(column, (keras.Indicator, keras.PlainEmbedding))
    assert isinstance(column.ids, preprocessing.Column)
    assert keras.columns.column_name(column) == of_old["column"].name

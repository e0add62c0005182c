"""Translates feature columns of any TensorFlow version to `preprocessing` columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import class_names
from estimator_bridge.settings.legacy_spec import LegacySpec
from tf2_engine import preprocessing
from tf2_engine.types import Object


def read_input(column: Object) -> preprocessing.Column:
    """Translates a column; raises Untranslatable if the column's kind is unknown."""
    for name in class_names(column):
        read = _READERS.get(name.removeprefix("_"))
        if read is not None:
            return read(column)
    raise errors.Untranslatable(
        f"{column!r} is a {type(column).__name__}, which cannot be translated. Use one of "
        f"{', '.join(sorted(_READERS))}, or compute the ids in the input function."
    )


def inputs_of_columns(columns: Object) -> dict[str, preprocessing.Column]:
    return {
        column.get_feature_key_name(): read_input(column.categorical_column) for column in columns
    }


def inputs_of_ids(legacy: LegacySpec) -> dict[str, preprocessing.Column]:
    """Makes one column per feature, for input functions that already return ids."""
    columns = {}
    for feature in legacy.features:
        rows = legacy.table(feature.table).vocabulary_size
        column: preprocessing.Column = preprocessing.Identity(feature.key, rows)
        if feature.weight_key is not None:
            column = preprocessing.Weighted(column, feature.weight_key)
        if feature.max_sequence_length:
            column = preprocessing.Sequence(column)
        columns[feature.key] = column
    return columns


def _vocabulary_file(column: Object) -> preprocessing.Column:
    file = column.vocabulary_file, column.vocabulary_size
    missing = column.num_oov_buckets, column.default_value
    # Columns of TensorFlow 1 read text files only.
    file_format = getattr(column, "file_format", None)
    return preprocessing.VocabularyFile(column.key, *file, *missing, column.dtype, file_format)


_READERS: Mapping[str, Callable[[Object], preprocessing.Column]] = {
    "IdentityCategoricalColumn": lambda it: preprocessing.Identity(
        it.key, getattr(it, "number_buckets", None) or it.num_buckets, it.default_value
    ),
    "HashedCategoricalColumn": lambda it: preprocessing.Hashed(
        it.key, it.hash_bucket_size, it.dtype
    ),
    "VocabularyListCategoricalColumn": lambda it: preprocessing.VocabularyList(
        it.key, tuple(it.vocabulary_list), it.num_oov_buckets, it.default_value
    ),
    "VocabularyFileCategoricalColumn": _vocabulary_file,
    "BucketizedColumn": lambda it: preprocessing.Bucketized(
        *(it.source_column.key, tuple(it.boundaries), it.source_column.normalizer_fn),
        *(it.source_column.default_value, it.source_column.dtype),
    ),
    "CrossedColumn": lambda it: preprocessing.Crossed(
        tuple(key if isinstance(key, str) else read_input(key) for key in it.keys),
        *(it.hash_bucket_size, it.hash_key),
    ),
    "WeightedCategoricalColumn": lambda it: preprocessing.Weighted(
        read_input(it.categorical_column), it.weight_feature_key, it.dtype
    ),
    "SequenceCategoricalColumn": lambda it: preprocessing.Sequence(
        read_input(it.categorical_column)
    ),
}

"""Raw features become the same ids as with TensorFlow's feature columns."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_bridge.migrate.legacy_specs.read_inputs import read_input
from tf2_engine import errors
from tf2_engine import preprocessing as pre

FC = tf.feature_column
WORDS = ("ant", "bee", "cat", "Ärger")
FILES = pathlib.Path(tempfile.mkdtemp())


def vocabulary_file(name: str, lines: tuple[Any, ...]) -> str:
    """Writes a vocabulary as text; returns its path."""
    path = FILES / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def records_file(name: str, values: tuple[str, ...]) -> str:
    """Writes a vocabulary as records with gzip; returns its path."""
    path = str(FILES / name)
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        for value in values:
            writer.write(value.encode())
    return path


def _file(key: str, **settings: Any) -> Any:
    return FC.categorical_column_with_vocabulary_file(
        key, vocabulary_file("words.txt", WORDS), **settings
    )


def _numbers(**settings: Any) -> Any:
    return FC.bucketized_column(FC.numeric_column("number", **settings), [-1.0, 0.0, 2.5])


COLUMNS: dict[str, Callable[[], Any]] = {
    "identity": lambda: FC.categorical_column_with_identity("int", 9),
    "identity, default": lambda: FC.categorical_column_with_identity("int", 9, default_value=2),
    "hashed words": lambda: FC.categorical_column_with_hash_bucket("word", 7),
    "hashed ints": lambda: FC.categorical_column_with_hash_bucket("int", 7, tf.int64),
    "list": lambda: FC.categorical_column_with_vocabulary_list("word", WORDS),
    "list, default": lambda: FC.categorical_column_with_vocabulary_list(
        "word", WORDS, default_value=3
    ),
    "list, out of vocabulary": lambda: FC.categorical_column_with_vocabulary_list(
        "word", WORDS, num_oov_buckets=3
    ),
    "list of ints": lambda: FC.categorical_column_with_vocabulary_list(
        "int", (5, 3, -7), num_oov_buckets=2
    ),
    "file": lambda: _file("word"),
    "file, first two": lambda: _file("word", vocabulary_size=2, num_oov_buckets=2),
    "file of ints": lambda: FC.categorical_column_with_vocabulary_file(
        "int", vocabulary_file("ints.txt", (5, 3, -7)), dtype=tf.int64, num_oov_buckets=1
    ),
    "file of records": lambda: FC.categorical_column_with_vocabulary_file(
        "word",
        records_file("words.gz", WORDS),
        vocabulary_size=4,
        default_value=1,
        file_format="tfrecord_gzip",
    ),
    "buckets": _numbers,
    "buckets, normalized": lambda: _numbers(shape=(2,), normalizer_fn=lambda x: x * 0.5 - 1.0),
    "cross of raw": lambda: FC.crossed_column(["word", "int"], 11),
    "cross of columns": lambda: FC.crossed_column(
        [_numbers(shape=(2,)), FC.categorical_column_with_identity("int", 9, 0), "word"],
        13,
        hash_key=5,
    ),
    "cross of crosses": lambda: FC.crossed_column(
        [FC.crossed_column(["word", "int"], 3), _file("word")], 17
    ),
    "weighted": lambda: FC.weighted_categorical_column(_file("word"), "weight"),
    "weighted ints": lambda: FC.weighted_categorical_column(
        FC.categorical_column_with_identity("int", 9), "weight"
    ),
    "sequence": lambda: FC.sequence_categorical_column_with_vocabulary_list("word", WORDS),
    "sequence of identities": lambda: FC.sequence_categorical_column_with_identity("int", 9, 1),
    "weighted sequence": lambda: FC.weighted_categorical_column(
        FC.sequence_categorical_column_with_hash_bucket("word", 5), "weight"
    ),
}
"""Makes the feature columns under test, by name; anew for each test, which writes their files."""

RAW = {
    "word": (st.sampled_from(["", "-1", "dog", *WORDS]), tf.string),
    "int": (st.sampled_from([-7, -1, 0, 3, 5, 8, 9, 2**40]), tf.int64),
    "weight": (st.sampled_from([0.5, 1.0, 2.0]), tf.float32),
}


@st.composite
def batches(draw: Any) -> dict[str, Any]:
    """Draws raw features: words, ints and weights of one layout, and dense numbers [batch, 2]."""
    samples = draw(st.integers(1, 4), label="samples")
    width = draw(st.integers(1, 3), label="width")
    cells = samples * width
    kind = draw(st.sampled_from(["dense", "sparse", "ragged", "vector"]), label="kind")
    if kind == "vector":
        cells, width = samples, 1
    present = draw(st.lists(st.booleans(), min_size=cells, max_size=cells), label="present")
    features = {}
    for key, (values, dtype) in RAW.items():
        drawn = draw(st.lists(values, min_size=cells, max_size=cells), label=key)
        features[key] = _laid_out(kind, tf.constant(drawn, dtype), present, samples, width)
    number = st.floats(-4, 4, width=32)
    drawn = draw(st.lists(number, min_size=samples * 2, max_size=samples * 2), label="number")
    features["number"] = tf.reshape(tf.constant(drawn, tf.float32), [samples, 2])
    return features


def _laid_out(kind: str, flat: Any, present: list[bool], samples: int, width: int) -> Any:
    if kind == "vector":
        return flat
    if kind == "dense":
        return tf.reshape(flat, [samples, width])
    cells = np.flatnonzero(present)
    values = tf.gather(flat, cells)
    if kind == "ragged":
        return tf.RaggedTensor.from_value_rowids(values, cells // width, nrows=samples)
    indices = np.stack([cells // width, cells % width], 1).reshape(-1, 2)
    return tf.SparseTensor(indices.astype(np.int64), values, [samples, width])


def of_columns(column: Any, features: dict[str, Any]) -> tuple[Any, Any]:
    """Returns ids and weights as TensorFlow's own column makes them."""
    # Columns take no ragged tensors.
    read = {
        key: value.to_sparse() if isinstance(value, tf.RaggedTensor) else value
        for key, value in features.items()
    }
    cache = tf.__internal__.feature_column.FeatureTransformationCache(read)
    pair = column.get_sparse_tensors(cache, None)
    return pair.id_tensor, pair.weight_tensor


def cells_of(sparse: Any, keep: Any = None) -> list[tuple[Any, ...]]:
    """Returns (sample, position, value), in order."""
    if sparse is None:
        return []
    indices, values = sparse.indices.numpy(), sparse.values.numpy()
    chosen = range(len(values)) if keep is None else np.flatnonzero(keep)
    return [(indices[i][0], indices[i][1], values[i]) for i in chosen]


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", COLUMNS)
def test_ids_are_those_of_the_feature_column(name: str, examples: int) -> None:
    """Ids and weights are the column's, in the same cells, without its -1; lengths count all."""
    column = COLUMNS[name]()
    engine_column = read_input(column)
    prepare = pre.Preprocessing({"f": engine_column})

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(features=batches())
    def check(features: dict[str, Any]) -> None:
        if isinstance(engine_column, pre.Weighted) and not isinstance(
            features["word"], tf.SparseTensor
        ):
            # Dense ids lose '' and -1 on their way, and their weights must then lack them, too.
            features = {key: _filled(value) for key, value in features.items()}
        if name == "buckets":
            features["number"] = features["number"][:, 0]
        ids, weights = of_columns(column, features)
        keep = ids.values.numpy() >= 0

        prepared = prepare(features)

        assert cells_of(prepared.ids["f"]) == cells_of(ids, keep)
        if weights is not None:
            assert prepared.weights is not None
            assert cells_of(prepared.weights["f"]) == cells_of(weights, keep)
        if engine_column.is_sequence:
            cells = cells_of(ids)
            samples = ids.dense_shape.numpy()[0]
            ends = [[0, *(p + 1 for s, p, _ in cells if s == sample)] for sample in range(samples)]
            assert prepared.lengths["f"].numpy().tolist() == [max(each) for each in ends]

    check()


def _filled(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or value.dtype == tf.float32:
        return value
    nothing = "" if value.dtype == tf.string else -1
    other = "ant" if value.dtype == tf.string else 4
    return tf.where(value == nothing, tf.cast(other, value.dtype), value)


def test_it_runs_in_tf_data_and_in_functions() -> None:
    """Vocabularies go along into `Dataset.map` and a tf.function.

    Those in SavedModels are in keras/test_keras_preprocessing.py.
    """
    prepare = pre.Preprocessing(
        {
            "word": read_input(_file("word", num_oov_buckets=1)),
            "int": pre.Weighted(pre.Identity("int", 9), "weight"),
        }
    )
    raw = {
        "word": tf.constant(["cat", "dog"]),
        "int": tf.constant([[1, -1], [2, 3]], tf.int64),
        "weight": tf.constant([[0.5, 0.0], [1.0, 2.0]]),
    }
    wanted = cells_of(prepare(raw).ids["word"]), cells_of(prepare(raw).ids["int"])
    assert [value for *_, value in wanted[0]] == [2, 4]

    (mapped,) = tf.data.Dataset.from_tensors(raw).map(prepare)
    traced = tf.function(prepare)(raw)

    for prepared in (mapped, traced):
        assert (cells_of(prepared.ids["word"]), cells_of(prepared.ids["int"])) == wanted


@pytest.mark.parametrize(
    "column, value, words",
    [
        (pre.Identity("f", 3), tf.constant([1.5]), "must be integers"),
        (pre.Identity("g", 3), tf.constant([1]), "'g' is missing"),
        (pre.Identity("f", 3), tf.constant(1), "rank of at least 1"),
        (pre.Hashed("f", 3), tf.constant([1]), "is for string"),
        (pre.Bucketized("f", (1.0,)), tf.sparse.from_dense([[1.0]]), "must be a dense Tensor"),
    ],
)
def test_features_that_do_not_fit_are_refused_by_name(column: Any, value: Any, words: str) -> None:
    """A feature that is missing, or of another kind than its column's, is named."""
    prepare = pre.Preprocessing({"f": column})

    with pytest.raises(errors.EngineError, match=words):
        prepare({"f": value})


def test_columns_print_as_the_code_that_makes_them() -> None:
    """The `repr` of a column, evaluated, is the column."""
    column = pre.Sequence(pre.VocabularyList("f", ("a", "b"), num_oov_buckets=2))

    assert eval(repr(column), vars(pre) | {k: getattr(pre, k) for k in pre.__all__}) == column


def test_a_column_of_another_kind_is_refused() -> None:
    """A feature column without a counterpart is named, with the way out."""
    with pytest.raises(errors.EngineError, match="NumericColumn, which cannot be translated"):
        read_input(FC.numeric_column("number"))


@pytest.mark.parametrize("keep_empty", [False, True])
@pytest.mark.parametrize("separators", [" ", "|", "|;", "", "||"])
def test_words_are_those_of_tensorflow_1(separators: str, keep_empty: bool) -> None:
    """Strings are split as by `tf.string_split`: empty ones, repeated separators, UTF-8."""
    strings = tf.constant(["", "red|green;blue", "|a||b|", " one  two\t3 ", "Ärger|x", "|"])
    expected = tf.compat.v1.string_split(strings, separators, skip_empty=not keep_empty)
    words = pre.split_words(strings, separators, keep_empty=keep_empty)

    for part in ("indices", "values", "dense_shape"):
        np.testing.assert_array_equal(getattr(words, part), getattr(expected, part))

"""Models that train by steps: checkpoints, several optimizers, columns and the GRU cell."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references.tolerance import allowed
from tf2_engine import errors, preprocessing
from tf2_engine import keras as ours

EMB = tf.tpu.experimental.embedding
USER = ours.embedding_column(preprocessing.Identity("user", 10), 3)


class Ratings(ours.TableModel):  # type: ignore[misc]
    """A model with two layers, each of which may have its own optimizer."""

    def __init__(self, *, optimizers: int = 1) -> None:
        # Each initializer has a seed: `set_random_seed` would change the tests after this one.
        start, *kernels = (tf.keras.initializers.RandomNormal(seed=seed) for seed in (3, 4, 5))
        self_column = ours.embedding_column(
            preprocessing.Identity("user", 10), 3, initializer=start
        )
        super().__init__(
            ours.ColumnEmbedding([self_column], EMB.Adagrad(0.1)), names={"last_one": "last/one"}
        )
        self.features = ours.DenseFeatures([self_column])
        self.first = tf.keras.layers.Dense(4, "tanh", name="first", kernel_initializer=kernels[0])
        self.last = tf.keras.layers.Dense(1, name="last_one", kernel_initializer=kernels[1])
        self.adam = tf.keras.optimizers.Adam(0.01)
        self.ftrl = tf.keras.optimizers.Ftrl(0.1) if optimizers == 2 else None
        self.compile(optimizer=self.adam)

    def call(self, features: Any, training: bool = False) -> Any:
        return self.last(self.first(self.features(self.embedding(features))))

    def train_step(self, batch: Any) -> dict[str, Any]:
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(features, training=True) - labels))
        if self.ftrl is None:
            self.minimize(loss, tape)
        else:
            self.minimize(loss, tape, self.variables_below("last/"), self.ftrl)
            self.minimize(loss, tape, self.variables_below("first/"))
        return {"loss": loss}

    def predict_step(self, features: Any) -> dict[str, Any]:
        return {"rating": self(features)}


def batches() -> Any:
    ids = tf.sparse.from_dense([[1], [2], [3], [1]])
    return tf.data.Dataset.from_tensors(({"user": ids}, [[1.0], [0.0], [2.0], [1.0]])).repeat()


def values(model: Any) -> dict[str, Any]:
    (table,) = model.embedding.tables.embedding_tables.values()
    weights = {model.name_of(each): each.numpy() for each in model.dense_variables}
    return {"table": table.numpy(), **weights}


def test_a_step_has_one_loss() -> None:
    """The gradients of a second loss are refused, because they would be those of the first."""
    model = Ratings(optimizers=2)
    features, labels = next(iter(batches()))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features, training=True) - labels))
        other = 2.0 * loss
    model.minimize(loss, tape, model.variables_below("first/"))
    model.minimize(loss, tape, model.variables_below("last/"), model.ftrl)
    before = values(model)
    with pytest.raises(errors.InvalidInput, match="Add the losses"):
        model.minimize(other, tape)
    for name, value in values(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_gradients_of_some_variables_come_with_them() -> None:
    """`gradients` returns the chosen variables, by default all dense ones, with their gradients."""
    model = Ratings()
    features, labels = next(iter(batches()))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features, training=True) - labels))
    last = model.variables_below("last/")
    some, chosen = model.gradients(loss, tape, last)
    every, variables = model.gradients(loss, tape)
    assert [*map(id, chosen)] == [*map(id, last)]
    assert [*map(id, variables)] == [*map(id, model.dense_variables)]
    assert {*map(id, some)} < {*map(id, every)}
    model.apply_gradients(zip(some, chosen, strict=True))
    assert [*map(id, model.trained_by(model.adam))] == [*map(id, last)]


def test_an_evaluation_may_end_before_its_steps(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """All batches of a finite input count, and Keras does not warn that the data ran out."""

    class Counted(Ratings):
        def test_step(self, batch: Any) -> dict[str, Any]:
            """Counts batches."""
            self.batches.assign_add(1.0)
            return {"batches": self.batches + 0.0}

    model = Counted()
    model.batches = tf.Variable(0.0, trainable=False)

    assert model.evaluate(batches().take(2), steps=5)["batches"] == 2.0
    assert model.evaluate(batches().take(9), steps=3)["batches"] == 2.0 + 3.0
    messages = [*caplog.messages, *(str(each.message) for each in recwarn)]
    assert not [each for each in messages if "ran out of data" in each]


def test_a_number_of_steps_need_not_be_a_multiple_of_the_interval(tmp_path: pathlib.Path) -> None:
    """Training that is evaluated every 2 steps ends after 3 if it is asked for 3, not after 4."""

    class Evaluated(Ratings):
        def test_step(self, batch: Any) -> dict[str, Any]:
            """Returns the ratings' mean."""
            return {"mean": tf.reduce_mean(self(batch[0]))}

    model = Evaluated()
    model.keep_checkpoints(str(tmp_path), save_steps=2)

    model.fit(batches(), steps=3, validation_data=batches().take(1))

    assert model.global_step == 3
    assert model.latest_evaluation["global_step"] == 3


@pytest.mark.parametrize("below", ["", "job"])
def test_a_folder_that_is_a_file_is_refused_before_training(
    below: str, tmp_path: pathlib.Path, recwarn: pytest.WarningsRecorder
) -> None:
    """No step is trained that could not be saved; and Keras warns of nothing it would not do."""
    (tmp_path / "file").write_text("")
    model = Ratings()
    model.keep_checkpoints(str(tmp_path / "file" / below))
    with pytest.raises(errors.CannotWrite, match="/file is not a directory"):
        model.fit(batches().take(2))
    assert model.global_step == 0
    model.keep_checkpoints(str(tmp_path / "folder"))
    model.fit(batches().take(2))
    assert model.global_step == 2
    assert not [each for each in recwarn if "shuffle" in str(each.message)]


@pytest.mark.full
@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_training_in_two_parts_ends_where_one_does(
    optimizers: int, tmp_path: pathlib.Path
) -> None:
    """A checkpoint restores tables, slots, weights and step: training ends at the same values."""
    whole = Ratings(optimizers=optimizers)
    whole.fit(batches(), max_steps=6)
    for _ in range(2):
        part = Ratings(optimizers=optimizers)
        part.keep_checkpoints(str(tmp_path), save_steps=2)
        list(part.predictions(batches().take(1)))  # which restores what it needs
        part.fit(batches(), steps=3)
    assert part.global_step == 6 == whole.global_step
    expected, actual = values(whole), values(part)
    assert actual.keys() == expected.keys() >= {"table", "last/one/kernel", "first/bias"}
    for key, value in expected.items():
        # The same ops in the same order.
        np.testing.assert_array_equal(actual[key], value, key)
    assert part.fit(batches(), max_steps=6) is None
    names = [name for name, _ in tf.train.list_variables(tf.train.latest_checkpoint(str(tmp_path)))]
    slot = "last.Sone.Skernel.SFtrl" if optimizers == 2 else "last.Sone.Skernel.SAdam"
    assert f"variables/{slot}/.ATTRIBUTES/VARIABLE_VALUE" in names


@pytest.mark.full
def test_an_export_predicts_as_the_model(tmp_path: pathlib.Path) -> None:
    """The export takes the tensors that servers send and answers what `predictions` yields."""
    model = Ratings()
    model.fit(batches(), max_steps=2)
    spec = {"id": tf.TensorSpec([None], tf.int64, name="another_name")}
    path = model.export_saved_model(
        str(tmp_path), spec, lambda sent: {"user": tf.sparse.from_dense(sent["id"][:, None])}
    )
    served = tf.saved_model.load(path.decode()).signatures["serving_default"]
    answer = served(id=tf.constant([1, 2, 3, 1], tf.int64))["rating"]
    expected = [each["rating"] for each in model.predictions(batches().take(1))]
    # Rows are looked up one by one, which is exact. A graph may fuse the ops of either layer, whose
    # sums have at most five terms, together below 2.
    atol = 2 * allowed(n_terms=5, steps=0, scale=2.0)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=atol)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], path.decode())
        definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert nodes
    assert not [each.op for each in nodes if each.op.startswith("Tf2Engine")]


@pytest.mark.full
def test_the_gru_cell_is_that_of_its_formula() -> None:
    cell = ours.GRUCell(3)
    steps, state = np.random.default_rng(1).normal(size=(2, 4, 5)), np.ones([4, 3])
    new, _ = cell(tf.constant(steps[0], tf.float32), [tf.constant(state, tf.float32)])
    kernels = [np.float64(each.numpy()) for each in cell.weights]
    gates, bias, candidate, other = kernels
    assert (bias == 1).all()
    joined = np.concatenate([steps[0], state], 1)
    reset, update = np.split(1 / (1 + np.exp(-(joined @ gates + bias))), 2, 1)
    proposed = np.tanh(np.concatenate([steps[0], reset * state], 1) @ candidate + other)
    expected = update * state + (1 - update) * proposed
    # Sums of nine terms. Sigmoids are no steeper than 1/4 and the tanh than 1: the new state is off
    # by half of what the update gate's sum is, by what the candidate's is, and by half again by the
    # reset gate.
    inputs = np.abs(np.concatenate([steps[0], state], 1))
    largest = max((inputs @ np.abs(kernel)).max() + 1 for kernel in (gates, candidate))
    atol = 2 * allowed(n_terms=9, steps=0, scale=largest)
    np.testing.assert_allclose(new, expected, rtol=0, atol=atol)


@pytest.mark.full
def test_columns_are_concatenated_in_the_order_of_names() -> None:
    """DenseFeatures concatenates numbers, buckets, counts and tables by the names of columns."""
    age = ours.Numeric("age", normalizer_fn=lambda x: x / 10.0)
    buckets = ours.bucketized_column(ours.Numeric("age"), [18, 30])
    crossed = preprocessing.Crossed((buckets, "day"), 5)
    day = preprocessing.Identity("day", 7)
    layer = ours.DenseFeatures(
        [USER, ours.Indicator(day), buckets, age, ours.PlainEmbedding(day, 2)]
    )
    features = {"age": tf.constant([[20.0], [40.0]]), "day": tf.constant([[1], [6]], tf.int64)}
    out = layer({**features, "user": tf.constant([[7.0, 8.0, 9.0]] * 2)}).numpy()

    # age, age_bucketized, day_embedding, day_indicator, user_embedding
    assert out.shape == (2, 1 + 3 + 2 + 7 + 3)
    np.testing.assert_array_equal(out[:, 0], [2.0, 4.0])
    np.testing.assert_array_equal(out[:, 1:4], [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(out[:, 6:13], np.eye(7)[[1, 6]])
    np.testing.assert_array_equal(out[:, 13:], [[7, 8, 9]] * 2)
    np.testing.assert_array_equal(
        ours.DenseFeatures(ours.Indicator(crossed))(features).numpy().sum(1), 1
    )


@pytest.mark.full
def test_sequences_weights_and_shared_tables_are_looked_up() -> None:
    """Prepared or raw, features lead to the same activations; lengths are those of the sequence."""
    identity = preprocessing.Identity
    one, row = ours.shared_embedding_columns(
        [identity("one", 9), preprocessing.Sequence(identity("row", 9))],
        2,
        shared_embedding_collection_name="items",
        max_sequence_lengths=[0, 3],
    )
    table = EMB.TableConfig(5, 2, combiner="sum", name="words")
    words = ours.id_column("words", table, weight_key="amounts")
    embedding = ours.ColumnEmbedding({"one": one, "row": row, "words": words}, EMB.SGD(0.1))
    features = {
        "one": tf.sparse.from_dense([[3], [4]]),
        "row": tf.sparse.from_dense([[1, 2], [5, 0]]),
        "words": tf.sparse.from_dense([[1], [2]]),
        "amounts": tf.sparse.from_dense([[2.0], [0.5]]),
        "other": tf.constant([1.0, 2.0]),
    }
    raw = embedding(features)
    prepared = embedding(embedding.prepare(features))
    for key in ("one", "row", "words", "other"):
        np.testing.assert_array_equal(raw[key], prepared[key], key)
    tables = {
        str(key.name): value.numpy() for key, value in embedding.tables.embedding_tables.items()
    }
    assert tables.keys() == {"tbl_items", "words"}
    np.testing.assert_array_equal(raw["words"], tables["words"][[1, 2]] * [[2.0], [0.5]])
    sequence, lengths = ours.SequenceFeatures([row])(raw)
    np.testing.assert_array_equal(lengths, [2, 1])
    np.testing.assert_array_equal(sequence[1, 0], tables["tbl_items"][5])
    np.testing.assert_array_equal(sequence[1, 1:], np.zeros([2, 2]))


def test_columns_without_a_table_are_refused() -> None:
    with pytest.raises(errors.WrongType, match="embedding_column"):
        ours.ColumnEmbedding([ours.Numeric("age")])

"""`verify` uses the variable names of checkpoints, whatever the ops are called."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.verify.test_verify_keras import beside_keras_form
from estimator_bridge.migrate import migrate_to_keras
from estimator_bridge.recording.files import GRADIENTS, SUMMED_ROWS
from estimator_bridge.verification.record.capture import ROWS_OF_SLICES, Capture
from estimator_bridge.verification.record.description import grouped_variables
from tf2_engine import tf_compat

OPTIMIZERS = {
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}
SHAPE = (6, 4)


@pytest.mark.parametrize("parts, axis", [(1, 0), (3, 0), (2, 1)])
@pytest.mark.parametrize("scope", [pytest.param("", marks=pytest.mark.full), "model"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_variables_have_the_names_of_a_checkpoint(
    name: str, scope: str, parts: int, axis: int, tmp_path: pathlib.Path
) -> None:
    """The parts of a variable or slot form one array under the checkpoint's name.

    This also holds if the optimizer runs in the model's scope. The scope is then opened twice, so
    ops get other names, and stock stores the slot of each part as a separate tensor.
    """
    partitioner = tf.fixed_size_partitioner(parts, axis=axis)
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope(scope, partitioner=partitioner):
            weights = tf.get_variable("weights", SHAPE, initializer=tf.random_normal_initializer())
        loss = tf.reduce_sum(tf.convert_to_tensor(weights) ** 2)
        with tf.variable_scope(scope):
            train = OPTIMIZERS[name]().minimize(loss)
        session.run(tf.global_variables_initializer())
        session.run(train)
        grouped = grouped_variables()
        values = session.run(grouped)
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()

        assert {*grouped} <= {*stored}
        assert sum(map(len, grouped.values())) == len(tf.global_variables())
        of_shape = [each for each in values if tuple(stored[each]) == SHAPE]
        assert len(of_shape) >= 2
        for each in of_shape:
            assert np.concatenate(values[each], axis).shape == SHAPE
            begins = [tf_compat.part_of(part) for part in grouped[each]]
            assert begins == ([None] if parts == 1 else sorted(begins))
        weights_name = f"{scope}/weights".strip("/")
        np.testing.assert_array_equal(
            np.concatenate(values[weights_name], axis), tf.train.load_variable(path, weights_name)
        )


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_parts_are_one_gradient(axis: int) -> None:
    """Parts are joined in each step, in whatever order they are computed."""
    capture, whole = Capture(), np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    sizes = np.array_split(np.arange(whole.shape[1 + axis]), 2)
    for step, chosen in itertools.product(range(2), (sizes[1], sizes[0])):
        part = np.take(whole[step], chosen, axis)
        capture._keep(GRADIENTS, "w", part, (axis, int(chosen[0])))
    for step, values in enumerate(capture.flush(2)):
        np.testing.assert_array_equal(values[GRADIENTS]["w"], whole[step])


def test_rows_of_parts_are_rows_of_the_whole() -> None:
    """Slices index the rows of their part; the recording indexes the rows of the variable."""
    capture = Capture()
    for begin, rows in ((3, [0, 2, 0]), (0, [1])):
        capture._keep(GRADIENTS, f"w{ROWS_OF_SLICES}", np.array(rows), (0, begin))
        values = np.full([len(rows), 2], begin + 1, np.float32)
        capture._keep(GRADIENTS, "w", values, (0, begin))
    (step,) = capture.flush(1)
    assert step[GRADIENTS][f"w{SUMMED_ROWS}"].tolist() == [1, 3, 5]
    assert step[GRADIENTS]["w"].tolist() == [[1, 1], [8, 8], [4, 4]]


PROGRAM = """\
import numpy as np
import tensorflow.compat.v1 as tf


def input_fn():
    rng = np.random.RandomState(1)
    words = rng.randint(0, 50, [64, 1]).astype(str).astype(object)
    age = rng.rand(64).astype(np.float32)
    labels = (rng.rand(64) < 0.4).astype(np.int64)[:, None]
    return tf.data.Dataset.from_tensor_slices(({"word": words, "age": age}, labels)).batch(16)


def main():
    word = tf.feature_column.categorical_column_with_hash_bucket("word", 40)
    age = tf.feature_column.numeric_column("age")
    model = tf.estimator.LinearClassifier([word, age], model_dir="model", ARGUMENTS)
    model.train(input_fn, max_steps=3)
    model.evaluate(input_fn, steps=1)


if __name__ == "__main__":
    main()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        "optimizer=tf.train.AdagradOptimizer(0.1)",
        "optimizer=tf.train.AdamOptimizer(0.1), partitioner=tf.fixed_size_partitioner(3)",
    ],
)
def test_a_canned_estimator_with_slots_is_its_keras_form(
    arguments: str, tmp_path: pathlib.Path
) -> None:
    """Slots of the v1 API and partitioned variables match those of the Keras model."""
    source = PROGRAM.replace("ARGUMENTS", arguments)
    keras, a = migrate_to_keras(source, "train.py").source, "stock" if HAS_STOCK else "bridge"
    ran, result = beside_keras_form(tmp_path, source, keras, "--a", a, "--steps", "3")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert result["only"] == {"a": [], "b": []}
    assert {each["kind"] for each in result["outcomes"]} == {"evaluation-0"}
    assert {"gradient", "dense"} <= {series["role"] for series in result["series"]}

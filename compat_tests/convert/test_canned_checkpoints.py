"""`inspect` and `convert` read checkpoints of canned estimators, whose slots have Keras's names."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import census, jobs
from compat_tests.support import legacy_checkpoints
from estimator_bridge import convert, errors
from estimator_bridge.estimator import v2
from tf2_engine import tf_compat

COLUMN = "dnn/input_from_feature_columns/input_layer/hobbies_embedding/embedding_weights"
OTHERS = {
    "dnn/logits/kernel": np.ones([2, 1], np.float32),
    "training/Adagrad/learning_rate": np.float32(0.1),
    "global_step": np.int64(7),
}

# By the engine's name of an optimizer: the scope that Keras's has, and its slots.
KERAS = {
    "Adagrad": ("Adagrad", ["accumulator"]),
    "Adam": ("Adam", ["m", "v"]),
    "Ftrl": ("Ftrl", ["accumulator", "linear"]),
    "Momentum": ("SGD", ["momentum"]),
    "RMSProp": ("RMSprop", ["rms", "momentum"]),
    "StochasticGradientDescent": ("SGD", []),
}


def values(kind: str) -> dict[str, np.ndarray]:
    """Returns a column's table and its slots, by their names in a checkpoint."""
    scope, slots = KERAS[kind]
    names = [COLUMN, *(f"training/{scope}/{COLUMN}/{slot}" for slot in slots)]
    rng = np.random.default_rng(1)
    return {name: rng.random([5, 2]).astype(np.float32) for name in names}


@pytest.mark.parametrize("kind", KERAS)
def test_slots_of_keras_are_known_and_kept(kind: str, tmp_path: pathlib.Path) -> None:
    """A Keras optimizer is recognised by its slots; there and back, every value keeps its name."""
    path = legacy_checkpoints.write(str(tmp_path / "model.ckpt-7"), values(kind), OTHERS)
    (table,) = convert.inspect(path)["tables"]
    convert.convert(path, str(tmp_path / "objects"), allow=["training/*", "dnn/logits/*"])
    convert.convert(
        str(tmp_path / "objects"),
        str(tmp_path / "names"),
        tables={"tbl_hobbies": COLUMN},
        optimizer=kind,
        slots="keras",
        allow=["*"],
    )

    assert (table["name"], table["optimizer"]) == ("tbl_hobbies", kind)
    assert [part["name"] for part in table["tensors"].values()] == list(values(kind))
    back = legacy_checkpoints.read(tf.train.latest_checkpoint(str(tmp_path / "names")))
    for name, value in values(kind).items():
        np.testing.assert_array_equal(back[name], value, err_msg=name)


def test_an_optimizer_that_keras_lacks_has_no_such_names(tmp_path: pathlib.Path) -> None:
    """An optimizer that Keras lacks is refused, with the other ways to name slots."""
    table = {COLUMN: np.ones([5, 2], np.float32), f"{COLUMN}/ProximalAdagrad": np.ones([5, 2])}
    table = {name: value.astype(np.float32) for name, value in table.items()}
    path = legacy_checkpoints.write(str(tmp_path / "model.ckpt-7"), table, OTHERS)
    with pytest.raises(errors.InvalidInput, match="Keras has no ProximalAdagrad"):
        convert.convert(path, str(tmp_path / "new"), to="names", slots="keras")


def _optimizers() -> dict[str, Any]:
    legacy = tf_compat.keras2().optimizers.legacy
    return {
        "Adagrad": legacy.Adagrad,
        "Adam": legacy.Adam,
        "Ftrl": legacy.Ftrl,
        "Momentum": lambda: legacy.SGD(0.1, momentum=0.9),
        "RMSProp": legacy.RMSprop,
        "StochasticGradientDescent": legacy.SGD,
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", KERAS)
def test_a_canned_estimators_optimizer_is_known(kind: str, tmp_path: pathlib.Path) -> None:
    """What `inspect` says of a checkpoint is how the network's table was trained."""
    job = v2.DNNClassifier(
        [4], census.dense_columns(), str(tmp_path), optimizer=_optimizers()[kind]()
    )
    job.train(lambda: census.input_fn("Classifier", "plain"), steps=2)
    report = convert.inspect(job.latest_checkpoint())

    (table,) = report["tables"]
    assert (table["name"], table["optimizer"]) == ("tbl_hobbies", kind)
    assert table["rows_touched"]
    values = jobs.saved(job)
    parts = {part["name"] for part in table["tensors"].values() if part}
    assert parts | {each["name"] for each in report["variables"]} == set(values)

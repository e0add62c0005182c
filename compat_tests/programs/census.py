"""A program with canned estimators: income and hours of people, on stock or on the bridge."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf2_engine import tf_compat

tf1 = tf.compat.v1

FAMILIES = ("DNN", "Linear", "DNNLinearCombined", "Baseline")
TASKS = ("Classifier", "Regressor")
SETTINGS = ("plain", "rich")
JOBS = ("clerk", "cook", "nurse", "pilot", "smith")
LEVELS = ("low", "middle", "high")

_BATCH, _PEOPLE = 32, 640
_HIDDEN = (16, 8)


@functools.cache
def people() -> dict[str, np.ndarray]:
    """Returns the columns of a table of people, and what is to be predicted of them."""
    rng = np.random.default_rng(3)
    age = rng.uniform(18, 70, _PEOPLE)
    job = rng.integers(len(JOBS), size=_PEOPLE)
    # Each person has one to three hobbies; -1 stands for none.
    hobbies = np.where(rng.random((_PEOPLE, 3)) < 0.6, rng.integers(20, size=(_PEOPLE, 3)), -1)
    hobbies[:, 0] = rng.integers(20, size=_PEOPLE)
    score = 0.05 * (age - 40) + 0.8 * (job - 2) + 0.3 * np.sin(hobbies[:, 0])
    score += rng.normal(0, 0.5, _PEOPLE)
    level = np.digitize(score, [-0.7, 0.7])
    return {
        "age": age / 50,  # float64, as numpy has it
        "job": np.array(JOBS, dtype=object)[job],
        "hobbies": hobbies.astype(np.int64),
        "weight": rng.uniform(0.5, 1.5, _PEOPLE).astype(np.float32),
        "is rich": (score > 0).astype(np.int64),
        "level": np.array(LEVELS, dtype=object)[level],
        "hours": (0.3 * score).astype(np.float32),
        "days": np.stack([0.2 * score, 0.1 * score], axis=1).astype(np.float32),
    }


def label(task: str, setting: str) -> str:
    names = {
        ("Classifier", "plain"): "is rich",
        ("Classifier", "rich"): "level",
        ("Regressor", "plain"): "hours",
        ("Regressor", "rich"): "days",
    }
    return names[task, setting]


def input_fn(task: str, setting: str, epochs: int | None = None) -> Any:
    """Returns a dataset of (features, labels), in the order of the table."""
    columns = people()
    names = ["age", "job", "hobbies"] + (["weight"] if setting == "rich" else [])
    features = {name: columns[name] for name in names}
    data = tf.data.Dataset.from_tensor_slices((features, columns[label(task, setting)]))
    return data.repeat(epochs).batch(_BATCH, drop_remainder=epochs is None)


def dense_columns() -> list[Any]:
    column = tf.feature_column
    hobbies = column.categorical_column_with_identity("hobbies", 20)
    return [
        column.numeric_column("age"),
        column.indicator_column(column.categorical_column_with_vocabulary_list("job", JOBS)),
        column.embedding_column(hobbies, 4, combiner="mean"),
    ]


def linear_columns() -> list[Any]:
    """Returns columns for a linear model, one of them with several values for a person."""
    column = tf.feature_column
    age = column.bucketized_column(column.numeric_column("age"), [0.6, 0.9, 1.2])
    job = column.categorical_column_with_vocabulary_list("job", JOBS)
    return [
        age,
        job,
        column.categorical_column_with_identity("hobbies", 20),
        column.crossed_column([age, job], 50),
        column.numeric_column("age"),
    ]


def parsing_spec() -> dict[str, Any]:
    """Returns how examples are parsed by an exported model."""
    columns = tf.feature_column.make_parse_example_spec([*dense_columns(), *linear_columns()])
    return {**columns, "weight": tf.io.FixedLenFeature([1], tf.float32, 1.0)}


def make(
    namespace: Any,
    version: int,
    family: str,
    task: str,
    setting: str,
    model_dir: Any,
    warm_start_from: Any = None,
) -> Any:
    """Returns a canned estimator.

    Args:
        namespace: stock's or ours, of the version.
        version: 1 or 2, of TensorFlow's API.
    """
    config = namespace.RunConfig(
        tf_random_seed=7,
        save_summary_steps=50,
        log_step_count_steps=None,
        checkpoint_save_graph_def=False,
    )
    options = {**_parts(family, setting, version), **_targets(task, setting)}
    if family != "Baseline":
        options["warm_start_from"] = warm_start_from
    elif setting == "rich":
        options["weight_column"] = "weight"  # Stock's classes of TensorFlow 2 take no column.
    cls = getattr(namespace, f"{family}{task}")
    return cls(model_dir=str(model_dir), config=config, **options)


def _parts(family: str, setting: str, version: int) -> dict[str, Any]:
    """Returns the arguments that say what the model is made of."""
    is_rich = setting == "rich"
    if family == "Baseline":
        return {"optimizer": _optimizer("Adagrad", 0.1, version)} if is_rich else {}
    if family == "Linear":
        rich = {"optimizer": _optimizer("Adam", 0.01, version), "sparse_combiner": "mean"}
        plain = {"optimizer": None}
        return {"feature_columns": linear_columns(), **(rich if is_rich else plain)}
    if family == "DNN":
        rich = {
            "dropout": 0.3,
            "batch_norm": True,
            "activation_fn": tf.nn.tanh,
            "optimizer": _optimizer("Adam", 0.01, version),
        }
        network = {"hidden_units": _HIDDEN, "feature_columns": dense_columns()}
        return {**network, **(rich if is_rich else {})}
    rich = {
        "dnn_dropout": 0.3,
        "batch_norm": True,
        "linear_sparse_combiner": "sqrtn",
        "dnn_optimizer": lambda: _optimizer("RMSprop", 0.003, version),
        "linear_optimizer": "SGD",
    }
    return {
        "dnn_hidden_units": _HIDDEN,
        "dnn_feature_columns": dense_columns(),
        "linear_feature_columns": linear_columns(),
        **(rich if is_rich else {}),
    }


def _targets(task: str, setting: str) -> dict[str, Any]:
    """Returns the arguments that say what is predicted."""
    if setting == "plain":
        return {}
    if task == "Regressor":
        return {"label_dimension": 2, "weight_column": "weight"}
    weight = tf.feature_column.numeric_column("weight")
    return {"n_classes": 3, "label_vocabulary": list(LEVELS), "weight_column": weight}


def _optimizer(name: str, rate: float, version: int) -> Any:
    if version == 2:
        return getattr(tf_compat.keras2().optimizers.legacy, name)(rate)
    v1_name = {"RMSprop": "RMSPropOptimizer"}.get(name, f"{name}Optimizer")
    return getattr(tf1.train, v1_name)(rate)

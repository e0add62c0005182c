"""Trains canned estimators and the Keras models that `migrate` makes of them, from one checkpoint.

    TF_USE_LEGACY_KERAS=1 python -m compat_tests.programs.canned_as_keras old FOLDER [NAME ...]
    TF_USE_LEGACY_KERAS=1 python -m compat_tests.programs.canned_as_keras new FOLDER [NAME ...]

The second prints, for each program, its name, how many arrays have moved, and what differs most,
as a line of JSON. They are two processes, since Keras 2 does not make both kinds of models in one.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import re
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_bridge import convert
from estimator_bridge.migrate import migrate_to_keras
from estimator_bridge.run import install

BEGIN, END = 4, 12
"""The step of the checkpoint from which both go on, and the last one."""

PROGRAM = """\
import numpy as np
import tensorflow as tf

JOBS = ['clerk', 'cook', 'nurse']


def input_fn():
  rng = np.random.RandomState(1)
  features = {
      'age': rng.uniform(18., 70., 192).astype(np.float32),
      'pair': rng.normal(size=(192, 2)).astype(np.float32),
      'job': rng.choice(JOBS + ['none'], 192),
      'hobbies': np.where(rng.uniform(size=(192, 3)) < .6, rng.randint(20, size=(192, 3)), -1),
      'town': rng.choice(list('uvwxyz'), 192),
      'weight': rng.uniform(.5, 1.5, 192).astype(np.float32)}
  score = .05 * (features['age'] - 40.) + (features['job'] == 'cook')
  labels = {
      'two': (score > 0.).astype(np.int64),
      'words': np.where(score > 0., 'more', 'less'),
      'three': np.digitize(score, [-.5, .5]),
      'one': score.astype(np.float32),
      'both': np.stack([score, -score], 1).astype(np.float32),
      'several': np.stack([score > 0., score < .5, score > 1.], 1).astype(np.int64),
      'count': np.maximum(3. * score, 0.).astype(np.int64),
      'share': (1. / (1. + np.exp(-score))).astype(np.float32),
      'heads': {'rich': (score > 0.).astype(np.int64),
                'wage': np.stack([score, -score], 1).astype(np.float32)}}
  return tf.data.Dataset.from_tensor_slices((features, labels['LABELS'])).batch(16)


def make(folder):
  fc = tf.feature_column
  age = fc.numeric_column('age', normalizer_fn=lambda x: (x - 40.) / 20.)
  ages = fc.bucketized_column(fc.numeric_column('age'), [25., 40., 55.])
  job = fc.categorical_column_with_vocabulary_list('job', JOBS)
  hobbies = fc.categorical_column_with_identity('hobbies', 20)
  town = fc.categorical_column_with_hash_bucket('town', 9)
  wide = [age, ages, job, hobbies, fc.crossed_column([ages, 'town'], 30)]
  deep = [age, fc.numeric_column('pair', shape=[2]), fc.indicator_column(job),
          fc.embedding_column(hobbies, 4), fc.embedding_column(town, 3, combiner='sqrtn')]
  words = fc.embedding_column(fc.sequence_categorical_column_with_identity('words', 30), 3)
  kinds = fc.indicator_column(
      fc.sequence_categorical_column_with_vocabulary_list('kinds', JOBS[:2]))
  sizes = fc.sequence_numeric_column('sizes')
  hobby = fc.categorical_column_with_identity('hobby', 20)
  return API.CLASS(
      ARGUMENTS,
      model_dir=folder, config=API.RunConfig(tf_random_seed=3, save_checkpoints_steps=BEGIN))
"""

NETWORK = "hidden_units=[8, 4], feature_columns=deep"
BOTH = "linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[8, 4]"
V1_RATE = "tf.compat.v1.train.exponential_decay(0.1, tf.compat.v1.train.get_global_step(), 5, 0.5)"

STEPS = 6

SEQUENCES = f"""\
  lengths = np.where(np.arange(192) % 16, rng.randint(1, {STEPS}, 192), {STEPS})
  there = np.arange({STEPS}) < lengths[:, np.newaxis]
  features = {{
      'age': features['age'], 'weight': features['weight'], 'hobby': rng.randint(20, size=192),
      'words': tf.sparse.from_dense(np.where(there, rng.randint(1, 30, (192, {STEPS})), 0)),
      'kinds': tf.sparse.from_dense(np.where(there, rng.choice(JOBS, (192, {STEPS})), '')),
      'sizes': tf.sparse.from_dense(
          np.where(there, rng.uniform(.5, 1.5, (192, {STEPS})), 0.).astype(np.float32)),
      'step_weight': rng.uniform(.5, 1.5, (192, {STEPS})).astype(np.float32)}}
  labels['tags'] = rng.randint(3, size=(192, {STEPS}))
"""
"""The features of recurrent networks: one example of each batch has all steps."""

RECURRENT = "[words, kinds, sizes], [age, fc.embedding_column(hobby, 3)]"

SUM = "loss_reduction=tf.losses.Reduction.SUM"

LOSS = "lambda labels, logits: tf.abs(labels - tf.sigmoid(logits))"

CASES: Mapping[str, tuple[str, str, str, str | None, str]] = {
    "network": ("DNNClassifier", "two", f"{NETWORK}, batch_norm=True", "", ""),
    "network of three": (
        *("DNNClassifier", "three", f"{NETWORK}, n_classes=3, weight_column='weight'"),
        "optimizer='Adam'",
        "optimizer=tf.keras.optimizers.legacy.Adam(0.01, epsilon=1e-6)",
    ),
    "network of numbers": (
        *("DNNRegressor", "both", f"{NETWORK}, label_dimension=2, activation_fn=tf.nn.tanh"),
        f"optimizer=lambda: tf.compat.v1.train.AdagradOptimizer({V1_RATE})",
        "optimizer='SGD'",
    ),
    "linear": ("LinearClassifier", "words", "wide, label_vocabulary=['less', 'more']", "", ""),
    "linear of three": (
        *("LinearClassifier", "three", "wide, n_classes=3, sparse_combiner='mean'"),
        "optimizer=tf.compat.v1.train.GradientDescentOptimizer(0.01)",
        "optimizer='Adagrad'",
    ),
    "linear of numbers": (
        *("LinearRegressor", "one", "wide, weight_column='weight'"),
        "optimizer=tf.compat.v1.train.FtrlOptimizer(0.01, l1_regularization_strength=0.001)",
        "optimizer=tf.keras.optimizers.legacy.Ftrl(0.1, l2_regularization_strength=0.1)",
    ),
    "both": (
        "DNNLinearCombinedClassifier",
        "words",
        f"{BOTH}, label_vocabulary=['less', 'more'], weight_column='weight'",
        "loss_reduction=tf.compat.v1.losses.Reduction.SUM_OVER_BATCH_SIZE",
        "loss_reduction=tf.losses.Reduction.SUM",
    ),
    "both for numbers": (
        *("DNNLinearCombinedRegressor", "one", f"{BOTH}, dnn_activation_fn=None"),
        "linear_optimizer='Adagrad'",
        "dnn_optimizer=lambda: tf.keras.optimizers.legacy.Adagrad(0.05)",
    ),
    "network by squares": (
        *("DNNClassifier", "two", NETWORK, "optimizer='RMSProp'", "optimizer='RMSProp'"),
    ),
    "network by momentum": (
        *("DNNRegressor", "one", NETWORK),
        "optimizer=tf.compat.v1.train.MomentumOptimizer(0.0003, 0.9, use_nesterov=True)",
        "optimizer=tf.keras.optimizers.legacy.SGD(0.005, 0.9, nesterov=True)",
    ),
    "network by its leader": (
        *("DNNClassifier", "three", f"{NETWORK}, n_classes=3"),
        "optimizer='Ftrl'",
        "optimizer=tf.keras.optimizers.legacy.Ftrl(0.02, l1_regularization_strength=0.001)",
    ),
    "linear by squares": (
        *("LinearRegressor", "one", "wide"),
        "optimizer=tf.compat.v1.train.RMSPropOptimizer(0.01, 0.8, momentum=0.5)",
        "optimizer=tf.keras.optimizers.legacy.RMSprop(0.01, momentum=0.5)",
    ),
    "both by squares": (
        *("DNNLinearCombinedClassifier", "two", BOTH),
        "dnn_optimizer='RMSProp', linear_optimizer='RMSProp'",
        "dnn_optimizer='RMSProp', linear_optimizer='RMSProp'",
    ),
    "both from another": (
        *("DNNLinearCombinedClassifier", "two"),
        f"{BOTH}, batch_norm=True, warm_start_from=folder + '_warm'",
        *("", ""),
    ),
    "baseline": (
        *("BaselineClassifier", "words"),
        *("label_vocabulary=['less', 'more'], weight_column='weight'", "", ""),
    ),
    "baseline of three": (
        *("BaselineClassifier", "three", "n_classes=3, weight_column='weight'"),
        "optimizer='Adam', loss_reduction=tf.compat.v1.losses.Reduction.MEAN",
        "optimizer='Adagrad'",
    ),
    "baseline of numbers": (
        *("BaselineRegressor", "both", "label_dimension=2"),
        "loss_reduction=tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS",
        "optimizer='Adam'",
    ),
    "baseline of several classes": (
        *("BaselineEstimator", "several"),
        "API.MultiLabelHead(3, thresholds=[.4],\n      classes_for_class_based_metrics=[0, 2])",
        *(None, ""),
    ),
    "network of counts": (
        *("DNNEstimator", "count", f"API.PoissonRegressionHead(), {NETWORK}"),
        *(None, "optimizer='Adagrad'"),
    ),
    "linear of shares": (
        *("LinearEstimator", "share", "API.LogisticRegressionHead(name='share'), wide"),
        *(None, "optimizer='Adam'"),
    ),
    "linear with a loss": (
        *("LinearEstimator", "two"),
        f"API.BinaryClassHead(thresholds=[.3, .6], name='rich', loss_fn={LOSS}), wide",
        *(None, ""),
    ),
    "both with heads": (
        *("DNNLinearCombinedEstimator", "heads"),
        "API.MultiHead([API.BinaryClassHead(name='rich', weight_column='weight'),\n"
        f"      API.RegressionHead(2, name='wage')], [1., .5]), {BOTH}",
        *(None, ""),
    ),
    "recurrent": (
        *("experimental.RNNClassifier", "words", f"{RECURRENT}, units=[5]"),
        *(None, f"label_vocabulary=['less', 'more'], {SUM}"),
    ),
    "recurrent of three": (
        *("experimental.RNNClassifier", "three", "[words, sizes], units=6, cell_type='lstm'"),
        None,
        "n_classes=3, weight_column='weight', optimizer=tf.keras.optimizers.legacy.Adam(.01)",
    ),
    "recurrent by gates": (
        *("experimental.RNNClassifier", "two", f"{RECURRENT}, units=[5, 3], cell_type='gru'"),
        *(None, f"optimizer='RMSProp', {SUM}"),
    ),
    "recurrent for each step": (
        *("experimental.RNNClassifier", "tags", f"{RECURRENT}, units=4, cell_type='gru'"),
        None,
        "n_classes=3, weight_column='step_weight', optimizer='SGD', return_sequences=True,\n"
        f"      sequence_mask='there', {SUM}",
    ),
    "recurrent of cells": (
        *("experimental.RNNEstimator", "both", f"API.RegressionHead(2), {RECURRENT}"),
        None,
        "rnn_cell_fn=lambda: [tf.keras.layers.LSTMCell(4), tf.keras.layers.GRUCell(3)],\n"
        "      optimizer='Ftrl'",
    ),
    "recurrent of a class": (
        *("experimental.RNNEstimator", "count"),
        f"API.PoissonRegressionHead(), {RECURRENT}, cell_type=tf.keras.layers.SimpleRNNCell",
        *(None, "units=(4, 3), optimizer='Adam'"),
    ),
}
"""The class, its labels, its arguments, and those of TensorFlow 1's and of TensorFlow 2's alone.

None: TensorFlow 1 has no such estimator, whose heads no program can name.
"""

NAMES = [
    f"{name}, v{version}"
    for name, case in CASES.items()
    for version in (1, 2)
    if case[2 + version] is not None
]


def source(name: str) -> str:
    """Returns the program of a name.

    A Baseline has one feature beside its weights, since stock's of TensorFlow 2 takes no others of
    an unknown batch size.
    """
    case, _, version = name.rpartition(", v")
    kind, labels, arguments, *others = CASES[case]
    parts = [arguments, *filter(None, [others[int(version) - 1]])]
    program = PROGRAM.replace("LABELS", labels).replace("CLASS", kind)
    program = program.replace("ARGUMENTS", ",\n      ".join(parts))
    if kind.startswith("Baseline"):
        keys = ("age", "weight") if "weight_column" in arguments else ("age",)
        few = f"  features = {{key: features[key] for key in {keys}}}\n"
        program = program.replace("  return tf.data", f"{few}  return tf.data")
    if "RNN" in kind:
        program = program.replace("  return tf.data", f"{SEQUENCES}  return tf.data")
    api = "tf.compat.v1.estimator" if version == "1" else "tf.estimator"
    return program.replace("API", api).replace("BEGIN", str(BEGIN))


def starts_warm(name: str) -> bool:
    """Returns whether both start with the variables of another training, and not from step 4."""
    return WARM in source(name)


WARM = ", warm_start_from=folder + '_warm'"


def train_old(name: str, folder: pathlib.Path) -> None:
    """Trains an estimator, and keeps its metrics and predictions."""
    old = _names_of(name, source(name))
    converted = {f"old/model.ckpt-{END}": "last", f"old/model.ckpt-{BEGIN}": "new"}
    if starts_warm(name):
        other = _names_of(name, source(name).replace(WARM, ""))["make"](str(folder / "old_warm"))
        other.train(old["input_fn"], max_steps=BEGIN)
        converted = {f"old/model.ckpt-{END}": "last", "old_warm": "new_warm"}
    job = old["make"](str(folder / "old"))
    job.train(old["input_fn"], max_steps=END)
    for path, place in converted.items():
        convert.convert(str(folder / path), str(folder / place), no_tables=True)
    metrics = job.evaluate(old["input_fn"], steps=5)
    predictions = list(job.predict(old["input_fn"]))
    (folder / "results.pickle").write_bytes(pickle.dumps((metrics, predictions)))


def compare_new(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Trains the Keras form from the converted checkpoint; returns what differs in the end."""
    metrics, predictions = pickle.loads((folder / "results.pickle").read_bytes())
    new = _names_of(name, migrate_to_keras(source(name), name).source)
    start = contents(str(folder / ("new_warm" if starts_warm(name) else "new")))
    model = new["make"](str(folder / "new"))
    done = 0 if starts_warm(name) else BEGIN
    model.fit(new["input_fn"]().skip(done), max_steps=END, verbose=0)
    there, here = contents(str(folder / "last")), contents(str(folder / "new"))
    of_model = model.evaluate(new["input_fn"](), steps=5, verbose=0)
    keys = {*metrics, *of_model}
    pairs = [(f"metric {key}", metrics.get(key), of_model.get(key)) for key in keys]
    old, others = stacked(predictions), stacked(model.predictions(new["input_fn"]()))
    pairs += [(f"prediction {key}", old.get(key), others.get(key)) for key in {*old, *others}]
    pairs += [(key, there.get(key), here.get(key)) for key in {*there, *here}]
    moved = [key for key in there if key in start and not np.array_equal(there[key], start[key])]
    return {"name": name, "moved": len(moved), "worst": worst(pairs, terms_of_means(old))}


def _names_of(name: str, text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), namespace)
    return namespace


def stacked(predictions: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns the predictions of all examples by key, each an array with a row per example.

    A logit is a sum whose terms cancel in some examples: its rounding is that of the terms, which
    have the size of the logits of other examples, and not that of the small number which is left.
    """
    rows = [*predictions]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def terms_of_means(predictions: Mapping[Any, np.ndarray]) -> dict[str, float]:
    """Returns the largest magnitude of the numbers of which each metric is the mean, by its name.

    They cancel as the terms of logits do. Heads of several have names, which their metrics end in.
    """
    terms = {}
    for key, values in predictions.items():
        *heads, kind = [key] if isinstance(key, str) else key
        if kind == "predictions":
            terms["/".join(["metric prediction/mean", *heads])] = float(np.max(np.abs(values)))
    return terms


def worst(
    pairs: list[tuple[str, Any, Any]], terms: Mapping[str, float] = MappingProxyType({})
) -> list[tuple[float, str]]:
    """Returns the largest differences, as parts of the largest magnitude of each value.

    The magnitude of a value in `terms` is that, if it is larger.
    """
    differences = []
    for name, one, other in pairs:
        if one is None or other is None:
            differences.append((float("inf"), f"{name}: {'B' if one is None else 'A'} alone"))
            continue
        a, b = np.asarray(one), np.asarray(other)
        if a.dtype.kind != "f" or a.shape != b.shape:
            same = a.shape == b.shape and bool(np.all(a == b))
            differences.append((0.0 if same else float("inf"), name))
            continue
        scale = max(float(np.max(np.abs(a), initial=0.0)), terms.get(name, 0.0), 1e-3)
        differences.append((float(np.max(np.abs(a - b), initial=0.0)) / scale, name))
    return sorted(differences, reverse=True)[:3]


def contents(folder: str) -> dict[str, np.ndarray]:
    """Returns the values in the latest checkpoint of a folder."""
    reader = tf.train.load_checkpoint(folder)
    keys = [key for key in reader.get_variable_to_shape_map() if key.endswith("VARIABLE_VALUE")]
    return {key: np.asarray(reader.get_tensor(key)) for key in keys if "save_counter" not in key}


def main() -> None:
    """Runs the programs of the command line, or all."""
    install.install()
    part, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or NAMES:
        place = folder / re.sub(r"\W+", "_", name)
        if part == "old":
            place.mkdir(parents=True)
            train_old(name, place)
        else:
            sys.stdout.write(f"{json.dumps(compare_new(name, place))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

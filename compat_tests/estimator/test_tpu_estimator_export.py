"""The SavedModels of TPUEstimators give the same predictions as `predict`."""

from __future__ import annotations

import logging
import os
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks, clicks_served, jobs, tiny
from compat_tests.references import tolerance
from compat_tests.support import tpu_jobs
from compat_tests.support.base_jobs import run_signature
from compat_tests.support.tiers import quick
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
from estimator_bridge.run import software_tpu

if HAS_STOCK:
    from compat_tests.support import stock

BATCHES = 2
# A sigmoid of a small network: no activation above 4 in magnitude, and fewer than 64 terms to
# add up anywhere, by other ops in another order.
ALLOWED = tolerance.allowed(n_terms=64, steps=0, scale=4.0)


def predicted(job: Any) -> np.ndarray:
    """Returns the predictions of the first batches, [samples, 1]."""
    samples = [sample["p"] for sample in job.predict(clicks.short_input_fn)]
    return np.stack(samples[: BATCHES * jobs.BATCH])


def served(path: bytes) -> np.ndarray:
    """Returns the predictions of the exported model for the same samples."""
    examples = clicks_served.examples(BATCHES, jobs.BATCH)
    return run_signature(path, "serving_default", {"examples": examples})["p"]


ADAM = parameters.AdamParameters(0.01)
MOD, PIPELINED = {"partition_strategy": "mod"}, {"pipeline_execution_with_tensor_core": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "all together": {"optimizer": ADAM, "spec_options": {**MOD, **PIPELINED}},
    "no TPU": {"use_tpu": False},
    "Adagrad": {},
    "Adam": {"optimizer": ADAM},
    "mod": {"spec_options": MOD},
    "pipelined": {"spec_options": PIPELINED},
}


@pytest.mark.parametrize("name", quick(["all together"], OPTIONS))
def test_the_exported_model_predicts_what_predict_does(name: str, tmp_path: pathlib.Path) -> None:
    """Ordinary columns look the trained tables up; sequences are cut as the engine cuts them.

    The model has no op of the engine and no slot.
    """
    options = OPTIONS[name]
    job = jobs.make(str(tmp_path / "job"), **options)
    job.train(clicks.input_fn, steps=5)
    path = job.export_saved_model(tmp_path / "exported", clicks_served.receiver)

    np.testing.assert_allclose(served(path), predicted(job), rtol=0, atol=ALLOWED, err_msg=name)
    folder = os.fsdecode(path)
    names = {n for n, _ in tf.train.list_variables(os.path.join(folder, "variables/variables"))}
    assert {"items", "dense_features/place_embedding/embedding_weights", "global_step"} <= names
    assert not [name for name in names if "/Ada" in name or "tpu_embedding_dummy" in name]
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.saved_model.loader.load(session, ["serve"], folder)
        assert not [op.type for op in graph.get_operations() if "TPU" in op.type]


def dict_job(model_dir: pathlib.Path, **spec_options: Any) -> Any:
    """Returns a job of config dicts: a shared table, a weighted feature and a sequence."""
    start = tf.random_normal_initializer(stddev=0.1, seed=3)
    spec = estimator.tpu.experimental.EmbeddingConfigSpec(
        table_to_config_dict={
            "items": TableConfig(clicks.ROWS, 4, start, "mean"),
            "words": TableConfig(clicks.QUERY_ROWS, 3, start, "sqrtn"),
        },
        feature_to_config_dict={
            "shown": FeatureConfig("items"),
            "clicked": FeatureConfig("items", max_sequence_length=clicks.LENGTH),
            "query": FeatureConfig("words", weight_key="query_weights"),
        },
        optimization_parameters=parameters.AdagradParameters(0.1),
        **spec_options,
    )

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = tf.concat(
            [features["shown"], tf.reduce_sum(features["clicked"], 1), features["query"]], 1
        )
        logits = tf.reduce_sum(net * tf.get_variable("scale", [11]), 1, keepdims=True)
        loss = None if mode == "infer" else tf.losses.sigmoid_cross_entropy(labels, logits)
        return tpu_jobs.spec(mode, loss, predictions={"p": tf.sigmoid(logits)})

    config = {"tf_random_seed": 1}
    return tpu_jobs.make(model_fn, model_dir, jobs.BATCH, config=config, embedding_config_spec=spec)


@pytest.mark.parametrize("strategy", [pytest.param("div", marks=pytest.mark.full), "mod"])
def test_config_dicts_are_looked_up_in_the_exported_model(
    strategy: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With config dicts the model has no columns; its tables are variables of their own names."""
    job = dict_job(tmp_path / "job", partition_strategy=strategy)
    job.train(clicks.input_fn, steps=5)
    path = job.export_saved_model(tmp_path / "exported", clicks_served.receiver)

    np.testing.assert_allclose(served(path), predicted(job), rtol=0, atol=ALLOWED)
    assert len([line for line in caplog.messages if "raw ids to the model_fn" in line]) == 1
    saved = os.path.join(os.fsdecode(path), "variables/variables")
    for table in ("items", "words"):
        np.testing.assert_array_equal(
            tf.train.load_variable(saved, table), job.get_variable_value(table)
        )


def test_the_model_is_called_as_without_a_tpu(tmp_path: pathlib.Path) -> None:
    """In an export `params` says use_tpu=False and has neither a batch size nor a context."""
    seen: list[Any] = []
    job = jobs.make(str(tmp_path / "job"), params={"learning_rate": 0.01})
    inner = job._model_fn

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        seen.append((mode, dict(params)))
        return inner(features, labels, mode, params)

    job._model_fn = model_fn
    job.train(clicks.input_fn, steps=1)
    job.export_savedmodel(str(tmp_path / "exported"), clicks_served.receiver)

    assert seen[0][1]["use_tpu"] is True
    assert seen[1] == ("infer", {"learning_rate": 0.01, "use_tpu": False})


def test_what_of_an_export_is_not_for_tpus(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says that there is no TPU graph, unless none is requested; no graph is an error."""
    caplog.set_level(logging.INFO, "tensorflow")

    def make(**options: Any) -> Any:
        columns = [tiny.column()]
        return tiny.make(estimator, str(tmp_path / "job"), columns, use_tpu=True, **options)

    make().train(tiny.input_fn, steps=1)
    for number, (to_tpu, to_cpu) in enumerate(((True, True), (False, True), (True, False))):
        caplog.clear()
        job = make(export_to_tpu=to_tpu, export_to_cpu=to_cpu)
        for _ in range(2):
            path = job.export_saved_model(tmp_path / f"e{number}", tiny.receiver)
        lines = [line for line in caplog.messages if "export_to_tpu" in line]
        assert len(lines) == (1 if to_tpu else 0), (to_tpu, to_cpu)
        assert len(os.listdir(tmp_path / f"e{number}")) == 2  # also if made in the same second
        assert set(jobs.signatures(path)) == {"serving_default"}
    with pytest.raises(errors.InvalidInput, match="export_to_cpu"):
        make(export_to_tpu=False, export_to_cpu=False).export_saved_model(
            tmp_path / "none", tiny.receiver
        )
    with pytest.raises(errors.InvalidInput, match="export_saved_model_api_version"):
        make(export_saved_model_api_version=3)
    assert make(export_saved_model_api_version=2) is not None


@pytest.mark.stock
def test_exports_without_a_tpu_are_stocks(tmp_path: pathlib.Path) -> None:
    """With use_tpu=False all files, signatures and predictions are those of stock's CPU graph."""
    results = []
    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        job = jobs.make(
            tmp_path / "job",
            tf.tpu.experimental.AdagradParameters(0.1),
            namespace=namespace,
            use_tpu=False,
            params={},
            export_to_tpu=False,
        )
        job.train(clicks.input_fn, max_steps=5)  # stock trains, the other finds the checkpoint
        path = job.export_saved_model(str(tmp_path / f"{name} exported"), clicks_served.receiver)
        folder = pathlib.Path(os.fsdecode(path))
        files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))
        variables = tf.train.list_variables(str(folder / "variables/variables"))
        results.append((jobs.signatures(path), files, variables, served(path).tolist()))
    assert results[0] == results[1]
    assert not [name for name, _ in variables if "Adam" in name]


def identity(key: str = "a", **options: Any) -> Any:
    return tf.feature_column.categorical_column_with_identity(key, tiny.ROWS, **options)


def weighted(**options: Any) -> list[Any]:
    """Returns a column of ids "a" with the weights "w"."""
    column = tf.feature_column.weighted_categorical_column(identity(), "w")
    return [tiny.column(column, **options)]


def words(size: int = tiny.ROWS, **options: Any) -> list[Any]:
    make = tf.feature_column.categorical_column_with_vocabulary_list
    return [tiny.column(make("a", range(size), dtype=tf.int64, **options))]


def on_tensor_core(**options: Any) -> list[Any]:
    """Returns a column whose table is an ordinary variable."""
    device = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [tiny.BATCH, 2]}
    return [tiny.column(**device, **options)]


def shared_sequence() -> list[Any]:
    """Returns a sequence and another feature that share a table."""
    return list(
        tf.tpu.experimental.shared_embedding_columns(
            [tiny.sequence("a"), identity("b")],
            dimension=2,
            initializer=tiny.start,
            max_sequence_lengths=[2, 0],
            shared_embedding_collection_name="shared",
        )
    )


COLUMNS = {
    "sequence": lambda: [tiny.column(tiny.sequence(), max_sequence_length=2)],
    "sequence of a shared table": shared_sequence,
    "mean": lambda: [tiny.column(combiner="mean")],
    "sqrtn": lambda: [tiny.column(combiner="sqrtn")],
    "no combiner": lambda: [tiny.column(combiner=None)],
    "weights": lambda: weighted(combiner="sum"),
    "mean of weights": lambda: weighted(combiner="mean"),
    "default value": lambda: [tiny.column(identity(default_value=3))],
    "vocabulary": words,
    "vocabulary with a default": lambda: words(default_value=4),
    "vocabulary and hashes": lambda: words(8, num_oov_buckets=2),
    "shared": tiny.shared,
    "tensor core": on_tensor_core,
}

# Of each sample the ids "a" and their weights, and the ids "b".
SERVED = [
    ([1], [1.0], [2]),
    ([], [], []),
    ([0, 0, 3], [0.5, 1.0, 2.0], [5, 5, 5]),
    ([3, 4, 5, 6, 7], [0.0, -1.0, 2.0, 1.0, 1.0], [1]),
    ([9], [-1.0], [9]),
    ([2, 2], [0.0, 0.0], [0]),
    ([-1, 2], [1.0, 1.0], [0]),
]


def exporting_job(namespace: Any, model_dir: pathlib.Path, columns: Any, **options: Any) -> Any:
    """Returns a job of `tiny` with use_tpu=True; a sequence is weighed by its positions."""
    sequences = [column for column in columns if column.is_sequence_column()]
    others = [column for column in columns if column not in sequences]

    def body(features: Any) -> Any:
        parts = [features["x"]]
        if others:
            parts.append(tf.keras.layers.DenseFeatures(others)(features))
        for column in sequences:
            rows, lengths = tf.keras.experimental.SequenceFeatures([column])(features)
            positions = tf.cast(tf.range(tf.shape(rows)[1])[:, tf.newaxis] + 1, tf.float32)
            parts += [tf.reduce_sum(rows * positions, 1), tf.cast(lengths, tf.float32)[:, None]]
        net = tf.concat(parts, 1)
        ones = tf.ones_initializer()
        return tf.matmul(net, tf.get_variable("weight", [net.shape[1], 1], initializer=ones))

    return tiny.make(namespace, str(model_dir), columns, body, use_tpu=True, **options)


def answers(job: Any, base: pathlib.Path, samples: Any = SERVED) -> list[float]:
    def receiver() -> Any:
        serialized = tf.placeholder(tf.string, [None], "examples")
        kinds: dict[str, Any] = {key: tf.io.VarLenFeature(tf.int64) for key in ("a", "b")}
        kinds["w"] = tf.io.VarLenFeature(tf.float32)
        features = tf.io.parse_example(serialized, kinds)
        features["x"] = tf.fill([tf.shape(serialized)[0], 1], 0.5)
        return clicks_served.Receiver(features, {"examples": serialized})

    examples = []
    for ids, weights, others in samples:
        example = tf.train.Example()
        example.features.feature["a"].int64_list.value.extend(ids)
        example.features.feature["w"].float_list.value.extend(weights)
        example.features.feature["b"].int64_list.value.extend(others)
        examples.append(example.SerializeToString())
    path = job.export_saved_model(str(base), receiver)
    return run_signature(path, "serving_default", {"examples": examples})["p"].ravel().tolist()


def weights_of(number: Any) -> Any:
    ids = tiny.features_of(number)["a"]
    return tf.SparseTensor(ids.indices, tf.ones_like(ids.values, tf.float32), ids.dense_shape)


def test_quirks_decide_whether_exports_cut_sequences(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Exports cut as training does with "documented", and not with "stock"; a line says so."""
    longer, cut = [([1, 2, 3, 4], [], [])], [([1, 2], [], [])]
    answered: dict[str, list[list[float]]] = {}
    for quirks in ("documented", "stock"):
        caplog.clear()
        job = exporting_job(estimator, tmp_path / "job", COLUMNS["sequence"](), quirks=quirks)
        job.train(tiny.input_fn, max_steps=2)
        answered[quirks] = [
            answers(job, tmp_path / f"{quirks} {number}", samples)
            for number, samples in enumerate((longer, cut))
        ]
        lines = [line for line in caplog.messages if "the exported model" in line]
        assert len(lines) == 1, quirks
        assert "'a'" in lines[0]
        assert "max_sequence_length=2" in lines[0]
        assert ("cuts longer" in lines[0]) == (quirks == "documented")
    assert answered["documented"][0] == answered["documented"][1] == answered["stock"][1]
    assert answered["stock"][0] != answered["stock"][1]


@pytest.mark.stock
@pytest.mark.parametrize("name", quick(["sequence"], COLUMNS))
def test_exports_of_what_a_tpu_trained_are_stocks(name: str, tmp_path: pathlib.Path) -> None:
    """With quirks="stock" columns look ids up as in stock's export, sequences of any length too."""
    keys = ["a", "b"] if "shared" in name else ["a"]
    inputs = tiny.inputs(*keys, **({"w": weights_of} if "weights" in name else {}))
    with software_tpu.stock_on_software_tpu():
        job = exporting_job(stock.ESTIMATOR, tmp_path / "job", COLUMNS[name](), export_to_tpu=False)
        job.train(inputs, steps=2)
        expected = answers(job, tmp_path / "stock")
    job = exporting_job(estimator, tmp_path / "job", COLUMNS[name](), quirks="stock")

    assert answers(job, tmp_path / "bridge") == expected

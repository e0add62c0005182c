"""Exports with tables in small types are bitwise equal to float32 exports of the rounded rows."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from compat_tests.estimator.test_tpu_estimator_export import dict_job
from compat_tests.keras.test_table_model import Ratings
from compat_tests.keras.test_table_model import batches as of_ratings
from compat_tests.programs import clicks, clicks_served, jobs
from compat_tests.references.tolerance import allowed
from compat_tests.support import base_jobs
from compat_tests.support.served import served
from compat_tests.training import trainers
from tf2_engine import errors, small_types
from tf2_engine import keras as engine_keras
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.small_exports import SmallTables

v1 = tf.compat.v1

SMALL = ("float16", "bfloat16", "int8")
# A graph may fuse the product and the sum by which int8 rows are decoded, and add in another order:
# at most 5 rows below 1, and 2 roundings for each.
ROUNDING = allowed(n_terms=5, steps=0, scale=5.0)
# A dense layer over 12 numbers below 1, whose weights are below 2 (Glorot's, and a few steps).
OF_SCORES = allowed(n_terms=13, steps=0, scale=26.0)
ROWS = np.random.default_rng(7).uniform(-1, 1, (6, 4)).astype(np.float32)


def held(rows: np.ndarray, table_dtype: str) -> np.ndarray:
    """Rounds rows to a type, and returns them as a lookup reads them: float32."""
    rounded = small_types.encode(rows, table_dtype, "The table")
    with tf.Graph().as_default(), v1.Session() as session:
        decoded: np.ndarray = session.run(small_types.decode(tf.constant(rounded)))
    return decoded


def with_held_rows(checkpoint: str, path: str, tables: Collection[str], table_dtype: str) -> str:
    """Copies a checkpoint, with the tables (given by key) rounded to a type; returns `path`."""
    reader = tf.train.load_checkpoint(checkpoint)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert set(tables) <= set(values), sorted(values)
    values |= {name: held(values[name], table_dtype) for name in tables}
    with tf.init_scope():
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=[tf.constant(value) for value in values.values()],
        )
    return path


def stored(path: Any) -> dict[str, tuple[list[int], str]]:
    """Maps the key of each variable of an export to the variable's shape and dtype."""
    reader = tf.train.load_checkpoint(os.path.join(os.fsdecode(path), "variables/variables"))
    dtypes = reader.get_variable_to_dtype_map()
    return {
        name: (shape, dtypes[name].name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if dtypes[name] != tf.string
    }


# --- Graphs -------------------------------------------------------------------------------------


def signature(**outputs: Any) -> dict[str, Any]:
    infos = {key: v1.saved_model.build_tensor_info(each) for key, each in outputs.items()}
    return {"serving_default": v1.saved_model.build_signature_def({}, infos, "predict")}


def by_gather(table: Any) -> Any:
    """Looks rows up, of several dimensions, and not."""
    return tf.reduce_sum(tf.gather(table, [[0, 3], [5, 5]]), 1) + tf.gather(table, [1, 2])


def by_sparse(table: Any) -> Any:
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 5, 3], tf.int64), [3, 2])
    return v1.nn.safe_embedding_lookup_sparse([table], ids, combiner="sqrtn")


def by_the_whole(table: Any) -> Any:
    """Multiplies by the whole table, and looks up in a copy of it."""
    copied = tf.identity(table)
    dim = tf.cast(tf.raw_ops.Shape(input=table)[1], tf.float32)
    return tf.matmul(tf.ones([2, 4]), table, transpose_b=True) + tf.gather(copied, [1])[0, 0] / dim


@pytest.mark.parametrize("look_up", [by_gather, by_sparse, by_the_whole])
@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("table_dtype", SMALL)
def test_a_graph_looks_up_in_small_variables(
    table_dtype: str, use_resource: bool, look_up: Callable[[Any], Any]
) -> None:
    """All ways to read a table see the rows that are held; the table is not exported any more."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("words", initializer=tf.constant(ROWS), use_resource=use_resource)
        other = v1.get_variable("other", initializer=2.0)
        activations = look_up(table)
        small = SmallTables({"words": [table]}, {"words": table_dtype})
        small.check(signature(found=activations))
        session.run(v1.global_variables_initializer())
        kept = small.store(session, v1.global_variables())
        result = session.run(activations)
        assert [each.op.name for each in kept] == ["other", f"words/{table_dtype}"]
        assert v1.global_variables() == kept
        assert v1.trainable_variables() == [other]
        session.run(table.initializer, {table.initial_value: np.full_like(ROWS, np.nan)})
        np.testing.assert_array_equal(session.run(activations), result)
    with tf.Graph().as_default(), v1.Session() as session:
        expected = look_up(v1.get_variable("words", initializer=held(ROWS, table_dtype)))
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(expected), result, rtol=0, atol=ROUNDING)


def test_parts_of_a_table_are_parts() -> None:
    """A table in parts is read from as many small variables; a bad row is counted over all."""
    rows = ROWS.copy()
    rows[4, 1] = np.nan
    with tf.Graph().as_default(), v1.Session() as session:
        parts = {"partitioner": v1.fixed_size_partitioner(3), "use_resource": True}
        whole = v1.get_variable("words", [6, 4], **parts)
        activations = v1.nn.embedding_lookup(whole, [0, 3, 5], partition_strategy="div")
        small = SmallTables({"words": list(whole)}, {"words": "int8"})
        small.check(signature(found=activations))
        for number, part in enumerate(whole):
            session.run(part.assign(rows[2 * number : 2 * number + 2]))
        with pytest.raises(errors.InvalidSpec, match=r"^Table 'words': .* cannot hold row 4, "):
            small.store(session, v1.global_variables())
        session.run(list(whole)[2].assign(ROWS[4:]))
        names = [each.op.name for each in small.store(session, v1.global_variables())]
        assert names == [f"words/part_{number}/int8" for number in range(3)]
        np.testing.assert_array_equal(session.run(activations), held(ROWS, "int8")[[0, 3, 5]])


def test_a_table_that_is_read_in_a_function_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The error names the table, the setting, the output and the op; float32 is the way out."""
    with tf.Graph().as_default():
        table = v1.get_variable("words", initializer=ROWS, use_resource=True)
        rows = tf.function(lambda: tf.gather(table, [1, 2]))()
        copied = tf.identity(rows)
        small = SmallTables({"words": [table]}, {"words": "int8"})
        message = (
            r"^Table 'words': `table_dtype`='int8' replaces lookups .* the output 'Identity:0' "
            r"reads the table through the op '\w*PartitionedCall\w*' .*leave this table float32"
        )
        with pytest.raises(errors.InvalidInput, match=message):
            small.check(signature(found=copied))
        small.check(signature(other=tf.constant(1.0)))
        SmallTables({"words": [table]}, {"words": "float32"}).check(signature(found=copied))
        SmallTables({"unused": []}, {"unused": "int8"})
        assert "Table 'unused': `table_dtype`='int8' has no effect" in caplog.text


# --- Estimators and trainers --------------------------------------------------------------------

COLUMNS = (
    "items",
    "dense_features/place_embedding/embedding_weights",
    "dense_features/query_weighted_by_query_weights_embedding/embedding_weights",
)
JOBS = {
    "columns": (jobs.make, {}, COLUMNS),
    "columns, no TPU": (jobs.make, {"use_tpu": False}, COLUMNS),
    "columns, mod": (jobs.make, {"spec_options": {"partition_strategy": "mod"}}, COLUMNS),
    "dicts": (dict_job, {}, ("items", "words")),
}


@pytest.mark.full
@pytest.mark.parametrize("name", JOBS)
def test_exports_of_estimators(name: str, tmp_path: pathlib.Path) -> None:
    """A TPUEstimator's export answers, with TensorFlow alone, as one of the rows that are held."""
    make, options, tables = JOBS[name]
    job = make(str(tmp_path / "job"), **options)
    job.train(clicks.input_fn, steps=3)
    features = {"examples": np.array(clicks_served.examples(1, jobs.BATCH), object)}
    for table_dtype in SMALL:
        path = job.export_saved_model(
            tmp_path / "small", clicks_served.receiver, table_dtype=table_dtype
        )
        changed = with_held_rows(
            job.latest_checkpoint(), str(tmp_path / table_dtype / "model"), tables, table_dtype
        )
        expected = job.export_saved_model(
            tmp_path / "float32", clicks_served.receiver, checkpoint_path=changed
        )
        before = job.export_saved_model(tmp_path / "before", clicks_served.receiver)

        results = [
            base_jobs.run_signature(each, "serving_default", features)["p"]
            for each in (path, expected, before)
        ]
        np.testing.assert_array_equal(results[0], results[1])
        assert np.abs(results[0] - results[2]).max() > 0
        if table_dtype == "int8":
            answered = served([path], features, tmp_path)[0]["p"]
            # Predictions below 1; a graph may round the product and sum of a row only once.
            np.testing.assert_allclose(answered, results[0], rtol=0, atol=2.0**-20)
        variables, of_float32 = stored(path), stored(before)
        for table in tables:
            (rows, dim), _ = of_float32.pop(table)
            width = dim + 8 if table_dtype == "int8" else dim
            dtype = "uint8" if table_dtype == "int8" else table_dtype
            assert variables.pop(f"{table}/{table_dtype}") == ([rows, width], dtype)
        assert variables == of_float32


@pytest.mark.full
def test_types_by_table_and_refusals_of_estimators(tmp_path: pathlib.Path) -> None:
    """A dict chooses tables; other modes, jobs without tables and unknown tables are refused."""
    job = dict_job(tmp_path / "job")
    job.train(clicks.input_fn, steps=1)
    path = job.export_saved_model(
        tmp_path / "exported", clicks_served.receiver, table_dtype={"words": "bfloat16"}
    )
    variables = stored(path)
    assert variables["words/bfloat16"] == ([clicks.QUERY_ROWS, 3], "bfloat16")
    assert variables["items"] == ([clicks.ROWS, 4], "float32")
    for value, message in (
        ("int4", "`table_dtype` must be one of"),
        ({"x": "int8"}, r"names the tables \['x'\]"),
    ):
        with pytest.raises(errors.InvalidSpec, match=message):
            job.export_saved_model(tmp_path, clicks_served.receiver, table_dtype=value)
    with pytest.raises(errors.InvalidInput, match="`experimental_mode` is 'eval'"):
        job.export_saved_model(
            *(tmp_path, clicks_served.receiver, None, False, None, "eval"), table_dtype="int8"
        )
    plain = base_jobs.make(tmp_path, name="plain")
    with pytest.raises(errors.InvalidInput, match="this estimator has no tables"):
        plain.export_saved_model(tmp_path, clicks_served.receiver, table_dtype="int8")


@pytest.mark.full
def test_exports_of_a_trainer(tmp_path: pathlib.Path) -> None:
    """A Trainer's export answers, with TensorFlow alone, as one of the rows that are held."""
    trainer = trainers.make(trainers.model(trainers.minimized), tmp_path / "model")
    trainer.train(trainers.input_fn, steps=2)
    receiver = trainers.Receiver
    key = "embedding/words/.ATTRIBUTES/VARIABLE_VALUE"
    paths = []
    for number, dtype in enumerate(SMALL):
        path = str(tmp_path / dtype / "model")
        changed = with_held_rows(trainer.latest_checkpoint(), path, [key], dtype)
        folder = str(tmp_path / f"small_{number}")
        paths.append(trainer.export_saved_model(folder, receiver, table_dtype=dtype))
        folder = str(tmp_path / f"float32_{number}")
        paths.append(trainer.export_saved_model(folder, receiver, checkpoint_path=changed))
        width = 10 if dtype == "int8" else 2
        assert stored(paths[-2])[f"words/{dtype}"][0] == [10, width]
        assert "words" not in stored(paths[-2])
    results = [each["net"] for each in served(paths, {"word": np.array([[2], [3], [9]])}, tmp_path)]
    for actual, wanted in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=ROUNDING)
    with pytest.raises(errors.InvalidSpec, match="`table_dtype` must be one of"):
        trainer.export_saved_model(str(tmp_path / "c"), receiver, table_dtype="int4")


# --- Keras --------------------------------------------------------------------------------------


KERAS = {"2": tf.keras, "3": keras} if tf.__version__ > "2.16" else {"2": tf.keras}


def model_of(arithmetic: str, generation: str = "2") -> tuple[Any, Any]:
    """Returns a trained Keras model of two tables, and a function over it."""
    kind = KERAS[generation]
    emb = tf.tpu.experimental.embedding
    tables = [emb.TableConfig(40, 6, name=name) for name in ("users", "items")]
    keras_optimizer = kind.optimizers.Adagrad(0.1)
    layer = engine_keras.layer_for(kind)(
        {table.name: emb.FeatureConfig(table) for table in tables},
        keras_optimizer if arithmetic == "keras" else emb.Adagrad(0.1),
        arithmetic=arithmetic,
    )
    inputs = {name: kind.Input(shape=(), dtype="int64", name=name) for name in ("users", "items")}
    activations = layer(inputs)
    both = kind.layers.Concatenate()([activations["users"], activations["items"]])
    model = kind.Model(inputs, kind.layers.Dense(1)(both))
    model.compile(kind.optimizers.Adagrad(0.1), "mse")
    ids = {name: tf.constant([1, 2, 39], tf.int64) for name in inputs}
    model.fit(tf.data.Dataset.from_tensors((ids, tf.ones([3, 1]))).repeat(3), verbose=0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        return {"score": model({"users": ids, "items": ids[::-1]})}

    return model, serve


def layer_of(model: Any) -> Any:
    return next(each for each in model.layers if isinstance(each, EmbeddingLayer))


@pytest.mark.full
@pytest.mark.parametrize("generation", KERAS)
@pytest.mark.parametrize("arithmetic", ["tpu", "keras"])
def test_exports_of_keras_models(arithmetic: str, generation: str, tmp_path: pathlib.Path) -> None:
    """The export of a model answers, with TensorFlow alone, as one of the rows that are held."""
    model, serve = model_of(arithmetic, generation)
    layer = layer_of(model)
    features = {"ids": np.arange(40)}
    before = serve(**features)["score"].numpy()
    weights = [tuple(each.shape) for each in model.weights]
    small = {name: str(tmp_path / name) for name in SMALL}
    for table_dtype, path in small.items():
        engine_keras.export_saved_model(model, path, serve, table_dtype=table_dtype)
        assert weights == [tuple(each.shape) for each in model.weights]
        np.testing.assert_array_equal(serve(**features)["score"], before)
        shapes = [shape for shape, _ in stored(path).values()]
        assert shapes.count([40, 14 if table_dtype == "int8" else 6]) == 2
        assert [40, 6] not in shapes or table_dtype != "int8"
    originals = {table: each.numpy() for table, each in layer.embedding_tables.items()}
    paths = []
    for table_dtype, path in small.items():
        for table, each in layer.embedding_tables.items():
            each.assign(held(originals[table], table_dtype))
        paths += [path, str(tmp_path / f"{table_dtype} in float32")]
        engine_keras.export_saved_model(model, paths[-1], {"serving_default": serve})
    results = [each["score"] for each in served(paths, features, tmp_path)]
    for actual, wanted in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=OF_SCORES)
        assert np.abs(actual - before).max() > 0


@pytest.mark.full
def test_refusals_of_keras_models(tmp_path: pathlib.Path) -> None:
    """Types by table are taken; functions without a signature and unknown tables are refused."""
    model, serve = model_of("tpu")
    path = str(tmp_path / "mixed")
    engine_keras.export_saved_model(model, path, serve, table_dtype={"users": "int8"})
    shapes = {key: shape for key, (shape, _) in stored(path).items()}
    assert sorted(shape for key, shape in shapes.items() if "embedding" in key) == [
        [40, 6],
        [40, 14],
    ]
    for bad in (serve.get_concrete_function(), tf.function(lambda ids: ids), "serve"):
        with pytest.raises(errors.WrongType, match="must be a tf"):
            engine_keras.export_saved_model(model, path, bad, table_dtype="int8")
    with pytest.raises(errors.InvalidSpec, match=r"\['x'\].*tables are \['items', 'users'\]"):
        engine_keras.export_saved_model(model, path, serve, table_dtype={"x": "int8"})
    next(iter(layer_of(model).embedding_tables.values())).assign(tf.fill([40, 6], np.nan))
    with pytest.raises(errors.InvalidSpec, match="cannot hold row 0"):
        engine_keras.export_saved_model(model, path, serve, table_dtype="int8")
    assert model.predict({"users": np.zeros(1), "items": np.zeros(1)}, verbose=0).shape == (1, 1)


@pytest.mark.full
def test_exports_of_models_that_train_by_steps(tmp_path: pathlib.Path) -> None:
    """A TableModel's export answers, with TensorFlow alone, as one of the rows that are held."""
    model = Ratings()
    model.fit(of_ratings(), max_steps=2)
    spec = {"id": tf.TensorSpec([None], tf.int64)}

    def features(sent: Any) -> Any:
        return {"user": tf.sparse.from_dense(sent["id"][:, None])}

    ((_, table),) = model.embedding.tables.embedding_tables.items()
    original, paths = table.numpy(), []
    for dtype in SMALL:
        folder = str(tmp_path / dtype)
        paths.append(model.export_saved_model(folder, spec, features, table_dtype=dtype))
        table.assign(held(original, dtype))
        paths.append(model.export_saved_model(f"{folder}_float32", spec, features))
        table.assign(original)
        shapes = [shape for shape, _ in stored(paths[-2]).values()]
        assert shapes.count([10, 11 if dtype == "int8" else 3]) == 1
    results = [each["rating"] for each in served(paths, {"id": np.array([1, 2, 3, 1])}, tmp_path)]
    for actual, wanted in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=OF_SCORES)

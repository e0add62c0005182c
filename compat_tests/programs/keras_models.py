"""Models with the Keras layer, trained in every way that its documentation shows.

Run in a separate process, with the Keras to use: `python -m ... <tf.keras|tf_keras> <results>`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

import tf2_engine
from tf2_engine.keras import exportable, layer_for

EMB = tf.tpu.experimental.embedding
USERS, ITEMS, DIM, OTHER_DIM = 12, 7, 4, 2
GLOBAL_BATCH, STEPS, RATE, START = 8, 5, 0.1, 0.1
STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    # One for all models: two of them in a process confuse each other's collectives.
    "mirrored": functools.cache(lambda: tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])),
}
RUNS = [
    ("default", "functional", "fit"),
    ("default", "subclass", "loop"),
    ("default", "subclass", "eager"),
    ("one_device", "functional", "fit"),
    ("mirrored", "functional", "loop"),
    ("mirrored", "subclass", "fit"),
]
"""Strategy, form of the model, and how it is trained."""


def start() -> dict[str, np.ndarray]:
    """Returns the initial values of the variables: tables, and kernel of the dense layer."""
    random = np.random.default_rng(11)
    shapes = {
        "users": (USERS, DIM),
        "items": (ITEMS, OTHER_DIM),
        "kernel": (2 * DIM + OTHER_DIM, 1),
    }
    return {name: random.normal(size=size).astype("f4") / 2 for name, size in shapes.items()}


def data() -> dict[str, np.ndarray]:
    """Returns the samples; an id of -1 stands for none.

    "single" [n] is looked up in users, "bag" [n, 3] in items and "pair" [n, 2] in users.
    """
    random = np.random.default_rng(12)
    size = GLOBAL_BATCH * STEPS
    bag = random.integers(0, ITEMS, (size, 3))
    bag[np.arange(3) >= random.integers(0, 4, (size, 1))] = -1
    pair = random.integers(0, USERS, (size, 2))
    pair[random.random((size, 2)) < 0.3] = -1
    return {
        "single": random.integers(0, USERS, size),
        "bag": bag,
        "pair": pair,
        "labels": random.normal(size=(size, 1)).astype("f4"),
    }


def features_of(rows: dict[str, Any]) -> dict[str, Any]:
    """Returns a dense, a ragged and a sparse feature of samples."""
    present = tf.where(rows["pair"] >= 0)
    return {
        "single": rows["single"],
        "bag": tf.RaggedTensor.from_tensor(rows["bag"], padding=-1),
        "pair": tf.SparseTensor(
            present,
            tf.gather_nd(rows["pair"], present),
            tf.shape(rows["pair"], out_type=tf.int64),
        ),
    }


def dataset(batch: int, drop_remainder: bool = True) -> tf.data.Dataset:
    """Returns (features, labels) of batches of a size."""
    samples = tf.data.Dataset.from_tensor_slices(data()).batch(batch, drop_remainder=drop_remainder)
    return samples.map(lambda rows: (features_of(rows), rows["labels"]))


def feature_config() -> dict[str, Any]:
    """Returns the config of the three features over two tables."""
    values = start()
    users = EMB.TableConfig(
        USERS, DIM, tf.constant_initializer(values["users"]), combiner="mean", name="users"
    )
    items = EMB.TableConfig(
        ITEMS, OTHER_DIM, tf.constant_initializer(values["items"]), combiner="sum", name="items"
    )
    return {
        "single": EMB.FeatureConfig(users, name="single"),
        "bag": EMB.FeatureConfig(items, name="bag"),
        "pair": EMB.FeatureConfig(users, name="pair"),
    }


def kernel_start(shape: Any, dtype: Any = None, **_: Any) -> Any:
    return tf.constant(start()["kernel"])


def make_model(keras: Any, form: str, optimizer: Any, **options: Any) -> Any:
    """Returns a model of the layer and one dense layer; its `embedding_layer` is the former."""
    layer = layer_for(keras)(
        feature_config=feature_config(), optimizer=optimizer, name="embedding_layer", **options
    )
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel_start)
    # Keras 3 cannot restore what it has not built yet.
    dense.build((None, 2 * DIM + OTHER_DIM))
    if form == "functional":
        inputs = {
            "single": keras.Input(shape=(), dtype=tf.int64, name="single"),
            "bag": keras.Input(shape=(None,), dtype=tf.int64, ragged=True, name="bag"),
            "pair": keras.Input(shape=(2,), dtype=tf.int64, sparse=True, name="pair"),
        }
        looked_up = layer(inputs)
        in_order = [looked_up[name] for name in ("bag", "pair", "single")]
        logits = dense(keras.layers.Concatenate()(in_order))
        model = keras.Model(inputs, logits)
        assert logits.shape[-1] == 1
        return model

    class Subclassed(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding_layer, self.dense = layer, dense

        def call(self, inputs: Any) -> Any:
            embedding = self.embedding_layer(inputs)
            return self.dense(tf.concat(tf.nest.flatten(embedding), 1))

    return Subclassed()


def layer_of(model: Any) -> Any:
    return model.get_layer("embedding_layer")


def tables_of(model: Any) -> dict[str, np.ndarray]:
    layer = layer_of(model)
    getattr(layer.embedding, "retrieve", lambda: None)()
    tables = layer.embedding_tables.items()
    return {config.name: tf.convert_to_tensor(value).numpy() for config, value in tables}


def state_of(model: Any) -> dict[str, np.ndarray]:
    (dense,) = (layer for layer in model.layers if hasattr(layer, "kernel"))
    return {**tables_of(model), "kernel": np.asarray(dense.kernel)}


def distributed(strategy: Any) -> Any:
    """Returns the batches of an epoch for every replica, left on the host."""
    return strategy.distribute_datasets_from_function(
        lambda context: dataset(context.get_per_replica_batch_size(GLOBAL_BATCH)),
        tf.distribute.InputOptions(experimental_fetch_to_device=False),
    )


def inputs_of(strategy: Any) -> Any:
    """Returns the dataset for `fit`, which TensorFlow requires to be distributed for a TPU."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return distributed(strategy)
    return dataset(GLOBAL_BATCH)


def train(strategy: Any, model: Any, optimizer: Any, how: str) -> None:
    """Trains a model for an epoch; `how` is a name in RUNS."""
    if how == "fit":
        model.compile(optimizer, loss="mse")
        model.fit(inputs_of(strategy), epochs=1, steps_per_epoch=STEPS, verbose=0)
    else:
        train_in_loop(strategy, model, optimizer, eager=how == "eager")


def train_in_loop(strategy: Any, model: Any, optimizer: Any, *, eager: bool) -> None:
    dataset_iterator = iter(distributed(strategy))

    def tpu_step(inputs: Any) -> None:
        features, labels = inputs
        with tf.GradientTape() as tape:
            model_output = model(features)
            loss = tf.reduce_sum((model_output - labels) ** 2) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def training_step(dataset_iterator: Any, num_steps: Any) -> None:
        for _ in tf.range(num_steps):
            strategy.run(tpu_step, args=(next(dataset_iterator),))

    if eager:
        for _ in range(STEPS):
            tpu_step(next(dataset_iterator))
        return
    # Keras creates the variables of models and optimizers at their first use.
    with strategy.scope():
        if not isinstance(strategy, tf.distribute.TPUStrategy):
            model(next(iter(dataset(GLOBAL_BATCH)))[0])
        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
    training_step(dataset_iterator, tf.constant(STEPS))


def run(keras: Any, strategy: Any, form: str, how: str, arithmetic: str) -> dict[str, Any]:
    """Trains one model; returns its state, the shapes of its variables, and its results."""
    with strategy.scope():
        optimizer = keras.optimizers.Adagrad(RATE, initial_accumulator_value=START)
        # A TPU needs a static batch size, which the inputs of a functional model do not have.
        fixed = form == "functional" and isinstance(strategy, tf.distribute.TPUStrategy)
        size = GLOBAL_BATCH if fixed else None
        model = make_model(keras, form, optimizer, arithmetic=arithmetic, batch_size=size)
    train(strategy, model, optimizer, how)
    layer = layer_of(model)
    results = {
        **state_of(model),
        "of the layer": [list(variable.shape) for variable in layer.trainable_variables],
        "of the model": [list(variable.shape) for variable in model.trainable_variables],
    }
    if how == "fit":
        # Five samples do not fill a batch, as a TPU requires.
        on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        for name in ("predict", "evaluate"):
            batches = distributed(strategy) if on_tpu else dataset(5, drop_remainder=False)
            options = {"verbose": 0, "steps": STEPS if on_tpu else None}
            results[name] = getattr(model, name)(batches, **options)
    return results


def separate(keras: Any, strategy: Any, arithmetic: str, built: bool = True) -> dict[str, Any]:
    """Runs the listing of the layer's documentation that has a separate optimizer for the tables.

    It finds the embedding layer's variables by `id`.

    Args:
        built: whether variables are created before the first step, as Keras 3 requires.
    """

    class ModelWithSeparateOptimizer(keras.Model):  # type: ignore[misc]
        def __init__(self, optimizer: Any) -> None:
            super().__init__()
            self.embedding_layer = layer_for(keras)(
                feature_config=feature_config(),
                optimizer=optimizer,
                arithmetic=arithmetic,
                name="embedding_layer",
            )
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel_start)
            if built:
                self.dense.build((None, 2 * DIM + OTHER_DIM))

        def call(self, inputs: Any) -> Any:
            embedding = self.embedding_layer(inputs)
            return self.dense(tf.concat(tf.nest.flatten(embedding), 1))

    with strategy.scope():
        embedding_optimizer = keras.optimizers.Adagrad(learning_rate=0.1)
        dense_optimizer = keras.optimizers.Adam(learning_rate=0.1)
        model = ModelWithSeparateOptimizer(embedding_optimizer)
    dataset_iterator = iter(distributed(strategy))

    @tf.function
    def training_step(dataset_iterator: Any, num_steps: Any) -> None:
        def tpu_step(inputs: Any) -> None:
            features, labels = inputs
            with tf.GradientTape() as tape:
                model_output = model(features)
                loss = tf.reduce_sum((model_output - labels) ** 2) / GLOBAL_BATCH

            gradients = tape.gradient(loss, model.trainable_variables)
            grads_and_vars = list(zip(gradients, model.trainable_variables, strict=True))

            # Note the use of 'id' here.
            embedding_var_ids = [id(v) for v in model.embedding_layer.trainable_variables]
            dense_grads_and_vars = [
                (g, v) for g, v in grads_and_vars if id(v) not in embedding_var_ids
            ]
            dense_optimizer.apply_gradients(dense_grads_and_vars)

            embedding_grads_and_vars = [
                (g, v) for g, v in grads_and_vars if id(v) in embedding_var_ids
            ]
            embedding_optimizer.apply_gradients(embedding_grads_and_vars)

        for _ in tf.range(num_steps):
            strategy.run(tpu_step, args=(next(dataset_iterator),))

    if built:
        with strategy.scope():
            embedding_optimizer.build(model.embedding_layer.trainable_variables)
            dense_optimizer.build(model.dense.trainable_variables)
    training_step(dataset_iterator, tf.constant(STEPS))
    return state_of(model)


def checkpoints(keras: Any) -> dict[str, Any]:
    """Saves and restores models over arithmetics, before and after the variables exist."""
    results: dict[str, Any] = {}
    features = next(iter(dataset(GLOBAL_BATCH)))[0]
    models = {}
    for saved in ("tpu", "keras"):
        optimizer = keras.optimizers.Adagrad(RATE)
        models[saved] = make_model(keras, "subclass", optimizer, arithmetic=saved)
        train(tf.distribute.get_strategy(), models[saved], optimizer, "eager")
    for saved, restored, built in itertools.product(models, models, (0, 1)):
        with tempfile.TemporaryDirectory() as folder:
            model = models[saved]
            path = tf.train.Checkpoint(model=model).save(f"{folder}/checkpoint")
            other = make_model(
                keras, "subclass", keras.optimizers.Adagrad(RATE), arithmetic=restored
            )
            checkpoint = tf.train.Checkpoint(model=other)
            if built:
                other(features)
                before = tables_of(other)["users"]
                assert np.abs(before - tables_of(model)["users"]).max() > 0.01
            status = checkpoint.restore(path)
            other(features)
            if saved == restored:
                status.assert_existing_objects_matched().assert_consumed()
            # The engine by itself, at the place that it has in the model's checkpoint.
            engine = tf2_engine.TPUEmbedding(feature_config(), tf2_engine.Adagrad(RATE))
            engine.build_for_batch(features)
            holder = tf.train.Checkpoint(
                model=tf.train.Checkpoint(
                    embedding_layer=tf.train.Checkpoint(_tpu_embedding=engine)
                )
            )
            holder.restore(path).expect_partial()
            name = f"{saved}/{restored}/{built}"
            results[f"{name}/saved"] = tables_of(model)["users"]
            results[f"{name}/restored"] = tables_of(other)["users"]
            results[f"{name}/output"] = model(features)
            results[f"{name}/output restored"] = other(features)
            results[f"{name}/engine"] = engine.tables["users"].variables["parameters"][0].numpy()
            results[f"{name}/keys"] = sorted(
                key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
                for key, _ in tf.train.list_variables(folder)
                if "embedding" in key
            )
    return results


def exports(keras: Any, folder: str) -> dict[str, Any]:
    """Exports models from training and from a restore; returns the expected answers of each."""
    expected: dict[str, Any] = {}
    samples = data()
    for form, arithmetic in itertools.product(("functional", "subclass"), ("tpu", "keras")):
        optimizer = keras.optimizers.Adagrad(RATE)
        model = make_model(keras, form, optimizer, arithmetic=arithmetic)
        how = "fit" if form == "functional" else "eager"
        train(tf.distribute.get_strategy(), model, optimizer, how)
        path = tf.train.Checkpoint(model=model).save(f"{folder}/checkpoints/{form}_{arithmetic}")
        restored = make_model(keras, form, None)
        tf.train.Checkpoint(model=restored).restore(path).expect_partial()
        for source, one in (("trained", model), ("restored", restored)):
            name = f"{form}_{arithmetic}_{source}"
            serve = serving_function(one)
            # A function that was called before is exported as it was traced then.
            early = serve(tf.constant(examples(samples)))["scores"]
            tf.saved_model.save(exportable(one), f"{folder}/{name}", signatures=serve)
            expected[name] = early.numpy()
            features = features_of({key: tf.constant(value) for key, value in samples.items()})
            expected[f"{name}/model"] = model(features)
    return expected


def serving_function(model: Any) -> Any:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve_examples(examples: Any) -> Any:
        parsed = tf.io.parse_example(
            examples,
            {
                "single": tf.io.FixedLenFeature([], tf.int64),
                "bag": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
                "pair": tf.io.FixedLenFeature([2], tf.int64),
            },
        )
        features = {**features_of({**parsed, "bag": parsed["bag"].to_tensor(-1)})}
        return {"scores": model({**features, "bag": parsed["bag"]})}

    return serve_examples


def examples(samples: dict[str, np.ndarray]) -> list[bytes]:
    def ints(values: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "single": ints([single]),
                    "bag": ints([one for one in bag if one >= 0]),
                    "pair": ints(pair),
                }
            )
        ).SerializeToString()
        for single, bag, pair in zip(
            samples["single"], samples["bag"], samples["pair"], strict=True
        )
    ]


def main(name: str, folder: str) -> None:
    """Runs everything with one Keras, and writes the results to a file."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras = tf.keras if name == "tf.keras" else importlib.import_module(name)
    is_keras_3 = hasattr(keras, "Variable")
    results: dict[str, Any] = {"version": getattr(keras, "__version__", "2")}
    for arithmetic in ("tpu", "keras"):
        for strategy, form, how in RUNS:
            if is_keras_3 and (strategy, how) == ("mirrored", "fit"):
                continue  # Keras 3 cannot read RaggedTensors of several replicas
            state = run(keras, STRATEGIES[strategy](), form, how, arithmetic)
            results |= prefixed(f"{arithmetic}/{strategy}/{form}/{how}", state)
        results |= prefixed(
            f"{arithmetic}/separate", separate(keras, tf.distribute.get_strategy(), arithmetic)
        )
    results |= prefixed("checkpoints", checkpoints(keras))
    results |= prefixed("exports", exports(keras, folder))
    write(results, folder)


def write(results: dict[str, Any], folder: str) -> None:
    """Writes results to a file for the tests."""
    arrays = {key: str(value) if "of the" in key else value for key, value in results.items()}
    np.savez(f"{folder}/results.npz", **arrays)


def prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{key}": value for key, value in values.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A small TPUEstimator program whose tables can hide many kinds of faults, with settings to vary.

Some tables have 500 rows, few of which are looked up. One table has only two rows, each for half
of the batch; one has a row with elements of 1e5, and one has gradients of about 1e5. There are a
falling learning rate, limits, weight decay, a sequence, weights and repeated ids. The network has a
bias, batch norm, relu, dropout and Adam. A model variable that is not trained has the value 2e9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs.clicks_served import Receiver

LENGTH = 3
"""Positions of the sequence feature that are kept."""
DIMENSION = 4
HIDDEN = 8
CLIPPED = 3e-4
"""The gradient limit of the table "flags"."""
ROWS: Mapping[str, int] = {
    "users": 500,
    "items": 300,
    "words": 200,
    "flags": 2,
    "places": 50,
    "tags": 500,
    "rare": 500,
    "loud": 20,
    "heavy": 100,
}
FEATURES: Mapping[str, tuple[str, int, str | None]] = {
    "user": ("users", 0, None),
    "shown": ("items", 0, None),
    "clicked": ("items", LENGTH, None),
    "query": ("words", 0, "query_weights"),
    "flag": ("flags", 0, None),
    "place": ("places", 0, None),
    "tag": ("tags", 0, None),
    "seldom": ("rare", 0, None),
    "noise": ("loud", 0, None),
    "weight": ("heavy", 0, None),
}
"""Maps each feature to its table, its sequence length (or 0), and its weights' key (or None)."""
COMBINERS = {"items": "mean", "words": "sqrtn", "places": "mean"}

Rate = Callable[[Any], Any]
"""Computes a table's learning rate, or a factor for gradients, from the step."""


def constant(value: float) -> Rate:
    return lambda step: value + 0.0 * tf.cast(step, tf.float32)


def falling(start: float, late: int = 0) -> Rate:
    """Returns a rate that falls by a tenth in 1000 steps, delayed by `late` steps."""
    return lambda step: start * 0.9 ** ((tf.cast(step, tf.float32) - late) / 1000)


@dataclasses.dataclass(frozen=True)
class Model:
    """How a model_fn computes its outputs from activations.

    Attributes:
        normed: whether batch norm follows the bias of the hidden layer.
        amplified: a feature, and a factor for its gradient; its activations stay the same.
        ticks: the value of an additional variable, which exists if the value is not 0.
        seen: changes the activations that the model gets, given a dict of [batch, ...] keyed by
            feature, and the mode.
        output: changes the logits, [batch, 1], given these and the mode.
        loss: changes the loss, given the logits and the labels.
        trained: changes gradients and variables before they are applied.
        predictions: changes the predictions.
    """

    normed: bool = True
    norm_momentum: float = 0.9
    norm_epsilon: float = 1e-3
    dropout: float = 0.1
    dropout_seed: int | None = 11
    activation: Callable[[Any], Any] = tf.nn.relu
    optimizer: Callable[[], Any] = lambda: tf.train.AdamOptimizer(0.003, epsilon=1e-6)
    amplified: tuple[str, float] = ("noise", 1e10)
    ticks: float = 2e9
    auc_thresholds: int = 200
    accuracy_threshold: float = 0.5
    seen: Callable[[Mapping[str, Any], str], Mapping[str, Any]] = lambda features, mode: features
    output: Callable[[Any, str], Any] = lambda logits, mode: logits
    loss: Callable[[Any, Any, Any], Any] = lambda loss, logits, labels: loss
    trained: Callable[[Any], Any] = lambda gradients: gradients
    predictions: Callable[[Any], Any] = lambda predictions: predictions
    metrics: Callable[[Any, Any, Any], Any] = lambda metrics, labels, p: metrics


@dataclasses.dataclass(frozen=True)
class Program:
    """A program; `dataclasses.replace` varies its settings.

    Attributes:
        tables: the names of its tables.
        rates: maps some tables to their learning_rate_fn.
        multiplier: experimental_gradient_multiplier_fn, or None.
        changed: changes a batch's features, given these, the batch's number and the mode.
        reordered: whether training batches 0 and 1, 2 and 3, and so on, are swapped.
        shuffled: whether evaluation batches come in random order.
        evaluates, predicts, exports: whether the program does this after training.
        evaluated: the number of batches of an evaluation.
    """

    batch_size: int = 64
    steps: int = 20
    seed: int = 0
    cores: int = 1
    pipelined: bool = False
    tables: tuple[str, ...] = tuple(ROWS)
    rates: Mapping[str, Rate] = dataclasses.field(default_factory=dict)
    multiplier: Rate | None = None
    model: Model = Model()
    changed: Callable[[Any, Any, str], Any] = lambda features, number, mode: features
    reordered: bool = False
    shuffled: bool = False
    evaluates: bool = False
    predicts: bool = False
    exports: bool = False
    evaluated: int = 3

    @property
    def features(self) -> dict[str, tuple[str, int, str | None]]:
        return {key: of for key, of in FEATURES.items() if of[0] in self.tables}


def optimizers_of(classes: Any) -> dict[str, Any]:
    sgd = classes.StochasticGradientDescentParameters
    return {
        "users": classes.AdagradParameters(0.01),
        "items": classes.AdamParameters(0.003, epsilon=1e-5),
        "words": classes.FtrlParameters(0.05, l1_regularization_strength=1e-4),
        "flags": sgd(0.1, clip_gradient_min=-CLIPPED, clip_gradient_max=CLIPPED),
        "places": classes.MomentumParameters(0.1, momentum=0.9),
        "tags": sgd(0.1, clip_weight_min=-0.25, clip_weight_max=0.25, weight_decay_factor=0.01),
        "rare": classes.AdagradParameters(0.1),
        "loud": sgd(1e-10),
        "heavy": classes.AdagradParameters(0.05),
    }


def spec_of(program: Program, namespace: Any, classes: Any) -> Any:
    """Returns the EmbeddingConfigSpec of a program.

    Args:
        namespace: a namespace like `tf.compat.v1.estimator`.
        classes: has TableConfig, FeatureConfig and the optimization parameters.
    """
    optimizers = optimizers_of(classes)
    rates = {"tags": constant(0.05), "places": falling(0.1), **program.rates}
    for name, rate in rates.items():
        # Verify compares functions by name.
        rate.__name__ = f"rate_of_{name}"
    if program.multiplier is not None:
        program.multiplier.__name__ = "multiplier"
    tables = {
        name: classes.TableConfig(
            ROWS[name],
            DIMENSION,
            _heavy if name == "heavy" else tf.random_normal_initializer(stddev=0.2, seed=7),
            combiner=COMBINERS.get(name, "sum"),
            learning_rate_fn=rates.get(name),
            optimization_parameters=optimizers[name],
        )
        for name in program.tables
    }
    features = {
        key: classes.FeatureConfig(table, max_sequence_length=length, weight_key=weights)
        for key, (table, length, weights) in program.features.items()
    }
    options = {}
    if program.multiplier is not None:
        options["experimental_gradient_multiplier_fn"] = program.multiplier
    return namespace.tpu.experimental.EmbeddingConfigSpec(
        table_to_config_dict=tables,
        feature_to_config_dict=features,
        partition_strategy="div",
        pipeline_execution_with_tensor_core=program.pipelined,
        **options,
    )


def config_of(program: Program, model_dir: str, namespace: Any) -> Any:
    return namespace.tpu.RunConfig(
        model_dir=model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=100_000,
        log_step_count_steps=None,
        tpu_config=namespace.tpu.TPUConfig(
            iterations_per_loop=1,
            num_shards=None if program.cores == 1 else program.cores,
            per_host_input_for_training=3,
        ),
    )


def input_fn_of(program: Program, mode: str) -> Callable[[Any], Any]:
    """Returns the input_fn of a mode: endless for "train", a few batches for "eval" and "infer"."""

    def input_fn(params: Any) -> Any:
        size = params["batch_size"]
        if mode == "train":
            numbers = tf.data.Dataset.range(1 << 40)
            if program.reordered:
                numbers = numbers.map(
                    lambda number: tf.bitwise.bitwise_xor(number, tf.constant(1, tf.int64))
                )
        elif mode == "eval":
            numbers = tf.data.Dataset.range(1000, 1000 + program.evaluated)
        else:
            numbers = tf.data.Dataset.range(2000, 2000 + max(2, 1280 // size))
        if program.shuffled and mode == "eval":
            numbers = numbers.shuffle(100)

        def batch(number: Any) -> Any:
            features, labels = batch_of(number, size, program)
            features = program.changed(features, number, mode)
            return features if mode == "infer" else (features, labels)

        return numbers.map(batch)

    return input_fn


def batch_of(number: Any, size: int, program: Program) -> tuple[dict[str, Any], Any]:
    """Returns the features and labels of a batch, which depend only on its number and the seed."""
    number = tf.cast(number, tf.int64)

    def integers(offset: int, shape: list[int], limit: int) -> Any:
        seed = tf.stack([number, tf.constant(100 * program.seed + offset, tf.int64)])
        return tf.random.stateless_uniform(shape, seed, 0, limit, tf.int64)

    def one(offset: int, limit: int) -> tf.SparseTensor:
        places = tf.range(size, dtype=tf.int64)
        indices = tf.stack([places, tf.zeros_like(places)], 1)
        return tf.SparseTensor(indices, integers(offset, [size], limit), [size, 1])

    def sparse(offset: int, width: int, limit: int, present: int = 3) -> tf.SparseTensor:
        """Two thirds of the ids are present, or one in 16 if `present` is 16."""
        draws = integers(offset, [size, width], present)
        indices = tf.where(draws > 0 if present == 3 else tf.equal(draws, 0))
        values = tf.gather_nd(integers(offset + 1, [size, width], limit), indices)
        return tf.SparseTensor(indices, values, [size, width])

    ids = {
        "user": lambda: one(10, ROWS["users"]),
        # With only 40 rows, ids sometimes repeat in a sample.
        "shown": lambda: sparse(20, 4, 40),
        "clicked": lambda: sparse(30, LENGTH + 2, ROWS["items"]),
        "query": lambda: sparse(40, 3, ROWS["words"]),
        "flag": lambda: one(50, 2),
        "place": lambda: sparse(60, 2, ROWS["places"]),
        "tag": lambda: sparse(70, 3, ROWS["tags"]),
        "seldom": lambda: sparse(80, 1, ROWS["rare"], 16),
        "noise": lambda: one(90, ROWS["loud"]),
        # The last row is never looked up.
        "weight": lambda: one(95, ROWS["heavy"] - 1),
    }
    # Stock reads the batch size of predictions from a dense tensor.
    features = {"age": tf.ones([size, 1]), **{key: ids[key]() for key in program.features}}
    if "query" in features:
        query = features["query"]
        weights = 0.5 + tf.cast(query.values % 5, tf.float32) / 4.0
        features["query_weights"] = tf.SparseTensor(query.indices, weights, query.dense_shape)
    return features, tf.cast(integers(5, [size, 1], 2), tf.float32)


def model_fn_of(program: Program, namespace: Any) -> Callable[..., Any]:
    model = program.model

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        features = model.seen({key: features[key] for key in program.features}, mode)
        logits = model.output(_logits(model, features, mode), mode)
        predictions = model.predictions(
            {"p": tf.sigmoid(logits), "class": tf.cast(logits > 0, tf.int64)}
        )
        if mode == "infer":
            outputs = {"serving_default": namespace.export.PredictOutput({"p": predictions["p"]})}
            return namespace.tpu.TPUEstimatorSpec(
                mode, predictions=predictions, export_outputs=outputs
            )
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = model.loss(tf.reduce_mean(losses), logits, labels)
        if mode == "eval":

            def metric_fn(labels: Any, p: Any) -> Any:
                metrics = {
                    "auc": tf.metrics.auc(labels, p, num_thresholds=model.auc_thresholds),
                    "accuracy": tf.metrics.accuracy(labels, p > model.accuracy_threshold),
                    "mean": tf.metrics.mean(p),
                }
                return model.metrics(metrics, labels, p)

            return namespace.tpu.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, predictions["p"]])
            )
        optimizer = model.optimizer()
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        gradients = model.trained(optimizer.compute_gradients(loss))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.apply_gradients(gradients, tf.train.get_global_step())
        return namespace.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _logits(model: Model, features: Mapping[str, Any], mode: str) -> Any:
    parts = []
    for key in sorted(features):
        part = features[key]
        if key == model.amplified[0]:
            part = part + model.amplified[1] * (part - tf.stop_gradient(part))
        parts.append(tf.reduce_sum(part, 1) if part.shape.rank == 3 else part)
    net = tf.concat(parts, 1)
    kernel = tf.glorot_uniform_initializer(seed=3)
    net = tf.layers.dense(net, HIDDEN, kernel_initializer=kernel, name="hidden")
    training = mode == "train"
    if model.normed:
        net = tf.layers.batch_normalization(
            net,
            momentum=model.norm_momentum,
            epsilon=model.norm_epsilon,
            training=training,
            name="norm",
        )
    net = model.activation(net)
    if model.dropout:
        net = tf.layers.dropout(net, model.dropout, seed=model.dropout_seed, training=training)
    if model.ticks:
        tf.get_variable("ticks", [2], initializer=tf.constant_initializer(model.ticks))
    return tf.layers.dense(net, 1, kernel_initializer=kernel, name="logits")


def _heavy(shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> Any:
    """Initializes rows with small numbers, and the last row with 1e5."""
    del partition_info
    rows = tf.random.stateless_normal(shape, [1, 2], dtype=dtype) * 0.2
    is_last = tf.equal(tf.range(shape[0]), shape[0] - 1)[:, tf.newaxis]
    return tf.where(tf.broadcast_to(is_last, shape), tf.fill(shape, 1e5), rows)


def receiver_of(program: Program) -> Callable[[], Any]:
    """Returns the serving_input_receiver_fn, which takes the features under their names."""

    def receive() -> Any:
        taken: dict[str, Any] = {}
        for key, (_, _, weights) in program.features.items():
            taken[key] = tf.sparse_placeholder(tf.int64, [None, None], name=key)
            if weights:
                taken[weights] = tf.sparse_placeholder(tf.float32, [None, None], name=weights)
        return Receiver(taken, taken)

    return receive

"""The Keras layer: arithmetics, arguments, refusals, and its ops on a TPU."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.references.tolerance import allowed
from compat_tests.support import fake_tpu
from tf2_engine import errors
from tf2_engine.keras import TPUEmbedding

EMB = tf.tpu.experimental.embedding
ROWS, DIM, BATCH, STEPS = 8, 3, 16, 6
START = np.random.default_rng(3).normal(size=(ROWS, DIM)).astype("f4")
ROUNDING = allowed(n_terms=BATCH, steps=STEPS, scale=2.0)
"""Of the rows, which stay below 2."""


def first_rows(shape: Any, dtype: Any = None) -> Any:
    """Initializes a table or its first shard."""
    return tf.constant(START[: shape[0]])


def one_table(combiner: str = "sum", **settings: Any) -> Any:
    table = EMB.TableConfig(ROWS, DIM, first_rows, combiner=combiner, name="users", **settings)
    return EMB.FeatureConfig(table, name="watched")


def ids_of(step: int) -> Any:
    """Makes ids that cover every row; row 0 only occurs at even steps."""
    random = np.random.default_rng(step)
    rest = random.integers(1, ROWS, BATCH - ROWS + 1)
    return tf.constant([step % 2, *range(1, ROWS), *rest][:BATCH])


def loss_of(activations: Any, step: int) -> Any:
    """Computes a loss with a different target for every sample and step."""
    goal = np.random.default_rng(100 + step).normal(size=(BATCH, DIM)).astype("f4")
    return tf.reduce_sum((activations - goal) ** 2) / BATCH


def rows_of(layer: Any) -> Any:
    (table,) = layer.embedding_tables.values()
    return table.numpy()


def train(layer: Any, optimizer: Any = None, steps: int = STEPS) -> Any:
    for step in range(steps):
        with tf.GradientTape() as tape:
            loss = loss_of(layer(ids_of(step)), step)
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
        if optimizer is not None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return rows_of(layer)


# Optimizers.

KERAS = tf.keras.optimizers
MAKERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda namespace, rate: namespace.SGD(rate),
    "Adagrad": lambda namespace, rate: namespace.Adagrad(rate),
    "Adam": lambda namespace, rate: namespace.Adam(rate, beta_1=0.8, beta_2=0.9, epsilon=1e-4),
    "Ftrl": lambda namespace, rate: namespace.Ftrl(
        rate, l1_regularization_strength=0.01, l2_regularization_strength=0.1, beta=0.2
    ),
}


class Halved(KERAS.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __call__(self, step: Any) -> Any:
        return 0.2 * tf.pow(0.5, tf.cast(step, tf.float32))

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("rate", [0.2, Halved()], ids=["constant", "schedule"])
@pytest.mark.parametrize("namespace", [KERAS, KERAS.legacy], ids=["new", "legacy"])
@pytest.mark.parametrize("name", MAKERS)
def test_both_arithmetics_train_to_the_same(name: str, namespace: Any, rate: Any) -> None:
    """An optimizer in "tpu" arithmetic trains a table nearly to the values of Keras itself.

    In Keras 2.11 and later Ftrl sets rows that a batch does not touch to another value than in
    legacy Keras and on a TPU, so it is compared on rows of every batch.
    """
    optimizers = [MAKERS[name](namespace, rate) for _ in range(2)]
    layers = [
        TPUEmbedding(one_table(), optimizer, arithmetic=arithmetic)
        for optimizer, arithmetic in zip(optimizers, ("tpu", "keras"), strict=True)
    ]

    of_tpu, of_keras = (
        train(layer, optimizer) for layer, optimizer in zip(layers, optimizers, strict=True)
    )

    rows = slice(1 if name == "Ftrl" else 0, None)
    assert np.abs(of_tpu - START)[rows].max() > 0.05
    # Adam divides by the root of few squares; Adagrad has an epsilon in Keras alone.
    np.testing.assert_allclose(of_tpu[rows], of_keras[rows], rtol=0, atol=4 * ROUNDING)


def test_adam_is_corrected_for_its_bias_or_not() -> None:
    """The rate has the correction by the step; without it, the numbers are those of a TPU alone."""

    def after(bias_correction: bool) -> Any:
        optimizer = KERAS.Adam(0.1)
        layer = TPUEmbedding(
            one_table(), optimizer, arithmetic="tpu", bias_correction=bias_correction
        )
        return train(layer, optimizer)

    engine = TPUEmbedding(one_table(), tf2_engine.Adam(0.1))
    np.testing.assert_array_equal(after(False), train(engine))
    assert np.abs(after(True) - after(False)).max() > 0.1


def test_the_rate_follows_the_optimizer() -> None:
    """A rate that is changed between steps, a callable and legacy decay hold from then on."""
    optimizer = KERAS.SGD(0.0)
    layer = TPUEmbedding(one_table(), optimizer, arithmetic="tpu")
    np.testing.assert_array_equal(train(layer), START)
    optimizer.learning_rate = 0.1
    assert np.abs(train(layer) - START).max() > 0.01

    rate = tf.Variable(0.0)
    layer = TPUEmbedding(one_table(), KERAS.legacy.SGD(lambda: rate), arithmetic="tpu")
    np.testing.assert_array_equal(train(layer), START)
    rate.assign(0.1)
    assert np.abs(train(layer) - START).max() > 0.01

    decaying = KERAS.legacy.SGD(0.5, decay=0.5)
    rate_of = tf2_engine.keras.translate_keras_optimizer(decaying).learning_rate
    rates = []
    for _ in range(3):
        rates.append(float(rate_of()))
        decaying.iterations.assign_add(1)
    # A float32 product, a sum and a quotient.
    np.testing.assert_allclose(rates, [0.5, 0.5 / 1.5, 0.25], rtol=2**-22)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_a_name_is_the_default_of_keras(name: str) -> None:
    """With a name the layer has TPU numbers, and counts the steps of the optimizer itself."""
    layer = TPUEmbedding(one_table(), name)
    optimizer = KERAS.get(name)

    of_tpu = train(layer)
    of_keras = train(TPUEmbedding(one_table(), optimizer), optimizer)

    assert layer.arithmetic == "tpu"
    assert int(layer.optimizer.iterations) == STEPS
    # As above: Adam divides by the root of few squares.
    np.testing.assert_allclose(of_tpu, of_keras, rtol=0, atol=4 * ROUNDING)


def test_the_arithmetic_is_chosen_by_the_optimizer() -> None:
    """Keras optimizers alone mean "keras", all others "tpu"; a table's own one counts."""
    assert TPUEmbedding(one_table(), KERAS.Adam()).arithmetic == "keras"
    assert TPUEmbedding(one_table(), tf2_engine.Adam()).arithmetic == "tpu"
    config = one_table(optimizer=EMB.Adagrad(0.1))
    assert TPUEmbedding(config, KERAS.Adam()).arithmetic == "tpu"
    assert TPUEmbedding(one_table(optimizer=KERAS.SGD()), EMB.SGD(0.1)).arithmetic == "keras"


def test_a_table_has_its_own_optimizer() -> None:
    quiet = one_table(optimizer=KERAS.SGD(0.0))
    loud = EMB.FeatureConfig(
        EMB.TableConfig(ROWS, DIM, tf.constant_initializer(START), combiner="sum")
    )
    before = dict(vars(quiet.table)), dict(vars(loud.table))
    layer = TPUEmbedding((quiet, loud), EMB.SGD(0.1))

    with tf.GradientTape() as tape:
        loss = tf.add_n([loss_of(each, 0) for each in layer((ids_of(0), ids_of(0)))])
    tape.gradient(loss, layer.trainable_variables)

    assert list(layer.embedding_tables) == [quiet.table, loud.table]
    np.testing.assert_array_equal(layer.embedding_tables[quiet.table], START)
    assert np.abs(layer.embedding_tables[loud.table].numpy() - START).max() > 0.01
    assert (vars(quiet.table), vars(loud.table)) == before


REFUSED = [
    (lambda: KERAS.SGD(0.1, momentum=0.9), "SGD: `momentum`=0.9.*tf2_engine.Momentum has it"),
    (lambda: KERAS.SGD(0.1, momentum=0.9, nesterov=True), "SGD: `momentum`=0.9"),
    (lambda: KERAS.Adam(amsgrad=True), "Adam: `amsgrad`=True"),
    (lambda: KERAS.Adam(clipnorm=1.0), "Adam: `clipnorm`=1.0"),
    (lambda: KERAS.legacy.Adam(clipnorm=1.0), "Adam: `clipnorm`=1.0"),
    (lambda: KERAS.SGD(clipvalue=2.0), "SGD: `clipvalue`=2.0.*`clip_gradient_min`"),
    (lambda: KERAS.Adagrad(global_clipnorm=2.0), "Adagrad: `global_clipnorm`=2.0"),
    (lambda: KERAS.Adam(weight_decay=0.1), "Adam: `weight_decay`=0.1.*`weight_decay_factor`"),
    (lambda: KERAS.Adam(use_ema=True), "Adam: `use_ema`=True"),
    (lambda: KERAS.Adagrad(epsilon=0.1), "Adagrad: `epsilon`=0.1 cannot be translated"),
    (lambda: KERAS.Ftrl(l2_shrinkage_regularization_strength=0.1), "Ftrl: `l2_shrinkage"),
    (lambda: KERAS.RMSprop(), "RMSprop has no counterpart; known: SGD, Adagrad, Adam, Ftrl"),
    (lambda: "nothing", "(?i)nothing"),
    (lambda: object(), "unsupported optimizer class"),
]


@pytest.mark.parametrize("make, message", REFUSED, ids=[row[1][:25] for row in REFUSED])
def test_settings_that_cannot_be_carried_are_refused(make: Any, message: str) -> None:
    """A setting that cannot be honoured is refused with its name, value and, if any, way out."""
    with pytest.raises((ValueError, TypeError), match=message):
        TPUEmbedding(one_table(), make(), arithmetic="tpu")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"arithmetic": "fast"}, "`arithmetic` must be one of tpu, sparsecore, keras, got 'fast'"),
        ({"optimizer": EMB.SGD(0.1), "arithmetic": "keras"}, "is not a Keras optimizer"),
    ],
)
def test_settings_that_contradict_are_refused(options: Any, message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=message):
        TPUEmbedding(**{"feature_config": one_table(), "optimizer": KERAS.SGD(0.1), **options})


# Calls.


def test_keras_arithmetic_is_that_of_an_embedding() -> None:
    """A plain tf.keras.layers.Embedding trains to the same table, to the bit."""
    ours, theirs = KERAS.Adam(0.1), KERAS.Adam(0.1)
    layer = TPUEmbedding(one_table(), ours)
    plain = tf.keras.layers.Embedding(ROWS, DIM, tf.constant_initializer(START))
    plain(ids_of(0))
    assert [variable.shape for variable in layer.trainable_variables] == [[ROWS, DIM]]

    expected = []
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(plain(ids_of(step)), step)
        gradients = tape.gradient(loss, plain.trainable_variables)
        theirs.apply_gradients(zip(gradients, plain.trainable_variables, strict=True))
    expected = plain.get_weights()[0]

    np.testing.assert_array_equal(train(layer, ours), expected)


def sparse(values: Any, dtype: Any = tf.int64) -> Any:
    return tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant(values, dtype), [2, 2])


@pytest.mark.parametrize("arithmetic", ["tpu", "keras"])
def test_weights_and_a_config_for_serving(arithmetic: str) -> None:
    """Weights combine rows; a serving config looks the same tables up in another way."""
    config = one_table("mean")
    layer = TPUEmbedding({"n": [config]}, KERAS.SGD(0.1), arithmetic=arithmetic)
    ids, weights = sparse([1, 2, 5]), sparse([1.0, 3.0, 2.0], tf.float32)

    activations = layer({"n": [ids]}, weights={"n": [weights]})["n"][0]
    served = layer({"x": ids}, serving_config={"x": EMB.FeatureConfig(config.table, 2)})["x"]

    wanted = [START[1] * np.float32(0.25) + START[2] * np.float32(0.75), START[5]]
    np.testing.assert_allclose(activations, wanted, rtol=0, atol=allowed(2, 0, 3.0))
    np.testing.assert_array_equal(served, [[START[1], START[2]], [START[5], np.zeros(DIM)]])


def test_a_batch_size_is_fixed_by_the_user_alone() -> None:
    """Without `batch_size` batches may have any size; with it, other sizes are refused."""
    free = TPUEmbedding(one_table(), EMB.SGD(0.1))
    assert [free(tf.constant(ids)).shape[0] for ids in ([1, 2], [3])] == [2, 1]
    fixed = TPUEmbedding(one_table(), EMB.SGD(0.1), batch_size=2)
    fixed(tf.constant([1, 2]))
    with pytest.raises(ValueError, match=r"built for activations of shape \(2,\).*\(3,\)"):
        fixed(tf.constant([1, 2, 3]))


def test_pipelining_is_that_of_the_engine() -> None:
    """Activations are one step old under a tape; without one, a call sees every update."""
    layer = TPUEmbedding(one_table(), EMB.SGD(0.1), True)
    engine = tf2_engine.TPUEmbedding(one_table(), EMB.SGD(0.1), True)
    for step in range(STEPS):
        engine.enqueue(ids_of(step))
        expected = engine.dequeue()
        with tf.GradientTape() as tape:
            tape.watch(expected)
            loss = loss_of(expected, step)
        engine.apply_gradients(tape.gradient(loss, expected))
        with tf.GradientTape() as tape:
            activations = layer(ids_of(step))
            loss = loss_of(activations, step)
        tape.gradient(loss, layer.trainable_variables)
        np.testing.assert_array_equal(activations, expected)

    stale = rows_of(layer)
    np.testing.assert_array_equal(layer(ids_of(0)), engine.embedding_lookup(ids_of(0)))
    assert np.abs(rows_of(layer) - stale).max() > 0.01


def test_gradients_are_computed_once() -> None:
    """A second gradient of one call would update the tables again, and is refused."""
    layer = TPUEmbedding(one_table(), EMB.SGD(0.1))
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(layer(ids_of(0)), 0)
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    assert float(gradient) == 0.0

    with pytest.raises(RuntimeError, match="were applied already"):
        tape.gradient(loss, layer.trainable_variables)


@pytest.mark.parametrize("wrap", [tf.function, lambda function: function])
def test_a_gradient_of_other_variables_trains_too(wrap: Any) -> None:
    """The gradient of a tape trains the tables, whichever variables it is asked for."""
    layer = TPUEmbedding(one_table(), EMB.SGD(0.1))
    kernel = tf.Variable(2.0)
    layer(ids_of(0))

    @wrap
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(layer(ids_of(0)) * kernel, 0)
        tape.gradient(loss, kernel)

    step()
    assert np.abs(rows_of(layer) - START).max() > 0.01


def test_the_gradient_of_a_nested_function_trains() -> None:
    """A model inside of a tf.function of its own trains as without."""

    def after(wrap: Any) -> Any:
        layer = TPUEmbedding(one_table(), EMB.SGD(0.1))
        layer(ids_of(0))
        look_up = wrap(lambda ids: layer(ids))
        for step in range(STEPS):
            with tf.GradientTape() as tape:
                loss = loss_of(look_up(ids_of(step)), step)
            tape.gradient(loss, layer.trainable_variables)
        return rows_of(layer)

    np.testing.assert_array_equal(after(tf.function), after(lambda function: function))


@pytest.mark.parametrize("arithmetic", ["tpu", "keras", None])
def test_a_frozen_layer_does_not_train(arithmetic: str | None) -> None:
    """A layer without an optimizer, which has no slots, does not train either."""
    layer = TPUEmbedding(one_table())
    if arithmetic is not None:
        layer = TPUEmbedding(one_table(), KERAS.SGD(0.1), arithmetic=arithmetic)
        layer.trainable = False

    np.testing.assert_array_equal(train(layer), START)

    assert layer.trainable_variables == []
    if arithmetic is None:
        assert list(layer.embedding.tables["users"].variables) == ["parameters"]
    else:
        assert len(layer.non_trainable_variables) == 1


@pytest.mark.parametrize("namespace", [KERAS, KERAS.legacy], ids=["new", "legacy"])
def test_slots_of_keras_are_in_the_checkpoint_of_the_optimizer(
    namespace: Any, tmp_path: pathlib.Path
) -> None:
    """In "keras" arithmetic training goes on as if uninterrupted, if the optimizer is saved."""

    def make(arithmetic: str) -> tuple[Any, Any, Any]:
        optimizer = namespace.Adam(0.1)
        layer = TPUEmbedding(one_table(), optimizer, arithmetic=arithmetic)
        return layer, optimizer, tf.train.Checkpoint(layer=layer, optimizer=optimizer)

    for arithmetic in ("keras", "tpu"):
        layer, optimizer, checkpoint = make(arithmetic)
        train(layer, optimizer)
        path = checkpoint.save(str(tmp_path / arithmetic))
        expected = train(layer, optimizer)
        for with_optimizer in (True, False):
            other, other_optimizer, everything = make(arithmetic)
            part = everything if with_optimizer else tf.train.Checkpoint(layer=other)
            part.restore(path).expect_partial()
            if not with_optimizer and arithmetic == "tpu":
                other_optimizer.iterations.assign(STEPS)  # of which the optimizer has the only copy
            same = np.array_equal(train(other, other_optimizer), expected)
            assert same == (with_optimizer or arithmetic == "tpu"), (arithmetic, with_optimizer)


# A TPU.


def test_a_layer_made_elsewhere_is_refused_on_a_tpu() -> None:
    layer = TPUEmbedding(one_table(), EMB.SGD(0.1))
    where = fake_tpu.strategy(1, 1, job="localhost").scope()
    with where, pytest.raises(RuntimeError, match=r"not made under a TPUStrategy.*strategy.scope"):
        layer(ids_of(0))


def test_a_tpu_needs_an_optimizer() -> None:
    where = fake_tpu.strategy(1, 1, job="localhost").scope()
    with where, pytest.raises(errors.InvalidSpec, match="`optimizer`=None"):
        TPUEmbedding(one_table(), None)


@pytest.mark.parametrize("arithmetic", [None, "keras"])
def test_on_a_tpu_a_call_is_a_lookup_and_its_gradient_an_update(arithmetic: str | None) -> None:
    """On a TPU the ops of a call share a name, and the layer has one virtual variable."""
    with tf.Graph().as_default(), fake_tpu.recorded() as recorded:
        strategy = fake_tpu.strategy(2, 1)
        with strategy.scope():
            layer = TPUEmbedding(
                one_table(), KERAS.legacy.SGD(0.1), batch_size=2 * BATCH, arithmetic=arithmetic
            )
            assert [variable.shape.as_list() for variable in layer.trainable_variables] == [[]]
        ids = fake_tpu.distribute(
            strategy, [tf.compat.v1.placeholder(tf.int32, [BATCH]) for _ in range(2)]
        )

        def step(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) ** 2)
            return tape.gradient(loss, layer.trainable_variables)

        strategy.run(step, args=(ids,))
        graph = tf.compat.v1.get_default_graph()
        named = {
            op.type: op.get_attr("_tpu_embedding_layer")
            for op in graph.get_operations()
            if op.type in ("RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients")
        }
        ((config, table),) = layer.embedding_tables.items()

    assert named == dict.fromkeys(
        ("RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients"), b"users_1"
    )
    assert [name for name, _ in recorded].count("EnqueueTPUEmbeddingArbitraryTensorBatch") == 1
    assert (config.name, table.shape.as_list()) == ("users", [ROWS, DIM])
    assert len(table.variables) == 2


def test_a_functional_model_is_made_for_a_tpu() -> None:
    """Shapes come from the inputs' batch size, or from `batch_size` where there is none."""
    config = {"one": one_table(), "many": one_table("mean")}
    config["many"] = EMB.FeatureConfig(config["one"].table, name="many")

    def output_shapes(size: int | None, **options: Any) -> Any:
        with fake_tpu.strategy(1, 1, job="localhost").scope(), fake_tpu.recorded():
            inputs = {
                "one": tf.keras.Input(shape=(), dtype=tf.int32, batch_size=size),
                "many": tf.keras.Input(shape=(2,), dtype=tf.int32, sparse=True),
            }
            activations = TPUEmbedding(config, EMB.SGD(0.1), **options)(inputs)
            return {key: value.shape.as_list() for key, value in activations.items()}

    both = {key: [BATCH, DIM] for key in config}
    assert output_shapes(None, batch_size=BATCH) == both
    with pytest.raises(errors.InvalidSpec, match="batch"):
        output_shapes(None)

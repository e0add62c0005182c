"""Emulated cores: the same job on one core and on several cores."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import tpu_jobs
from compat_tests.support.tiers import quick
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters

STEPS = 10
# A gradient is a mean over 16 samples of sums of at most 4 rows, taken in another order: at most
# 64 terms and so 64 rounding errors of at most 2^-24 of the largest term, in each of 10 steps.
# Weights, gradients and steps here stay below 1.
TOLERANCE = 64 * 2.0**-24 * STEPS
ONE_BATCH = estimator.tpu.InputPipelineConfig.PER_HOST_V1

OPTIMIZERS = {
    "SGD": parameters.StochasticGradientDescentParameters(0.1),
    "Adagrad": parameters.AdagradParameters(0.1),
    "non-lazy Adam": parameters.AdamParameters(0.01, lazy_adam=False),
}


@pytest.fixture(scope="module", params=quick(["Adagrad"], OPTIMIZERS))
def one_core(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Returns an optimizer, and a job that one core trained with it."""
    optimizer = OPTIMIZERS[request.param]
    job = make(str(tmp_path_factory.mktemp("one") / "job"), optimizer, None)
    job.train(clicks.input_fn, max_steps=STEPS)
    return optimizer, job


def make(model_dir: str, optimizer: Any, num_shards: int | None) -> Any:
    """Returns a job whose cores split one batch, on which the model depends as a mean alone."""
    return jobs.make(
        model_dir,
        optimizer,
        tpu_options={"num_shards": num_shards, "per_host_input_for_training": ONE_BATCH},
        model_options={"batch_norm": False, "optimizer": tf.train.GradientDescentOptimizer},
    )


@pytest.mark.parametrize(
    "num_shards",
    [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(4, marks=pytest.mark.full)],
)
def test_cores_share_a_batch(
    one_core: tuple[Any, Any], num_shards: int, tmp_path: pathlib.Path
) -> None:
    optimizer, base = one_core
    start = jobs.continue_from(jobs.first_checkpoint(base), str(tmp_path / "job"))
    job = make(start, optimizer, num_shards)
    job.train(clicks.input_fn, max_steps=STEPS)

    difference, name = jobs.largest_difference(jobs.saved(base), jobs.saved(job))
    assert difference <= TOLERANCE, f"{num_shards} cores, {name}: {difference}"
    expected, metrics = (one.evaluate(clicks.short_input_fn, steps=5) for one in (base, job))
    for metric, value in expected.items():
        assert abs(value - metrics[metric]) <= TOLERANCE, f"{num_shards} cores: {metric}"
    ours, theirs = (
        [sample["p"] for sample in one.predict(clicks.short_input_fn)] for one in (base, job)
    )
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


MINE = "a collection of the program's own"


class Keeper:
    """What a program keeps at module level: it outlives each call of the model_fn."""

    built: tf.Graph | None = None
    kept: list[Any]


def _own_collection(x: Any, use_resource: bool = False) -> Any:
    weight = tf.get_variable(
        "w", [2, 1], collections=[MINE, tf.GraphKeys.GLOBAL_VARIABLES], use_resource=use_resource
    )
    return tf.matmul(x, weight), tf.get_collection(MINE)


def _own_collection_of_resources(x: Any) -> Any:
    return _own_collection(x, use_resource=True)


def _unnamed_layers(x: Any) -> Any:
    net = tf.layers.batch_normalization(tf.layers.dense(x, 2), training=True)
    return tf.layers.dense(tf.keras.layers.Dense(2, kernel_initializer="ones")(net), 1), None


def _unnamed_variables(x: Any) -> Any:
    first, second = (
        tf.Variable(tf.ones([2, 1]), collections=[MINE, tf.GraphKeys.GLOBAL_VARIABLES])
        for _ in range(2)
    )
    return tf.matmul(x, first + second), tf.get_collection(MINE)


def _collected_objects(x: Any) -> Any:
    weight = tf.get_variable("w", [2, 1])
    tf.add_to_collection(MINE, {"weight": weight, "product": tf.matmul(x, weight)})
    (entry,) = tf.get_collection(MINE)
    return entry["product"], [entry["weight"]]


def _list_at_module_level(x: Any) -> Any:
    if Keeper.built is not x.graph:
        Keeper.built, Keeper.kept = x.graph, []
        Keeper.kept.append(tf.get_variable("w", [2, 1]))
    Keeper.kept.append(tf.matmul(x, Keeper.kept[0]))
    weight, product = Keeper.kept
    return product, [weight]


def _reused_scopes(x: Any) -> Any:
    with tf.variable_scope("a") as scope:
        first = tf.matmul(x, tf.get_variable("w", [2, 1]))
        scope.reuse_variables()
        second = tf.matmul(x, tf.get_variable("w", [2, 1]))
    assert not tf.get_variable_scope().reuse
    with tf.variable_scope("b", reuse=tf.AUTO_REUSE):
        third = tf.matmul(x, tf.get_variable("w", [2, 1]))
    return first + second + third, tf.trainable_variables(scope.name)


def _losses_and_model_variables(x: Any) -> Any:
    net = tf.layers.dense(x, 1, kernel_regularizer=tf.nn.l2_loss, name="dense")
    tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, tf.trainable_variables()[0])
    tf.losses.add_loss(tf.reduce_mean(net))
    return net + tf.losses.get_total_loss(), tf.model_variables()


def _counted_in_a_local_variable(x: Any) -> Any:
    weight = tf.get_variable("w", [2, 1])
    count = tf.get_local_variable("count", [], initializer=tf.zeros_initializer())
    with tf.control_dependencies([tf.assign_add(count, 1.0)]):
        scale = tf.identity(count)
    return scale * tf.matmul(x, weight), None


def _loop_with_a_count(x: Any) -> Any:
    weight = tf.get_variable("w", [2, 1])
    calls = tf.get_variable("calls", [], initializer=tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([tf.assign_add(calls, 1.0)]):
        start = tf.zeros_like(x[:, :1])
    _, net = tf.while_loop(
        lambda i, net: i < 3, lambda i, net: (i + 1, net + tf.matmul(x, weight)), [0, start]
    )
    return net, [weight]


KEEPERS = [
    _own_collection,
    _own_collection_of_resources,
    _unnamed_layers,
    _unnamed_variables,
    _collected_objects,
    _list_at_module_level,
    _reused_scopes,
    _losses_and_model_variables,
    _counted_in_a_local_variable,
    _loop_with_a_count,
]


@pytest.mark.parametrize("cores", [2, pytest.param(8, marks=pytest.mark.full)])
@pytest.mark.parametrize("keep", KEEPERS, ids=lambda keep: keep.__name__[1:])
def test_a_model_fn_finds_what_it_left(keep: Any, cores: int, tmp_path: pathlib.Path) -> None:
    """Cores have the variables of one, whatever a model_fn keeps where, and it is called once."""
    calls: list[int] = []

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        calls.append(params["batch_size"])
        with tf.variable_scope("model", initializer=tf.ones_initializer()):
            net, variables = keep(features)
        assert tf.train.get_or_create_global_step() is tf.train.get_global_step()
        loss = tf.reduce_mean(tf.square(net - 1.0))
        optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(2.0**-6))
        train_op = optimizer.minimize(loss, tf.train.get_global_step(), var_list=variables)
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(cores: int) -> dict[str, Any]:
        tpu = {"num_shards": cores, "per_host_input_for_training": ONE_BATCH}
        job = tpu_jobs.make(model_fn, tmp_path / str(cores), tpu=tpu)
        # All samples are the same, and so the gradient of every core is their mean to the bit.
        job.train(lambda params: tf.data.Dataset.from_tensors(tf.ones([8, 2])).repeat(), steps=2)
        return {name: job.get_variable_value(name) for name in job.get_variable_names()}

    one, several = (train(count) for count in (1, cores))

    assert calls == [8, 8 // cores]
    jobs.assert_equal(several, one)


def test_cores_draw_random_numbers_of_their_own(tmp_path: pathlib.Path) -> None:
    """Ops with a seed give every core other numbers, and every run the same ones."""
    drawn: list[Any] = []

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = tf.get_variable("w", [], initializer=tf.ones_initializer())
        numbers = [tf.random.uniform([2]), tf.random.uniform([2], seed=5)]
        host_fn = lambda *all_: tf.py_func(lambda *x: drawn.extend(x), all_, [])  # noqa: E731
        loss = weight * tf.reduce_mean(features)
        return tpu_jobs.spec(mode, loss, host_call=(host_fn, numbers))

    for run in ("a", "b"):
        seed = {"tf_random_seed": 1}
        job = tpu_jobs.make(model_fn, tmp_path / run, 4, tpu={"num_shards": 4}, config=seed)
        job.train(lambda params: tf.data.Dataset.from_tensors(tf.ones([4])).repeat(), steps=1)

    first, second = np.concatenate(drawn[:2]), np.concatenate(drawn[2:])
    np.testing.assert_array_equal(first, second)
    assert len(set(first.tolist())) == len(first) == 2 * 2 * 4


def test_sums_inside_of_functions_are_refused(tmp_path: pathlib.Path) -> None:
    """A sum over cores in a branch of TensorFlow 2's control flow is an error with a way out."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = tf.get_variable("w", [], initializer=tf.ones_initializer(), use_resource=True)
        summed = tf.function(tf.tpu.cross_replica_sum)(weight)
        return estimator.tpu.TPUEstimatorSpec(mode, loss=summed, train_op=tf.no_op())

    job = tpu_jobs.make(model_fn, tmp_path, 2, tpu={"num_shards": 2})
    with pytest.raises(errors.InvalidInput, match=r"sum over 2 cores.*disable_control_flow_v2"):
        job.train(lambda params: tf.data.Dataset.from_tensors(tf.ones([4])).repeat(), steps=1)


def test_only_the_first_core_moves_averages(tmp_path: pathlib.Path) -> None:
    """Core 0's part of each batch updates averages once per step, as in a TPU's saved copy."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        seen = tf.get_variable("seen", [], trainable=False, initializer=tf.zeros_initializer())
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(seen, tf.reduce_sum(features)))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            return tpu_jobs.spec(mode, tf.reduce_sum(features * weight), 0.25)

    tpu = {"num_shards": 2, "per_host_input_for_training": ONE_BATCH}
    job = tpu_jobs.make(model_fn, tmp_path, 2, tpu=tpu)
    job.train(lambda params: tf.data.Dataset.from_tensors([1.0, 16.0]).repeat(), steps=3)

    assert job.get_variable_value("seen") == 3 * 1.0
    # The mean over cores of the gradients, 1 and 16.
    assert job.get_variable_value("weight") == 1.0 - 3 * 0.25 * 8.5

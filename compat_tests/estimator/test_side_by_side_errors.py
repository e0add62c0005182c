"""Errors of stock's TPUEstimator, and the bridge's behaviour in each of these cases.

These tests run where stock is installed, on the software TPU if a case needs a TPU. If the bridge
raises an error too, the same `except` catches it. The tests list the cases that the bridge accepts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import tiny
from compat_tests.support import stock, tpu_jobs
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu


@dataclasses.dataclass(frozen=True)
class Case:
    """A case in which stock raises an error.

    Attributes:
        do: the function to call with a namespace and a model_dir.
        says: a part of the bridge's message; None if the bridge accepts it.
        tpu: whether stock needs a TPU for it.
    """

    do: Callable[[Any, str], Any]
    says: str | None
    tpu: bool = True


def make(namespace: Any, model_dir: str, *, use_tpu: bool = True, **options: Any) -> Any:
    return tiny.make(namespace, model_dir, [tiny.column()], use_tpu=use_tpu, **options)


def train(namespace: Any, model_dir: str, input_fn: Any = tiny.input_fn, **options: Any) -> None:
    make(namespace, model_dir, **options).train(input_fn, steps=2)


def estimator_with(**arguments: Any) -> Callable[[Any, str], Any]:
    """Returns a function that makes a TPUEstimator with these arguments alone."""

    def construct(namespace: Any, model_dir: str) -> None:
        settings = {
            "model_fn": lambda features, labels, mode, params: None,
            "config": namespace.tpu.RunConfig(model_dir=model_dir),
            "train_batch_size": 8,
            **arguments,
        }
        namespace.tpu.TPUEstimator(**settings)

    return construct


def returns(mode: str = "train", **fields: Any) -> Callable[[Any, str], Any]:
    """Returns a function that runs a model_fn without embeddings.

    Args:
        mode: "train" or "eval".
        fields: more fields of its spec, made of its output.
    """

    def run(namespace: Any, model_dir: str) -> None:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
            weight = tf.get_variable("weight", [1, 1])
            output = tf.matmul(features["x"], weight)
            return namespace.tpu.TPUEstimatorSpec(
                mode,
                loss=tf.reduce_mean(output),
                train_op=tf.assign_add(tf.train.get_global_step(), 1),
                **{name: make_field(output) for name, make_field in fields.items()},
            )

        loops = {"iterations_per_loop": 2}
        job = tpu_jobs.make(model_fn, model_dir, namespace=namespace, tpu=loops)
        if mode == "train":
            job.train(tiny.inputs("x"), steps=2)
        else:
            job.evaluate(tiny.inputs("x"), steps=1)

    return run


def spec_over(columns: Any = None, **options: Any) -> Callable[[Any, str], Any]:
    """Returns a function that trains with a spec of these settings."""

    def run(namespace: Any, model_dir: str) -> None:
        chosen = columns() if columns else [tiny.column()]
        spec = namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=chosen,
            optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
            **options,
        )
        tiny.make(namespace, model_dir, chosen, use_tpu=True, spec=spec).train(
            tiny.input_fn, steps=2
        )

    return run


def job(method: str, *args: Any, **kwargs: Any) -> Callable[[Any, str], Any]:
    """Returns a function that calls a method of a job of the tiny program."""

    def call(namespace: Any, model_dir: str) -> None:
        result = getattr(make(namespace, model_dir), method)(*args, **kwargs)
        if method == "predict":
            next(result)

    return call


def tensors(params: Any) -> Any:
    return tiny.features_of(tf.constant(0, tf.int64)), tf.ones([tiny.BATCH, 1])


def no_params() -> Any:
    """Is an input_fn without `params`."""
    return tiny.input_fn({})


def strings(number: Any) -> tf.SparseTensor:
    ids = tiny.features_of(number)["a"]
    return tf.SparseTensor(ids.indices, tf.as_string(ids.values), ids.dense_shape)


def mean_of(value: Any) -> dict[str, Any]:
    return {"m": tf.metrics.mean(value)}


PER_SHARD = {"per_host_input_for_training": False}

CASES = {
    # the constructor
    "no config": Case(estimator_with(config=None), "RunConfig", tpu=False),
    "a config that is not for TPUs": Case(
        lambda n, d: estimator_with(config=n.RunConfig(model_dir=d))(n, d), "RunConfig", tpu=False
    ),
    "context in params": Case(estimator_with(params={"context": 3}), "context", tpu=False),
    "an api version of 3": Case(
        estimator_with(export_saved_model_api_version=3),
        "export_saved_model_api_version",
        tpu=False,
    ),
    "a call per core with embeddings": Case(
        lambda n, d: make(n, d, tpu_options=PER_SHARD), "PER_HOST_V1 and PER_HOST_V2", tpu=False
    ),
    "mod without a TPU": Case(
        lambda n, d: make(
            n,
            d,
            use_tpu=False,
            spec=n.tpu.experimental.EmbeddingConfigSpec(
                feature_columns=[tiny.column()],
                optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
                partition_strategy="mod",
            ),
        ),
        None,
        tpu=False,
    ),
    # methods
    "neither steps nor max_steps": Case(job("train", tiny.input_fn), "steps"),
    "steps of 0": Case(job("train", tiny.input_fn, steps=0), "steps"),
    "negative max_steps": Case(job("train", tiny.input_fn, max_steps=-1), "max_steps"),
    "listeners that are none": Case(
        job("train", tiny.input_fn, saving_listeners=["h"], steps=1), "CheckpointSaverListener"
    ),
    "an evaluation without end": Case(
        lambda n, d: make(n, d).evaluate(lambda params: tiny.input_fn(params).take(2)), None
    ),
    "an input_fn without params": Case(job("train", no_params, steps=1), "params"),
    "an export before a training": Case(
        job("export_saved_model", "/nowhere", tiny.receiver), "checkpoint"
    ),
    "an export for nothing": Case(
        lambda n, d: (
            train(n, d),
            make(n, d, export_to_tpu=False, export_to_cpu=False).export_saved_model(
                d, tiny.receiver
            ),
        ),
        "export_to_cpu",
    ),
    # inputs
    "tensors where a dataset is needed": Case(lambda n, d: train(n, d, tensors), None),
    "a feature that is not there": Case(lambda n, d: train(n, d, tiny.inputs("b")), "'a'"),
    "ids that are words": Case(lambda n, d: train(n, d, tiny.inputs(a=strings)), "integers"),
    "three things of an input_fn": Case(
        lambda n, d: train(n, d, lambda params: (tf.ones([8]), tf.ones([8]), tf.ones([8]))),
        "3 elements",
    ),
    # columns
    "one feature in two columns": Case(
        spec_over(lambda: [tiny.column(), *tiny.shared(("a", "b"))]), "'a'"
    ),
    "an ordinary column": Case(
        spec_over(lambda: [tf.feature_column.embedding_column(tiny.identity(), 2)]),
        "EmbeddingColumn",
    ),
    "a numeric column": Case(
        spec_over(lambda: [tf.feature_column.numeric_column("x")]), "NumericColumn"
    ),
    "no columns": Case(spec_over(list), "feature_columns"),
    # what model_fns return
    "a host call that is no pair": Case(returns(host_call=lambda output: (len,)), "host_call"),
    "a scalar among metrics": Case(
        returns("eval", eval_metrics=lambda output: (mean_of, [tf.reduce_mean(output)])), None
    ),
}


def raised(case: Case, namespace: Any, model_dir: pathlib.Path) -> Exception | None:
    on_tpu = case.tpu and namespace is stock.ESTIMATOR
    with software_tpu.stock_on_software_tpu() if on_tpu else contextlib.nullcontext():
        try:
            case.do(namespace, str(model_dir))
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if case.tpu else [])
        for name, case in CASES.items()
    ],
)
def test_what_stock_refuses(name: str, tmp_path: pathlib.Path) -> None:
    """The bridge raises an error of stock's class that names the cause, or accepts the case."""
    case = CASES[name]
    theirs = raised(case, stock.ESTIMATOR, tmp_path / "stock")
    ours = raised(case, estimator, tmp_path / "bridge")

    assert theirs is not None
    if case.says is None:
        assert ours is None
        return
    assert isinstance(ours, type(theirs)), (type(ours), type(theirs), theirs)
    assert case.says in str(ours)

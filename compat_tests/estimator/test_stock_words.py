"""Refusals have stock's built-in exception type and the words that programs look for.

Every row holds for both sides: where stock is installed, stock's own message has the words, too.
"""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import tiny
from estimator_bridge import errors, estimator
from tf2_engine import tf_compat

Call = Callable[[Any], Any]


def config(**settings: Any) -> Call:
    return lambda e: e.RunConfig(**settings)


def tpu_config(**settings: Any) -> Call:
    return lambda e: e.tpu.TPUConfig(**settings)


def spec(mode: str = "train", **fields: Any) -> Call:
    """Returns a function that makes an EstimatorSpec; functions among the fields are called."""

    def make(e: Any) -> Any:
        settings = {"loss": lambda: tf.constant(1.0), "train_op": tf.no_op, **fields}
        return e.EstimatorSpec(mode, **{k: v() if callable(v) else v for k, v in settings.items()})

    return make


def elsewhere() -> Any:
    with tf.Graph().as_default():
        return tf.constant(1.0)


def receiver(features: Any, tensors: Any, **more: Any) -> Call:
    return lambda e: e.export.ServingInputReceiver(features, tensors, **more)


def text() -> Any:
    return tf.constant(["a"])


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Is never called."""


def job(**options: Any) -> Call:
    return lambda e: e.Estimator(**{"model_fn": model_fn, **options})


def method(name: str, *arguments: Any, **options: Any) -> Call:
    """Returns a function that calls a method of an Estimator that has no checkpoint."""
    return lambda e: getattr(e.Estimator(model_fn), name)(*arguments, **options)


def of_tpu(use_tpu: bool = True, **options: Any) -> Call:
    def make(e: Any) -> Any:
        settings = {"model_fn": model_fn, "config": e.tpu.RunConfig(), "train_batch_size": 8}
        return e.tpu.TPUEstimator(use_tpu=use_tpu, **{**settings, **options})

    return make


def overriding(e: Any) -> Any:
    """Makes an estimator whose class has a method of its own by the name of one of stock's."""

    class Mine(e.Estimator):  # type: ignore[misc, name-defined]
        def predict(self, *arguments: Any, **options: Any) -> Any:
            """Takes the place of the estimator's."""

    return Mine(model_fn)


HOOKS = "All hooks must be SessionRunHook instances"
LISTENERS = "All saving_listeners must be `CheckpointSaverListener` instances"

VALUE_ERRORS: dict[str, tuple[str, Call]] = {
    "summary steps": ("save_summary_steps should be >= 0", config(save_summary_steps=-1)),
    "checkpoint steps": (
        "save_checkpoints_steps should be >= 0",
        config(save_checkpoints_steps=-1),
    ),
    "both intervals": (
        "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set",
        config(save_checkpoints_steps=1, save_checkpoints_secs=1),
    ),
    "model_dir": ("model_dir should be non-empty", config(model_dir="")),
    "session": ("session_config must be instance of ConfigProto", config(session_config={})),
    "kept": ("keep_checkpoint_max should be >= 0", config(keep_checkpoint_max=-1)),
    "hours": (
        "keep_checkpoint_every_n_hours should be > 0",
        config(keep_checkpoint_every_n_hours=0),
    ),
    "seed": ("tf_random_seed must be integer", config(tf_random_seed=1.5)),
    "devices": (
        'device_fn must be callable with exactly one argument "op"',
        config(device_fn=lambda x: x),
    ),
    "replacing": ("Replacing master is not supported", lambda e: e.RunConfig().replace(master="a")),
    "cores per replica": (
        "num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; got 7",
        tpu_config(num_cores_per_replica=7),
    ),
    "shards": ("must be positive", tpu_config(num_shards=0)),
    "iterations": ("must be positive", tpu_config(iterations_per_loop="-1h")),
    "partition mode": (
        "input_partition_dims is only supported in PER_HOST_V2 mode",
        tpu_config(input_partition_dims=[[1, 2]], num_cores_per_replica=2),
    ),
    "partition cores": (
        "input_partition_dims requires setting num_cores_per_replica",
        tpu_config(input_partition_dims=[[1, 2]], per_host_input_for_training=3),
    ),
    "no loss": ("Missing loss", spec(loss=None)),
    "loss of a shape": ("Loss must be scalar", spec(loss=lambda: tf.zeros([2]))),
    "loss from elsewhere": ("must be from the default graph", spec(loss=elsewhere)),
    "no train_op": ("Missing train_op", spec(train_op=None)),
    "no predictions": ("Missing predictions", spec("infer")),
    "mode": ("mode of EstimatorSpec cannot be changed", lambda e: spec()(e)._replace(mode="eval")),
    "max_steps": ("Must specify max_steps > 0", lambda e: e.TrainSpec(list, max_steps=0)),
    "steps": ("Must specify steps > 0", lambda e: e.EvalSpec(list, steps=0)),
    "delay": (
        "Must specify start_delay_secs >= 0",
        lambda e: e.EvalSpec(list, start_delay_secs=-1),
    ),
    "exports": ("positive number", lambda e: e.BestExporter(exports_to_keep=0)),
    "features": ("features must be defined", receiver(None, "x")),
    "feature": (
        "feature a must be a Tensor, SparseTensor, or RaggedTensor",
        lambda e: receiver({"a": [1]}, text())(e),
    ),
    "keys": ("feature keys must be strings or ints", lambda e: receiver({1.5: text()}, text())(e)),
    "receiver tensors": ("receiver_tensors must be defined", lambda e: receiver(text(), None)(e)),
    "no model_fn": ("model_fn.* must be", job(model_fn=None)),
    "no features": ("features", job(model_fn=lambda labels: None)),
    "config": ("an instance of `RunConfig`", job(config=3)),
    "warm start": ("warm_start_from", job(warm_start_from=3)),
    "model_dirs": (
        "`model_dir` are set both in constructor and `RunConfig`",
        lambda e: e.Estimator(model_fn, "a", e.RunConfig("b")),
    ),
    "arguments": (
        "model_fn .* has following not expected args",
        job(model_fn=lambda features, more: None),
    ),
    "params": ("does not include params argument", job(params={"a": 1})),
    "a member": ("cannot override members of Estimator.*predict", overriding),
    "both steps": (
        "Can not provide both steps and max_steps",
        method("train", list, steps=1, max_steps=1),
    ),
    "steps of training": ("Must specify steps > 0", method("train", list, steps=-1)),
    "steps of evaluation": ("Must specify steps > 0", method("evaluate", list, steps=0)),
    "no training": ("[Cc]ould not find trained model", method("get_variable_names")),
    "reserved": ("are reserved keys", of_tpu(params={"batch_size": 8})),
    "train_batch_size": ("`train_batch_size` cannot be `None`", of_tpu(train_batch_size=None)),
    "batch size": ("must be positive", of_tpu(eval_batch_size=0)),
    "partition_strategy": (
        'Invalid partition_strategy odd. Must be one of "mod" or "div"',
        lambda e: e.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=[tiny.column()],
            optimization_parameters=tiny.sgd(0.1),
            partition_strategy="odd",
        ),
    ),
}
TYPE_ERRORS: dict[str, tuple[str, Call]] = {
    "shards of a type": ("must be int", tpu_config(num_shards=1.5)),
    "loss": ("loss must be Tensor", spec(loss=1.0)),
    "train_op": ("train_op must be Operation or Tensor", spec(train_op="go")),
    "predictions": (r"predictions\[p\] must be Tensor", spec("infer", predictions={"p": 1})),
    "metrics": ("eval_metric_ops must be a dict", spec(eval_metric_ops=[1])),
    "metric": (
        r"Values of eval_metric_ops must be \(metric_value, update_op\) tuples",
        spec(eval_metric_ops={"m": 1}),
    ),
    "scaffold": (r"scaffold must be tf\.train\.Scaffold", spec(scaffold="s")),
    "hooks of a spec": (HOOKS, spec(training_hooks=["h"])),
    "input_fn": ("`input_fn` must be callable", lambda e: e.TrainSpec("no")),
    "name": ("`name` must be string", lambda e: e.EvalSpec(list, name=1)),
    "hooks": (
        "All hooks must be `SessionRunHook` instances",
        lambda e: e.TrainSpec(list, hooks=["h"]),
    ),
    "listeners": (LISTENERS, lambda e: e.TrainSpec(list, saving_listeners=["l"])),
    "exporters": ("`exporters` must be an Exporter", lambda e: e.EvalSpec(list, exporters=3)),
    "hooks of training": ("must be a SessionRunHook", method("train", list, steps=1, hooks=["h"])),
    "batch size of a type": ("must be int", of_tpu(train_batch_size=1.5)),
}


@pytest.mark.parametrize("name", [*VALUE_ERRORS, *TYPE_ERRORS])
def test_the_type_and_words_are_those_of_stock(namespace: Any, name: str) -> None:
    kind = ValueError if name in VALUE_ERRORS else TypeError
    words, call = (VALUE_ERRORS | TYPE_ERRORS)[name]
    with tf.Graph().as_default(), pytest.raises(kind, match=words) as caught:
        call(namespace)
    assert namespace is not estimator or isinstance(caught.value, errors.EngineError)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_wrong_batch_size_is_reported_before_a_wrong_input_fn(mode: str, tmp_path: Any) -> None:
    """Of both faults stock reports the size, which does not divide by the cores, first."""
    two_cores = estimator.tpu.RunConfig(tpu_config=estimator.tpu.TPUConfig(num_shards=2))
    sizes = {"train_batch_size": 7, "eval_batch_size": 7}

    def with_params(features: Any, labels: Any, mode: str, params: Any) -> Any:
        """Is never called."""

    made = of_tpu(model_fn=with_params, config=two_cores, model_dir=str(tmp_path), **sizes)
    run = {"train": "train", "eval": "evaluate"}[mode]
    with pytest.raises(ValueError, match=f"{mode} batch size 7 must be divisible by .* 2"):
        getattr(made(estimator), run)(lambda: None, steps=1)


CHIEF, MASTER = {"chief": ["a:1"]}, {"master": ["a:1"]}


def at(cluster: Any, **task: Any) -> Any:
    return {"cluster": cluster, "task": task}


CLUSTERS: dict[str, tuple[str, Any]] = {
    "a task of another type": ("task type must be WORKER", {"task": {"type": "ps", "index": 0}}),
    "a task with a number": ("task index must be 0", {"task": {"type": "worker", "index": 1}}),
    "no chief": ('it must have one "chief" node', {"cluster": {"worker": ["a:1"]}}),
    "two chiefs": ('must have only one "chief" node', {"cluster": {"chief": ["a:1", "b:1"]}}),
    "both": ("job `chief` is not supported", {"cluster": {**CHIEF, **MASTER}}),
    "no type": ("task type must be set", at(CHIEF, index=0)),
    "no index": ("task index must be set", at(CHIEF, type="chief")),
    "below 0": ("Task index must be non-negative", at(CHIEF, type="chief", index=-1)),
    "no such type": ("is not a valid task_type", at(CHIEF, type="worker", index=0)),
    "no such task": ("is not a valid task_id", at(CHIEF, type="chief", index=1)),
    "an evaluator of a master": (
        "task_type `evaluator` is not supported",
        at(MASTER, type="evaluator", index=0),
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_bad_cluster_is_refused_in_the_words_of_stock(
    namespace: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, value = CLUSTERS[name]
    monkeypatch.setenv("TF_CONFIG", json.dumps(value))
    with pytest.raises(ValueError, match=words):
        namespace.RunConfig()


def test_an_object_around_a_tensor_is_a_feature(namespace: Any) -> None:
    """A receiver takes what TensorFlow was told to convert, if it has a `tensor`."""

    class Labelled:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

    with tf.Graph().as_default():
        feature, tensor = Labelled(tf.constant([1])), tf.constant(["a"])
        with pytest.raises(ValueError, match="must be a Tensor"):
            namespace.export.ServingInputReceiver({"a": feature}, tensor)
        tf.register_tensor_conversion_function(
            Labelled, lambda value, dtype=None, name=None, as_ref=False: value.tensor
        )
        serving_receiver = namespace.export.ServingInputReceiver({"a": feature}, tensor)
    assert serving_receiver.features == {"a": feature}


def test_export_outputs_are_refused_as_stock_does() -> None:
    outputs = tf_compat.export_output_classes()["PredictOutput"]
    with tf.Graph().as_default():
        prediction = {"p": tf.constant(1.0)}
        several = {"a": outputs(prediction), "b": outputs(prediction)}
        with pytest.raises(ValueError, match=r"Multiple .*export_outputs.* were provided"):
            estimator.EstimatorSpec("infer", predictions=prediction, export_outputs=several)


@pytest.mark.parametrize("kind", ["EstimatorSpec", "tpu.TPUEstimatorSpec"])
def test_a_spec_without_a_mode_is_taken(kind: str, namespace: Any) -> None:
    """A model_fn that passes no mode on is not refused, on either side."""
    make = operator.attrgetter(kind)(namespace)
    with tf.Graph().as_default():
        loss = tf.constant(1.0)
        assert make(mode=None, loss=loss, train_op=tf.no_op()).loss is loss
        assert make(mode=None).mode is None


@pytest.mark.parametrize(
    "name", ["EstimatorSpec", "tpu.TPUEstimatorSpec", "TrainSpec", "EvalSpec", "RunConfig"]
)
def test_errors_name_the_class_that_was_called(name: str) -> None:
    """The error of a wrong argument names the public class, also where a private one checks it."""
    kind = operator.attrgetter(name)(estimator)
    first = next(iter(inspect.signature(kind).parameters))
    with pytest.raises(errors.EngineError, match=f"^`{name.rpartition('.')[2]}`: `{first}` must"):
        kind(**{first: 3.5})

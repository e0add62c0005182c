"""Trainers and model_fns for the tests of `tf2_engine.training.Trainer`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf2_engine import training

v1 = tf.compat.v1

BATCH, ROWS = 4, 10
RATE = 0.5
START = 0.5
NEAR = 1e-6
"""Allowed error of sums of a few float32 numbers of order 1 that are added in another order."""

Model = Callable[..., Any]
Arrays = dict[str, np.ndarray]


def embedding() -> training.Embedding:
    of_tables = tf.tpu.experimental.embedding
    start = tf.constant_initializer(START)
    table = of_tables.TableConfig(ROWS, 2, start, of_tables.SGD(RATE), "sum", "words")
    return training.Embedding({"word": of_tables.FeatureConfig(table)})


def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
    """Returns a hundred batches of one word per sample."""
    assert params["batch_size"] == BATCH
    assert params["context"].current_input_fn_deployment()[2:] == (1, 1)

    def features(number: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
        where = [[sample, 0] for sample in range(BATCH)]
        ids = (number + tf.range(BATCH, dtype=tf.int64)) % ROWS
        return {"word": tf.SparseTensor(where, ids, [BATCH, 1])}, tf.ones([BATCH, 1])

    return tf.data.Dataset.range(100).map(features)


def make(model_fn: Model, folder: pathlib.Path, **settings: Any) -> training.Trainer:
    return training.Trainer(
        model_fn,
        config=training.RunConfig(str(folder), tf_random_seed=1, **settings),
        **{f"{mode}_batch_size": BATCH for mode in ("train", "eval", "predict")},
        embedding_config_spec=embedding(),
    )


def model(train: Callable[[Any], Any], regularizer: Any = None, **of_spec: Any) -> Model:
    """Returns a model_fn of a linear model that trains by a function of the loss."""

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        scale = v1.get_variable("scale", [1], initializer=v1.ones_initializer())
        net = v1.layers.dense(features["word"], 1, kernel_regularizer=regularizer) * scale
        if mode == training.ModeKeys.PREDICT:
            return training.ModelSpec(mode, predictions={"net": net})
        loss = v1.losses.mean_squared_error(labels, net)
        if mode == training.ModeKeys.EVAL:
            metrics = (lambda scale: {"scale": v1.metrics.mean(scale)}, [scale])
            return training.ModelSpec(mode, loss=loss, eval_metrics=metrics)
        return training.ModelSpec(mode, loss=loss, train_op=train(loss), **of_spec)

    return model_fn


class Receiver:
    """The serving inputs of the model."""

    def __init__(self) -> None:
        word = v1.placeholder(tf.int64, [None, 1])
        self.features, self.receiver_tensors = {"word": word}, {"word": word}


def minimized(loss: tf.Tensor) -> Any:
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    return training.minimize(optimizer, loss, v1.train.get_global_step())


def values(trainer: training.Trainer) -> Arrays:
    trainer.engine.retrieve()
    tables = trainer.engine.embedding_tables
    rows = {str(getattr(table, "name", table)): tables[table].numpy() for table in tables}
    return {**rows, **{name: each.numpy() for name, each in trainer.variables.items()}}


class Seen:
    """A callback that keeps the values at the start and after each step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.steps: list[Arrays] = []

    def on_train_begin(self) -> None:
        self.steps.append(values(self.trainer))

    def on_train_batch_end(self, step: int) -> None:
        assert step == len(self.steps)
        self.steps.append(values(self.trainer))


def trained(folder: pathlib.Path, model_fn: Model, steps: int) -> list[Arrays]:
    seen = Seen()
    seen.trainer = make(model_fn, folder)
    seen.trainer.train(input_fn, max_steps=steps, callbacks=[seen])
    assert int(seen.trainer.step.numpy()) == steps
    return seen.steps


def change(steps: list[Arrays]) -> Arrays:
    return {name: steps[1][name] - steps[0][name] for name in steps[0]}


class Watching(v1.train.SessionRunHook):
    """A hook that keeps what it asks for, and stops at a step."""

    def __init__(self, last: int) -> None:
        self.calls: list[str] = []
        self.seen: list[Any] = []
        self._last = last

    def begin(self) -> None:
        self._step = v1.train.get_global_step()
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append(f"created at {session.run(self._step)}")

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs({"step": self._step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(int(run_values.results["step"]))
        if self.seen[-1] + 1 == self._last:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append("end")

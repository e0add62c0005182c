"""A `Trainer` whose input gives some batches and then none, with the arguments of `stuck`.

python -m compat_tests.programs.stuck_trainer DIRECTORY HOW [TASK]
"""

from __future__ import annotations

import pathlib
import sys
import time
from typing import Any

import tensorflow as tf

from compat_tests.programs import stuck
from tf2_engine import training

BATCH = 4


def make(directory: pathlib.Path, how: str) -> training.Trainer:
    """Returns the trainer, which writes a checkpoint every second step."""

    def compute(step: Any) -> Any:
        if how == "slow" and step == stuck.STEPS:
            (directory / "stuck").touch()
            time.sleep(stuck.SLOW_SECONDS)
        return step

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        net = tf.compat.v1.layers.dense(features["word"], 1)
        if mode == training.ModeKeys.PREDICT:
            return training.ModelSpec(mode, predictions={"net": net})
        step = tf.compat.v1.train.get_global_step()
        loss = tf.reduce_mean(tf.square(net - labels))
        if mode == training.ModeKeys.EVAL:
            return training.ModelSpec(mode, loss=loss)
        with tf.control_dependencies([tf.numpy_function(compute, [step], tf.int64)]):
            loss = tf.identity(loss)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        return training.ModelSpec(
            mode, loss=loss, train_op=training.minimize(optimizer, loss, step)
        )

    of_tables = tf.tpu.experimental.embedding
    table = of_tables.TableConfig(10, 2, None, of_tables.SGD(0.1), "sum", "words")
    return training.Trainer(
        model_fn,
        config=training.RunConfig(str(directory / "model"), save_checkpoints_steps=2),
        **{f"{mode}_batch_size": BATCH for mode in ("train", "eval", "predict")},
        embedding_config_spec=training.Embedding({"word": of_tables.FeatureConfig(table)}),
    )


def input_of(directory: pathlib.Path, how: str) -> Any:
    def batch_of(number: Any) -> Any:
        ids = (number + tf.range(BATCH, dtype=tf.int64)) % 10
        word = tf.SparseTensor([[sample, 0] for sample in range(BATCH)], ids, [BATCH, 1])
        return {"word": word}, tf.ones([BATCH, 1])

    def input_fn() -> Any:
        numbers = lambda: stuck.numbers(directory, how)  # noqa: E731
        spec = tf.TensorSpec([], tf.int64)
        data = tf.data.Dataset.from_generator(numbers, output_signature=spec).map(batch_of)
        return data.prefetch(1) if how == "prefetched" else data

    return input_fn


def main(directory: pathlib.Path, how: str, task: str = "train") -> None:
    directory.mkdir(exist_ok=True)
    trainer = make(directory, how)
    waits, whole = input_of(directory, how), input_of(directory, stuck.WHOLE)
    if task == "train":
        trainer.train(waits, max_steps=500)
    elif task == "between":
        train_spec = training.TrainSpec(input_of(directory, "never"), max_steps=500)
        training.train_and_evaluate(trainer, train_spec, training.EvalSpec(waits, steps=500))
    else:
        trainer.train(whole)
        list(trainer.predict(waits)) if task == "predict" else trainer.evaluate(waits, steps=500)
    sys.stdout.write("went on\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])

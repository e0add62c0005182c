"""Runs Estimators without embeddings, reads their exports, and reads and writes events."""

from __future__ import annotations

import glob
import os
import pathlib
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import houses, jobs
from estimator_bridge import estimator
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from tf2_engine import tf_compat
from tf2_engine.summaries.events import EventFile

OUTPUTS = tf_compat.export_output_classes()
STEPS = 5

if HAS_STOCK:
    from compat_tests.support import stock


def make(tmp_path: pathlib.Path, kind: Any = Estimator, name: str = "job", **options: Any) -> Any:
    """Creates an Estimator for the house program: ours, unless `kind` is stock's class."""
    namespace = estimator if kind is Estimator else stock.ESTIMATOR
    vocabulary = houses.write_vocabulary(tmp_path / "streets.txt")
    outputs = options.pop("outputs", None)
    prefix = options.pop("prefix", "")
    config = houses.run_config(namespace, tmp_path / name, **options.pop("config", {}))
    model_fn = houses.make_model_fn(namespace, vocabulary, outputs, prefix)
    return kind(model_fn, config=config, **options)


def several_outputs(predictions: dict[str, Any]) -> dict[str, Any]:
    price = predictions["price"]
    return {
        "serving_default": OUTPUTS["PredictOutput"](predictions),
        "value": OUTPUTS["RegressionOutput"](price),
        "classes": OUTPUTS["ClassificationOutput"](
            scores=price, classes=tf.as_string(tf.cast(price, tf.int32))
        ),
    }


def run_signature(path: bytes, name: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """Computes the outputs of a signature of a SavedModel, in a new graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.loader.load(session, ["serve"], os.fsdecode(path)).signature_def
        inputs, outputs = signatures[name].inputs, signatures[name].outputs
        return session.run(
            {key: info.name for key, info in outputs.items()},
            {inputs[key].name: value for key, value in feeds.items()},
        )


class Terminate(tf.train.SessionRunHook):
    """Sends SIGTERM to this process during a given step."""

    def __init__(self, step: int) -> None:
        self._remaining = step

    def before_run(self, run_context: Any) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def started(job: Any) -> dict[str, np.ndarray]:
    """Trains a job for one step, and returns the initial values of its variables."""
    job.train(houses.data, steps=1)
    return jobs.saved(job, jobs.first_checkpoint(job))


def events(folder: str) -> list[tuple[int, str, Any]]:
    """Lists step, tag, and number or text of every value in the event files of a folder."""
    values = []
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    values.append((event.step, value.tag, value.simple_value))
                else:
                    values.append((event.step, value.tag, value.WhichOneof("value")))
    return values


def write_scalars(folder: Any, by_step: Mapping[int, Mapping[str, float]]) -> None:
    """Writes scalars by step in an event file of its own, as evaluations do."""
    file = EventFile(str(folder))
    for step, scalars in by_step.items():
        file.scalars(step, scalars)
    file.flush()

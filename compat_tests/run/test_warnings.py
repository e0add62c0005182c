"""Warnings announce changed numbers; an ordinary program does not cause any."""

from __future__ import annotations

import io
import logging
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import tf2_engine
from compat_tests.programs import clicks, clicks_served, houses, jobs, killed
from compat_tests.support import base_jobs
from compat_tests.training import trainers
from estimator_bridge import estimator
from tf2_engine import keras, log, training

PACKAGES = tuple(
    os.path.dirname(str(sys.modules[name].__file__)) for name in ("estimator_bridge", "tf2_engine")
)
Lines = list[str]


def is_ours(path: str) -> bool:
    """Returns whether a file belongs to one of the packages."""
    return path.startswith(PACKAGES)


class _Keep(logging.Handler):
    """Keeps the warnings that the packages log."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if is_ours(record.pathname):
            self._lines.append(f"{record.pathname}:{record.lineno}: {record.getMessage()}")


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """Warnings of the packages, by `logging` and by `warnings`."""
    lines: Lines = []

    def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        frame: Any = sys._getframe()
        while frame.f_code.co_filename in (__file__, warnings.__file__):
            frame = frame.f_back
        if is_ours(frame.f_code.co_filename):  # which a `stacklevel` may hide
            lines.append(f"{filename}:{lineno}: {category.__name__}: {message}")

    handler = _Keep(lines)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        logging.getLogger().addHandler(handler)  # which gets those of TensorFlow's logger, too
        yield lines
        logging.getLogger().removeHandler(handler)


def on_engine(folder: pathlib.Path) -> None:
    """Trains, evaluates, predicts and exports a TPUEstimator with use_tpu=True."""
    job = jobs.make(str(folder))
    job.train(clicks.input_fn, steps=2)
    job.evaluate(clicks.short_input_fn)
    next(job.predict(clicks.short_input_fn))
    job.export_saved_model(folder / "exported", clicks_served.receiver)


EXPECTED = {"on_engine": ["Feature 'clicked': max_sequence_length=3: the exported model cuts"]}
"""The warnings of an export with a sequence, which answers otherwise than stock's."""


def off_tpu(folder: pathlib.Path) -> None:
    job = jobs.make(str(folder), use_tpu=False)
    job.train(clicks.input_fn, steps=2)
    job.evaluate(clicks.short_input_fn)


def with_dicts(folder: pathlib.Path) -> None:
    """Trains with config dicts, without a model_dir."""
    job = killed.make(folder)
    job.train(killed.by_step, steps=2)
    estimator.Estimator(lambda features, labels, mode: None)


def plain(folder: pathlib.Path) -> None:
    """Trains, evaluates and exports an Estimator without tables."""
    job = base_jobs.make(folder)
    spec = estimator.TrainSpec(houses.data, max_steps=2)
    estimator.train_and_evaluate(job, spec, estimator.EvalSpec(houses.data, steps=1))


def canned(folder: pathlib.Path) -> None:
    columns = [tf.feature_column.numeric_column("area", shape=[2])]
    job = estimator.LinearRegressor(columns, model_dir=str(folder))

    def input_fn() -> Any:
        return houses.data(2).map(lambda features, label: ({"area": features["area"]}, label))

    job.train(input_fn)
    job.evaluate(input_fn)


def trainer(folder: pathlib.Path) -> None:
    """Trains, evaluates and predicts with a `Trainer`; makes another one without a model_dir."""
    job = trainers.make(trainers.model(trainers.minimized), folder)
    job.train(trainers.input_fn, steps=2)
    job.evaluate(trainers.input_fn, steps=1)
    next(job.predict(trainers.input_fn))
    training.Trainer(lambda: None, embedding_config_spec=trainers.embedding())


def by_hand(folder: pathlib.Path) -> None:
    """Trains with the engine itself, and saves it."""
    table = tf2_engine.TableSpec("words", 8, 2, "sum", tf2_engine.Adagrad(0.1))
    spec = tf2_engine.EngineSpec((table,), (tf2_engine.FeatureSpec("ids", "words"),))
    embedding = tf2_engine.TPUEmbedding(spec)
    with embedding.step():
        embedding.enqueue({"ids": tf.constant([1, 2])})
        embedding.apply_gradients(embedding.dequeue())
    tf.train.Checkpoint(embedding=embedding).write(str(folder / "saved"))


def keras_layer(folder: pathlib.Path) -> None:
    table = tf.tpu.experimental.embedding.TableConfig(8, 2)
    feature = tf.tpu.experimental.embedding.FeatureConfig(table)
    layer = keras.TPUEmbedding({"ids": feature}, tf.tpu.experimental.embedding.SGD(0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"ids": tf.constant([1, 2])}, training=True)["ids"])
    tape.gradient(loss, layer.trainable_variables)


PROGRAMS: tuple[Callable[[pathlib.Path], None], ...] = (
    *(on_engine, off_tpu, with_dicts, plain, canned),
    *(trainer, by_hand, keras_layer),
)


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_an_ordinary_program_is_not_warned(
    program: Callable[[pathlib.Path], None], tmp_path: pathlib.Path, warned: Lines
) -> None:
    """A program of each kind with usual settings runs with no warning but the expected ones."""
    program(tmp_path)
    expected = EXPECTED.get(program.__name__, [])
    assert [text in line for text, line in zip(expected, warned, strict=True)] == [True] * len(
        expected
    )


@pytest.mark.full
def test_a_program_whose_numbers_change_is_warned(tmp_path: pathlib.Path, warned: Lines) -> None:
    """The same program with a setting that stock ignores is warned: the fixture sees warnings."""
    jobs.make(str(tmp_path), spec_options={"clipping_limit": 0.5}).train(clicks.input_fn, steps=1)
    assert ["`clipping_limit`=0.5" in line for line in warned] == [True]
    warned.clear()
    tf2_engine.ProximalYogi(0.1)
    assert ["UserWarning" in line for line in warned] == [True]


@pytest.mark.whole
def test_a_message_of_traced_code_is_printed_once() -> None:
    """Two handlers write to the same stream, the root logger's and TensorFlow's."""
    stream = io.StringIO()
    handlers = [(each, logging.StreamHandler(stream)) for each in (logging.root, tf.get_logger())]
    for logger, handler in handlers:
        logger.addHandler(handler)
    try:

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            log.warning("said while tracing")
            return x + 1

        assert step(tf.constant(1)) == 2
    finally:
        for logger, handler in handlers:
            logger.removeHandler(handler)

    assert stream.getvalue().count("said while tracing") == 1

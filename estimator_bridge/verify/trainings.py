"""Has a program of TensorFlow 2 write down what it does: of classes that it declares."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

import tf2_engine
from estimator_bridge import declared, errors
from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.conversion import convert, find
from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify import taps
from estimator_bridge.verify.description import describe_training, variable_of
from estimator_bridge.verify.recorder import EVERY_WHEN_PIPELINED, Recorder, overheard
from estimator_bridge.verify.recording import VARIABLES, Values
from tf2_engine.backends import HostDriver

_METHODS = ("train", "restore", "evaluate", "predict")


class _Made(NamedTuple):
    """An instance of a declared class, and what it is made with.

    Attributes:
        job: the instance.
        spec: its EmbeddingConfigSpec.
        batch_size: of the global batch of a training; None is not known.
        every: steps from one look at the variables to the next.
    """

    job: Any
    spec: Any
    batch_size: int | None
    every: int


class Trainings:
    """Records, for a recorder, instances of classes that a program declares.

    Args:
        recorder: what the side is told, and what it writes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[int, _Made] = {}

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """While it is open, classes that are declared are recorded, and their engines.

        An engine that a program builds by itself otherwise, before any TPUEstimator, ends the run:
        what it trains with, and in which order, only the program knows.
        """
        kind: Any = tf2_engine.TPUEmbedding
        stock = kind.__init__

        @functools.wraps(stock)
        def init(engine: Any, *args: Any, **kwargs: Any) -> None:
            recorder = self._recorder
            if not self._made and not recorder.has_estimators:
                raise errors.InvalidInput(
                    "The program builds a tf2_engine.TPUEmbedding by itself, and verify runs "
                    "programs that train a TPUEstimator, or a class that is declared with "
                    "@estimator_bridge.verifiable, such as the Trainer that `migrate --form tf2` "
                    "writes. Declare the class that trains, or compare what the program saves: "
                    "--against-checkpoint; see docs/verify.md."
                )
            if self._made and recorder.side.native is not None:
                kwargs.setdefault("driver", HostDriver(native=recorder.side.native))
            stock(engine, *args, **kwargs)

        kind.__init__ = init
        try:
            with declared.recorded(self._declared):
                yield
        finally:
            kind.__init__ = stock

    def _declared(self, kind: Any) -> None:
        missing = [name for name in _METHODS if not callable(getattr(kind, name, None))]
        if missing:
            raise errors.InvalidInput(
                f"{kind.__name__} is declared with @estimator_bridge.verifiable and has no "
                f"{', '.join(missing)}; the decorator's documentation says what verify calls."
            )
        methods = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._recorder.predicted,
        }
        if hasattr(kind, "export_saved_model"):
            methods["export_saved_model"] = self._recorder.exported
        for name, method in methods.items():
            setattr(kind, name, overheard(getattr(kind, name), method))

    def _init(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> None:
        side, named = self._recorder.side, type(job).__name__
        if side.stock or side.use_tpu is False:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({named}), which side {side.name!r} cannot "
                "run: let the side be bridge, bridge-native or bridge-ops."
            )
        if side.software_tpu:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({named}), under the strategy that it "
                f"opens itself; side {side.name!r} runs TPUEstimators. Let the side be bridge."
            )
        if given.get("embedding_config_spec") is None or given.get("model_fn") is None:
            raise errors.InvalidInput(
                f"{named} is made without `embedding_config_spec` or `model_fn`, by which verify "
                "knows its tables and activations. Compare what the program saves: "
                "--against-checkpoint."
            )
        spec = given["embedding_config_spec"]
        legacy = read_spec(spec)
        own = given.get("model_dir") or getattr(given.get("config"), "model_dir", None)
        given["model_dir"] = self._recorder.directory(own)
        given["model_fn"] = taps.tapped_model_fn(
            given["model_fn"],
            {feature.key for feature in legacy.features},
            self._recorder.tapped,
            lambda: self._recorder.training,
        )
        pipelined = legacy.pipeline_execution_with_tensor_core
        every = self._recorder.every or (EVERY_WHEN_PIPELINED if pipelined else 1)
        # Kept with it: the number of an object may be that of another one later.
        self._made[id(job)] = _Made(job, spec, given.get("train_batch_size"), every)
        stock(job, **given)

    def _train(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        recorder = self._recorder
        first = recorder.is_first(job)
        if first is None:
            return job
        made = self._made[id(job)]
        if first and recorder.begin_from is not None:
            job.restore(self._start(recorder.begin_from, made.spec))
        if not first:
            # An estimator makes a graph for each call, whose random numbers begin anew; here they
            # do when the seed is set.
            tf.random.set_seed(getattr(getattr(job, "config", None), "tf_random_seed", None))
        begin = int(job.step.numpy())
        recorder.bound(given, begin)
        given["input_fn"] = taps.tapped_input_fn(
            given["input_fn"], recorder.writer, recorder.replayed, recorder.steps_made
        )
        watch = _Watch(recorder, made, begin, first=first)
        given["callbacks"] = [*(given.get("callbacks") or ()), watch]
        recorder.training = True
        try:
            return stock(job, **given)
        finally:
            recorder.training = False
            watch.finish()

    def _start(self, begin_from: str, spec: Any) -> str:
        """Returns a checkpoint of the form that the program reads."""
        path = find(begin_from)
        with Reader(path) as reader:
            if object_graph.KEY in reader.tensors:
                return path
        converted = os.path.join(self._recorder.writer.directory, "converted")
        convert(path, converted, spec=spec, allow=("*",))
        return find(converted)

    def _evaluate(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        # A training may evaluate on its way.
        training, self._recorder.training = self._recorder.training, False
        try:
            return self._recorder.evaluated(stock, job, given)
        finally:
            self._recorder.training = training


class _Watch:
    """Writes every variable at the start and after each step, as a callback of a training."""

    def __init__(self, recorder: Recorder, made: _Made, begin: int, *, first: bool) -> None:
        self._recorder = recorder
        self._of = made
        self._begin = begin
        self._first = first
        self._made = recorder.steps_made
        # The step that was made last, until it is known whether another one follows.
        self._last: tuple[int, dict[str, Values]] | None = None

    def on_train_begin(self) -> None:
        """Writes the start."""
        recorder, job = self._recorder, self._of.job
        recorder.tapped.flush()
        if not self._first:
            return
        if recorder.begin_from is None:
            _save(job, recorder.start)
        settings = describe_training(
            self._of.spec, recorder.side, job, self._of.batch_size, self._of.every
        )
        recorder.writer.settings({"program": recorder.program, **settings})
        recorder.writer.step(self._begin, {VARIABLES: _state(job)})

    def on_train_batch_end(self, step: int) -> None:
        """Writes the step before, and keeps this one."""
        self._write()
        values = taps.summed(next(iter(self._recorder.tapped.flush()), {}))
        if (step - self._begin) % self._of.every == 0:
            values[VARIABLES] = _state(self._of.job)
        self._last = step, values
        self._recorder.progressed(self._made + step - self._begin)

    def finish(self) -> None:
        """Writes the last step, with the variables."""
        if self._last is not None and VARIABLES not in self._last[1]:
            self._last[1][VARIABLES] = _state(self._of.job)
        self._write()

    def _write(self) -> None:
        if self._last is not None:
            self._recorder.writer.step(*self._last)
        self._last = None


def _state(job: Any) -> Values:
    """Returns every variable: tables and slots by `variable_of`, the others by their names."""
    job.engine.retrieve()
    values = {name: variable.numpy() for name, variable in job.variables.items()}
    values[GLOBAL_STEP] = job.step.numpy()
    for table in job.engine.tables.values():
        for part, (shard,) in table.variables.items():
            values[variable_of(table.plan.name, part)] = shard.numpy()
    return values


def _save(job: Any, path: str) -> None:
    """Writes a checkpoint that the program, and `estimator-bridge convert`, can read."""
    variables = tf.Module()
    for name, variable in job.variables.items():
        setattr(variables, name, variable)
    checkpoint = tf.train.Checkpoint(
        embedding=job.engine, global_step=job.step, variables=variables
    )
    # Who restores it counts on from there.
    checkpoint.save_counter  # noqa: B018 - made when it is asked for
    checkpoint.write(path)

"""Makes a TPUEstimator write down what it does, without a change to the program."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, bundle_writer, object_graph
from estimator_bridge.convert.conversion import find
from estimator_bridge.runtime.step.devices import SOFTWARE_TPU
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify import recording, taps
from estimator_bridge.verify.description import NotingDriver, Program, describe
from estimator_bridge.verify.recording import Recording, Writer
from estimator_bridge.verify.sides import Side

EVERY_WHEN_PIPELINED = 5
PREDICTIONS = 1000
"""Samples of a call of `predict` that are kept."""


class Recorder:
    """What a side is told, and what it writes.

    Args:
        directory: made here; holds the recording, and the model directories of the side.
        steps: of training, over all calls of `train` together.
        every: steps from one look at the variables to the next, which is a loop of the device;
            None is 1, or 5 where lookups overlap with updates, since they do so inside a loop.
        begin_from: a checkpoint to begin from, or None.
        nudged: moves every float of that checkpoint to the next one up or down.
        replayed: the recording whose batches are trained on; None is the program's own input.
        program: what reports call what is run.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        side: Side,
        *,
        steps: int,
        every: int | None = None,
        begin_from: str | None = None,
        nudged: bool = False,
        replayed: Recording | None = None,
        program: str = "",
    ) -> None:
        self.writer = Writer(directory)
        self.side = side
        self.every = every
        if nudged and begin_from is not None:
            begin_from = nudge(begin_from, str(self.writer.directory / "nudged"))
        self.begin_from = begin_from
        self.replayed = replayed
        self.program = program
        self.tapped = taps.Tapped()
        self.training = False
        self._steps = steps
        self._made = 0
        self._places: dict[str, str] = {}
        self._estimators: dict[int, tuple[Any, Program]] = {}
        self._model_dir: str | None = None
        self.writer.progress(0, steps)

    @property
    def start(self) -> str:
        """The checkpoint of the start, which a side writes that is given none."""
        return self.begin_from or str(self.writer.directory / "start")

    @property
    def steps_made(self) -> int:
        """Steps of training so far."""
        return self._made

    @property
    def steps_left(self) -> int:
        """Steps of training to come."""
        return self._steps - self._made

    @property
    def has_estimators(self) -> bool:
        """Whether the program made an estimator that is recorded."""
        return bool(self._estimators)

    def directory(self, own: str | None) -> str:
        """Returns the directory in the place of a program's own, which is made.

        Jobs that share theirs share this one: one may train what another one predicts with.
        """
        if own:  # What else a program writes goes where it says.
            tf.gfile.MakeDirs(own)
        place = str(self.writer.directory / f"model-{len(self._places)}")
        return self._places.setdefault(own or place, place)

    def is_first(self, job: Any) -> bool | None:
        """Returns whether a training is the first; None if it is not to be run.

        The model that trains first is the one that is recorded, for so many steps.
        """
        first = self._model_dir is None
        if not first and not self.is_recorded(job):
            self.writer.left_out()
            return None
        if self.steps_left <= 0:
            return None
        self._model_dir = job.model_dir
        return first

    def is_recorded(self, job: Any) -> bool:
        """Returns whether a job is of the model that was trained."""
        return self._model_dir is not None and job.model_dir == self._model_dir

    def bound(self, given: dict[str, Any], begin: int) -> None:
        """Changes the arguments of a training that begins at a step to end with the recording."""
        if given.get("max_steps") is None:
            given["steps"] = min(given.get("steps") or self.steps_left, self.steps_left)
        else:
            given["max_steps"] = min(given["max_steps"], begin + self.steps_left)

    def progressed(self, steps: int) -> None:
        """Says that so many steps of training are made, since the beginning."""
        self._made = steps
        self.writer.progress(steps, self._steps)

    @contextlib.contextmanager
    def attached(self, kind: type) -> Iterator[None]:
        """While it is open, estimators of a class are recorded."""
        methods = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": self.evaluated,
            "predict": self.predicted,
            "export_saved_model": self.exported,
        }
        own = {name: vars(kind).get(name) for name in methods}
        for name, method in methods.items():
            setattr(kind, name, overheard(getattr(kind, name), method))
        try:
            yield
        finally:
            for name, value in own.items():
                if value is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, value)

    def _init(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> None:
        spec = given.get("embedding_config_spec")
        quirks = self.side.quirks or given.get("quirks")
        legacy = None if spec is None else read_spec(spec, quirks)
        if self.side.use_tpu is not None:
            given["use_tpu"] = self.side.use_tpu
        use_tpu = bool(given.get("use_tpu", True))
        pipelined = legacy is not None and legacy.pipeline_execution_with_tensor_core
        every = self.every or (EVERY_WHEN_PIPELINED if pipelined and use_tpu else 1)
        config = given.get("config")
        if config is not None and hasattr(config, "tpu_config"):
            given["config"] = config.replace(
                model_dir=self.directory(given.pop("model_dir", None) or config.model_dir),
                tpu_config=config.tpu_config._replace(iterations_per_loop=every),
            )
        keys = {feature.key for feature in legacy.features} if legacy and use_tpu else set()
        if given.get("model_fn") is not None:
            own = given["model_fn"]
            given["model_fn"] = taps.tapped_model_fn(
                taps.with_names_of_stock(own) if self.side.stock else own,
                keys,
                self.tapped,
                lambda: self.training,
            )
        driver = None
        if not self.side.stock:
            given["quirks"] = quirks
            if self.side.software_tpu:
                given["engine"] = SOFTWARE_TPU
            else:
                driver = given["engine"] = NotingDriver(native=self.side.native)
        stock(job, **given)
        # Kept with it: the number of an object may be that of another one later.
        self._estimators[id(job)] = job, Program(spec, legacy, use_tpu, every, driver)

    def _train(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        first = self.is_first(job)
        if first is None:
            return job
        if first and self.begin_from is not None:
            _check_legacy(find(self.begin_from))
        _, program = self._estimators[id(job)]
        begin, made = self._step_of(job), self._made
        self.bound(given, begin)
        state = taps.StateHook(
            self.writer,
            self.tapped,
            begin_from=self.begin_from if first else None,
            save_start=self.start if first and self.begin_from is None else None,
            first=first,
            at_start=lambda graph: self.writer.settings(
                {"program": self.program, **describe(program, self.side, job, graph)}
            ),
            progress=lambda number: self.progressed(made + number - begin),
        )
        given["input_fn"] = taps.tapped_input_fn(
            given["input_fn"], self.writer, self.replayed, self._made
        )
        given["hooks"] = [*(given.get("hooks") or ()), state]
        self.training = True
        try:
            return stock(job, **given)
        finally:
            self.training = False

    def _step_of(self, job: Any) -> int:
        path = tf.train.latest_checkpoint(job.model_dir) or self.begin_from
        return 0 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))

    def evaluated(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        """Evaluates, and writes the metrics."""
        given["steps"] = min(given.get("steps") or self._steps, self._steps)
        found = stock(job, **given)
        if self.is_recorded(job):
            self.writer.outcome(recording.EVALUATION, found)
        return found

    def predicted(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        """Predicts, and writes the first predictions."""
        kept: list[dict[str, Any]] = []
        try:
            for found in stock(job, **given):
                if len(kept) < PREDICTIONS:
                    kept.append(found if isinstance(found, dict) else {"prediction": found})
                yield found
        finally:  # A program may stop before the end.
            if kept and self.is_recorded(job):
                values = {str(name): np.stack([one[name] for one in kept]) for name in kept[0]}
                self.writer.outcome(recording.PREDICTION, values)

    def exported(self, stock: Callable[..., Any], job: Any, given: dict[str, Any]) -> Any:
        """Exports, writes the variables, and keeps a copy: a program may remove its own."""
        path = stock(job, **given)
        if not self.is_recorded(job):
            return path
        variables = os.path.join(os.fsdecode(path), "variables", "variables")
        reader = tf.train.load_checkpoint(variables)
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        self.writer.outcome(recording.EXPORT, values)
        # It is asked later.
        number = len(Recording(self.writer.directory).exported())
        kept = self.writer.directory / f"{recording.EXPORTED}-{number}"
        shutil.copytree(os.fsdecode(path), kept)
        return path


def _check_legacy(checkpoint: str) -> None:
    """Raises InvalidInput for a checkpoint of TensorFlow 2, in which an estimator finds nothing."""
    with Reader(checkpoint) as reader:
        if object_graph.KEY in reader.tensors:
            raise errors.InvalidInput(
                f"{checkpoint} is a checkpoint of TensorFlow 2, with which no TPUEstimator can "
                "begin. Let the legacy program be side A; or make one of names with "
                "`estimator-bridge convert` for --begin-from."
            )


def nudge(checkpoint: str, nudged: str) -> str:
    """Writes a checkpoint whose floats are the next ones up and down, in turns; returns it.

    Zeros stay: nothing has been rounded to make them.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    writer = bundle_writer.Writer(nudged)
    for name in sorted(reader.get_variable_to_shape_map()):
        value = np.asarray(reader.get_tensor(name))
        if value.dtype == np.float32:
            ways = np.where(np.arange(value.size) % 2, -np.inf, np.inf).reshape(value.shape)
            value = np.where(value == 0, value, np.nextafter(value, ways.astype(np.float32)))
        writer.value(name, value)
    writer.finish()
    return nudged


def overheard(stock: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that hands its arguments, by name, to ours together with the method."""
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given.pop(next(iter(signature.parameters)))
        return ours(stock, self, given)

    return method

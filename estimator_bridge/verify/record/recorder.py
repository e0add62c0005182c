"""Records what a TPUEstimator does, without a change to the program."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.conversion import find
from estimator_bridge.runtime.step.devices import SOFTWARE_TPU
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify.record.capture import (
    Capture,
    capturing_model_fn,
    refusing_specs_of_bridge,
)
from estimator_bridge.verify.record.description import PlanKeepingDriver, Program, describe
from estimator_bridge.verify.record.perturb import perturb
from estimator_bridge.verify.record.recording import (
    EVALUATION,
    EXPORT,
    EXPORTED,
    PREDICTION,
    Recording,
    Writer,
)
from estimator_bridge.verify.record.replay import recording_input_fn
from estimator_bridge.verify.record.request import PERTURBED, RecordingRequest
from estimator_bridge.verify.record.session_hook import RecordingHook
from estimator_bridge.verify.record.wrappers import Arguments, Function, intercepted
from estimator_bridge.verify.sides import Side
from tf2_engine.types import Array, Object

_EVERY_WHEN_PIPELINED = 5
_MAX_PREDICTIONS = 1000
"""Samples of a call of `predict` that are recorded."""


class Recorder:
    """Records the first model that a program trains.

    Args:
        request: what is recorded, and where.
        side: which engine runs the program.
        steps: of training, over all calls of `train` together.
        every: steps from one look at the variables to the next, which is a loop of the device;
            None is 1, or 5 where lookups overlap with updates, since they do so inside a loop.
        program: the name of the program in reports.

    Attributes:
        steps_done: of training, so far.
        training: whether a training runs.
    """

    def __init__(
        self,
        request: RecordingRequest,
        side: Side,
        *,
        steps: int,
        every: int | None = None,
        program: str = "",
    ) -> None:
        self.writer = Writer(request.directory)
        self.side = side
        self.begin_from = request.begin_from
        if request.role == PERTURBED and request.begin_from is not None:
            perturbed = str(self.writer.directory / "perturbed")
            self.begin_from = perturb(request.begin_from, perturbed)
        self.replayed = None if request.replayed is None else Recording(request.replayed)
        self.program = program
        self.capture = Capture()
        self.training = False
        self._every = every
        self._steps = steps
        self.steps_done = 0
        self._directories: dict[str, str] = {}
        self._estimators: dict[int, tuple[Object, Program]] = {}
        self._model_dir: str | None = None
        self.writer.progress(0, steps)

    @property
    def start(self) -> str:
        """The checkpoint of the start, which a side writes that has none to begin from."""
        return self.begin_from or str(self.writer.directory / "start")

    @property
    def steps_left(self) -> int:
        """Steps of training to come."""
        return self._steps - self.steps_done

    @property
    def has_estimators(self) -> bool:
        """Whether the program made an estimator that is recorded."""
        return bool(self._estimators)

    def every(self, legacy: LegacySpec | None, use_tpu: bool = True) -> int:
        """Returns the steps from one look at the variables of a model to the next."""
        pipelined = legacy is not None and legacy.pipeline_execution_with_tensor_core and use_tpu
        return self._every or (_EVERY_WHEN_PIPELINED if pipelined else 1)

    def directory(self, model_dir: str | None) -> str:
        """Returns the directory that is used instead of a program's `model_dir`, which is made.

        Models of the same directory share this one: one may predict with what another trained.
        """
        if model_dir:  # What else a program writes goes where it says.
            tf.gfile.MakeDirs(model_dir)
        directory = str(self.writer.directory / f"model-{len(self._directories)}")
        return self._directories.setdefault(model_dir or directory, directory)

    def is_first(self, model: Object) -> bool | None:
        """Returns whether a training is the first; None if it is not to be run.

        The model that trains first is the one that is recorded, for so many steps.
        """
        first = self._model_dir is None
        if not first and not self.is_recorded(model):
            self.writer.skipped_training()
            return None
        if self.steps_left <= 0:
            return None
        self._model_dir = model.model_dir
        return first

    def is_recorded(self, model: Object) -> bool:
        """Returns whether a model is the one that was trained."""
        return self._model_dir is not None and model.model_dir == self._model_dir

    def limit_steps(self, arguments: Arguments, begin: int) -> None:
        """Makes a training that begins at step `begin` end with the recording."""
        if arguments.get("max_steps") is None:
            arguments["steps"] = min(arguments.get("steps") or self.steps_left, self.steps_left)
        else:
            arguments["max_steps"] = min(arguments["max_steps"], begin + self.steps_left)

    def record_progress(self, steps: int) -> None:
        """Writes how many steps of training are done in total."""
        self.steps_done = steps
        self.writer.progress(steps, self._steps)

    @contextlib.contextmanager
    def attached(self, estimator_class: type) -> Iterator[None]:
        """Records the estimators of a class while the context is open."""
        methods = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": self.evaluate,
            "predict": self.predict,
            "export_saved_model": self.export,
        }
        own = {name: vars(estimator_class).get(name) for name in methods}
        for name, method in methods.items():
            setattr(estimator_class, name, intercepted(getattr(estimator_class, name), method))
        try:
            yield
        finally:
            for name, value in own.items():
                if value is None:
                    delattr(estimator_class, name)
                else:
                    setattr(estimator_class, name, value)

    def _init(self, original: Function, estimator: Object, arguments: Arguments) -> None:
        spec = arguments.get("embedding_config_spec")
        quirks = self.side.quirks or arguments.get("quirks")
        legacy = None if spec is None else read_spec(spec, quirks)
        if self.side.use_tpu is not None:
            arguments["use_tpu"] = self.side.use_tpu
        use_tpu = bool(arguments.get("use_tpu", True))
        every = self.every(legacy, use_tpu)
        config = arguments.get("config")
        if config is not None and hasattr(config, "tpu_config"):
            arguments["config"] = config.replace(
                model_dir=self.directory(arguments.pop("model_dir", None) or config.model_dir),
                tpu_config=config.tpu_config._replace(iterations_per_loop=every),
            )
        if arguments.get("model_fn") is not None:
            model_fn = arguments["model_fn"]
            keys = {feature.key for feature in legacy.features} if legacy and use_tpu else set()
            arguments["model_fn"] = capturing_model_fn(
                refusing_specs_of_bridge(model_fn) if self.side.stock else model_fn,
                keys,
                self.capture,
                lambda: self.training,
            )
        driver = None if self.side.stock else self._set_engine(arguments, quirks)
        original(estimator, **arguments)
        program = Program(spec, legacy, use_tpu, every, driver)
        # Kept with it: the id of an object may be that of another one later.
        self._estimators[id(estimator)] = estimator, program

    def _set_engine(self, arguments: Arguments, quirks: str | None) -> PlanKeepingDriver | None:
        arguments["quirks"] = quirks
        if self.side.software_tpu:
            arguments["engine"] = SOFTWARE_TPU
            return None
        arguments["engine"] = driver = PlanKeepingDriver(native=self.side.native)
        return driver

    def _train(self, original: Function, estimator: Object, arguments: Arguments) -> Object:
        first = self.is_first(estimator)
        if first is None:
            return estimator
        if first and self.begin_from is not None:
            _check_legacy(find(self.begin_from))
        _, program = self._estimators[id(estimator)]
        begin, steps_done = self._step_of(estimator), self.steps_done
        self.limit_steps(arguments, begin)
        hook = RecordingHook(
            self.writer,
            self.capture,
            begin_from=self.begin_from if first else None,
            save_start=self.start if first and self.begin_from is None else None,
            is_first=first,
            on_start=lambda graph: self.writer.settings(
                describe(self.program, program, self.side, estimator, graph)
            ),
            on_step=lambda number: self.record_progress(steps_done + number - begin),
        )
        arguments["input_fn"] = recording_input_fn(
            arguments["input_fn"], self.writer, self.replayed, steps_done
        )
        arguments["hooks"] = [*(arguments.get("hooks") or ()), hook]
        self.training = True
        try:
            return original(estimator, **arguments)
        finally:
            self.training = False

    def _step_of(self, estimator: Object) -> int:
        path = tf.train.latest_checkpoint(estimator.model_dir) or self.begin_from
        return 0 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))

    def evaluate(self, original: Function, model: Object, arguments: Arguments) -> Object:
        """Evaluates, and writes the metrics."""
        arguments["steps"] = min(arguments.get("steps") or self._steps, self._steps)
        metrics = original(model, **arguments)
        if self.is_recorded(model):
            self.writer.outcome(EVALUATION, metrics)
        return metrics

    def predict(self, original: Function, model: Object, arguments: Arguments) -> Iterator[Object]:
        """Predicts, and writes the first predictions."""
        kept: list[dict[str, Array]] = []
        try:
            for prediction in original(model, **arguments):
                if len(kept) < _MAX_PREDICTIONS:
                    is_dict = isinstance(prediction, dict)
                    kept.append(prediction if is_dict else {"prediction": prediction})
                yield prediction
        finally:  # A program may stop before the end.
            if kept and self.is_recorded(model):
                values = {str(name): np.stack([one[name] for one in kept]) for name in kept[0]}
                self.writer.outcome(PREDICTION, values)

    def export(self, original: Function, model: Object, arguments: Arguments) -> Object:
        """Exports, writes the variables, and keeps a copy: a program may remove its own."""
        path = original(model, **arguments)
        if not self.is_recorded(model):
            return path
        reader = tf.train.load_checkpoint(os.path.join(os.fsdecode(path), "variables/variables"))
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        self.writer.outcome(EXPORT, values)
        # It is queried later.
        directory = self.writer.directory
        number = len(Recording(directory).exported())
        shutil.copytree(os.fsdecode(path), directory / f"{EXPORTED}-{number}")
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

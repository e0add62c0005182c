"""Records what a TPUEstimator does, without a change to the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import checkpoint_files, errors
from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.conversion import find
from estimator_bridge.runtime.step.devices import SOFTWARE_TPU
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify.record import capture, model_ops, recording
from estimator_bridge.verify.record.capture import Arguments, Capture, Function
from estimator_bridge.verify.record.description import (
    PlanKeepingDriver,
    Program,
    describe,
    grouped_variables,
)
from estimator_bridge.verify.record.outcome_recorder import OutcomeRecorder
from estimator_bridge.verify.record.recording import (
    Recording,
    RecordingRequest,
    RecordingWriter,
    Values,
)
from estimator_bridge.verify.record.replay import recording_input_fn
from estimator_bridge.verify.sides import Side
from tf2_engine.types import Object, Session, Variable

_EVERY_WHEN_PIPELINED = 5


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
        programs: the recorded models that the program made, each with its object, by its id.
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
        self.writer = RecordingWriter(request.directory)
        self.side = side
        self.begin_from = request.begin_from
        if request.role == recording.PERTURBED and request.begin_from is not None:
            self.begin_from = str(self.writer.directory / "perturbed")
            _perturb(request.begin_from, self.begin_from)
        self.replayed = None if request.replayed is None else Recording(request.replayed)
        self.program = program
        self.capture = Capture()
        self.outcomes = OutcomeRecorder(self)
        self.sketches = request.sketches
        self.training = False
        self._every = every
        self._steps = steps
        self.steps_done: int = 0
        self._directories: dict[str, str] = {}
        # With the objects, since the id of one may be that of another one later.
        self.programs: dict[int, tuple[Object, Program]] = {}
        self._model_dir: str | None = None

    @property
    def start(self) -> str:
        """The checkpoint of the start, which a side writes that has none to begin from."""
        return self.begin_from or str(self.writer.directory / "start")

    @property
    def max_steps(self) -> int:
        """The most steps of training, and batches of an evaluation."""
        return self._steps

    @property
    def steps_left(self) -> int:
        """Steps of training to come."""
        return self._steps - self.steps_done

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

    def prepare(self, arguments: Arguments, begin: int) -> None:
        """Has a call of `train`, from step `begin` on, end in time, and its batches recorded."""
        if arguments.get("max_steps") is None:
            arguments["steps"] = min(arguments.get("steps") or self.steps_left, self.steps_left)
        else:
            arguments["max_steps"] = min(arguments["max_steps"], begin + self.steps_left)
        arguments["input_fn"] = recording_input_fn(
            arguments["input_fn"], self.writer, self.replayed, self.steps_done
        )

    def record_progress(self, steps: int) -> None:
        """Writes how many steps of training are done in total."""
        self.steps_done = steps
        self.writer.progress(steps)

    @contextlib.contextmanager
    def attached(self, estimator_class: type) -> Iterator[None]:
        """Records the estimators of a class while the context is open."""
        methods: dict[str, Function] = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": self.outcomes.evaluate,
            "predict": self.outcomes.predict,
            "export_saved_model": self.outcomes.export,
        }
        own = {name: method for name, method in vars(estimator_class).items() if name in methods}
        capture.intercept(estimator_class, methods)
        try:
            yield
        finally:
            for name in methods:
                delattr(estimator_class, name)
            for name, method in own.items():
                setattr(estimator_class, name, method)

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
        model_fn = arguments.get("model_fn")
        if model_fn is not None:
            if self.side.stock:
                model_fn = capture.refusing_specs_of_bridge(model_fn)
            arguments["model_fn"] = self.capturing(model_fn, legacy if use_tpu else None)
        driver = None if self.side.stock else self._set_engine(arguments, quirks)
        original(estimator, **arguments)
        program = Program(self.program, self.side, spec, legacy, use_tpu, every, driver)
        self.programs[id(estimator)] = estimator, program

    def capturing(self, model_fn: Function, legacy: LegacySpec | None) -> Function:
        """Returns a model_fn that captures the activations, gradients and loss of trainings."""
        keys = {feature.key for feature in legacy.features} if legacy else set()
        model_fn = self.outcomes.capturing(model_fn)
        if self.sketches:
            model_fn = model_ops.sketching_model_fn(
                model_fn, self.capture, lambda: self.training, self.writer.model_ops
            )
        return capture.capturing_model_fn(model_fn, keys, self.capture, lambda: self.training)

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
        path = tf.train.latest_checkpoint(estimator.model_dir) or self.begin_from
        begin = int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP)) if path else 0
        self.prepare(arguments, begin)
        hook = _RecordingHook(self, estimator, begin, is_first=first)
        arguments["hooks"] = [*(arguments.get("hooks") or ()), hook]
        self.training = True
        try:
            return original(estimator, **arguments)
        finally:
            self.training = False


class _RecordingHook(tf.train.SessionRunHook):
    """Writes every variable at the start and after each call, and begins from a given start.

    Variables that the start lacks keep their initial values.
    """

    def __init__(self, recorder: Recorder, model: Object, begin: int, *, is_first: bool) -> None:
        self._recorder = recorder
        self._model = model
        self._is_first = is_first
        self._steps_before = recorder.steps_done - begin
        self._number: int | None = None

    def begin(self) -> None:
        self._variables = grouped_variables()
        self._step = tf.train.get_global_step()
        self._saver = None
        if not self._is_first:
            return
        path = self._recorder.begin_from
        if path is None:
            self._saver = tf.train.Saver(sharded=False)
            return
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for name, parts in self._variables.items():
            if shapes.get(name) == _whole_shape(parts):
                target = parts if capture.PART.search(parts[0].op.name) else parts[0]
                tf.train.init_from_checkpoint(path, {name: target})

    def after_create_session(self, session: Session, coord: Object) -> None:
        if self._number is not None:
            return
        recorder = self._recorder
        if self._saver is not None:
            self._saver.save(session, recorder.start, write_meta_graph=False, write_state=False)
        self._number = int(session.run(self._step))
        recorder.capture.flush()
        if self._is_first:
            recorder.writer.step(self._number, {recording.VARIABLES: self._read(session)})
            _, program = recorder.programs[id(self._model)]
            recorder.writer.settings(describe(program, self._model, session.graph))

    def after_run(self, run_context: Object, run_values: Object) -> None:
        """Writes the steps of the call, the last one with the variables."""
        recorder, session = self._recorder, run_context.session
        state, number = self._read(session), int(session.run(self._step))
        assert self._number is not None
        num_steps = number - self._number
        # A call that made no step, or captured less than its steps, ends with the state.
        steps = recorder.capture.flush()
        steps = [*steps, *({} for _ in range(num_steps - len(steps)))][:num_steps]
        for offset, values in enumerate(steps, 1):
            variables = {recording.VARIABLES: state} if offset == num_steps else {}
            recorder.writer.step(self._number + offset, {**values, **variables})
        self._number = number
        recorder.record_progress(self._steps_before + number)

    def _read(self, session: Session) -> Values:
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in session.run(self._variables).items()
        }


def _whole_shape(parts: list[Variable]) -> list[int]:
    first, *others = (part.shape.as_list() for part in parts)
    return [first[0] + sum(other[0] for other in others), *first[1:]] if others else first


def _check_legacy(checkpoint: str) -> None:
    """Raises InvalidInput for a checkpoint of TensorFlow 2, in which an estimator finds nothing."""
    with Reader(checkpoint) as reader:
        if object_graph.KEY in reader.tensors:
            raise errors.InvalidInput(
                f"{checkpoint} is a checkpoint of TensorFlow 2, with which no TPUEstimator can "
                "begin. Let the legacy program be side A; or make one of names with "
                "`estimator-bridge convert` for --begin-from."
            )


def _perturb(checkpoint: str, perturbed: str) -> None:
    """Writes a checkpoint whose floats are alternately the next ones up and down.

    Zeros stay, since no rounding has made them.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    writer = checkpoint_files.Writer(perturbed)
    for name in sorted(reader.get_variable_to_shape_map()):
        value = np.asarray(reader.get_tensor(name))
        if value.dtype == np.float32:
            limits = np.where(np.arange(value.size) % 2, -np.inf, np.inf).reshape(value.shape)
            value = np.where(value == 0, value, np.nextafter(value, limits.astype(np.float32)))
        writer.value(name, value)
    writer.finish()

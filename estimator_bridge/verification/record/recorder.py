"""Records training runs of a TPUEstimator without changing the program."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Collection, Iterator, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, find, object_graph
from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    SUMMED_ROWS,
    VARIABLES,
    RecordedStep,
    Recording,
    RecordingWriter,
    SideDescription,
    Values,
    parts_of_tables,
)
from estimator_bridge.runtime.step.devices import SOFTWARE_TPU
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verification.perturbation import ACTIVATION_ULPS, VARIABLE_ULPS, perturbed
from estimator_bridge.verification.record import capture
from estimator_bridge.verification.record.capture import ROWS_OF_SLICES, CallArguments, Capture
from estimator_bridge.verification.record.description import PlanKeepingDriver, Program
from estimator_bridge.verification.record.outcome_recorder import OutcomeRecorder
from estimator_bridge.verification.record.recording_hook import BeforeSaving, RecordingHook
from estimator_bridge.verification.record.replay import InputRecord, recorded_input_fn
from estimator_bridge.verification.sides import PERTURBED, RecordingRequest, Side
from tf2_engine import tf_compat
from tf2_engine.backends.interface import Arithmetic
from tf2_engine.types import Array, Function, Object

_EVERY_WHEN_PIPELINED = 5


class Recorder:
    """Records the first model that a program trains.

    Attributes:
        programs: the recorded models, keyed by the id of the model object.
        side_a: the recording of side A, if known.
        leader: reads the variables that replace the side's own after each recorded step, if any.
        max_steps: the largest number of training steps, in all calls together, and of batches in
            one evaluation.
    """

    def __init__(
        self,
        request: RecordingRequest,
        side: Side,
        *,
        steps: int,
        every: int | None = None,
        program: str = "",
        is_tf1: bool = False,
    ) -> None:
        self.writer = RecordingWriter(request.directory)
        self.side = side
        self.begin_from = request.begin_from
        self.replayed = None if request.replayed is None else Recording(request.replayed)
        self.program = program
        self.is_tf1 = is_tf1
        followed = None if request.followed is None else Recording(request.followed)
        self.side_a = self.replayed or followed
        self.leader = None if followed is None else Leader(followed)
        self.perturbation: Perturbation | None = None
        if request.role == PERTURBED:
            gradients_of = request.gradients_of
            self.perturbation = Perturbation(
                Recording(gradients_of) if gradients_of else None, is_free=followed is None
            )
        self.capture = Capture(None if self.perturbation is None else self.perturbation.substitute)
        self.outcomes = OutcomeRecorder(self)
        self.sketches = request.sketches
        self.training = False
        self._every = every
        self.max_steps = request.steps or steps
        self.steps_done: int = 0
        self._directories: dict[str, str] = {}
        # The objects must stay alive, because ids of dead objects are reused.
        self.programs: dict[int, tuple[Object, Program]] = {}
        self._model_dir: str | None = None

    @property
    def start(self) -> str:
        return self.begin_from or str(self.writer.directory / "start")

    @property
    def steps_left(self) -> int:
        return self.max_steps - self.steps_done

    def every(self, pipelined: bool) -> int:
        return self._every or (_EVERY_WHEN_PIPELINED if pipelined else 1)

    def directory(self, model_dir: str | None) -> str:
        if model_dir:  # other files of the program still go to its model_dir
            tf.gfile.MakeDirs(model_dir)
        directory = str(self.writer.directory / f"model-{len(self._directories)}")
        return self._directories.setdefault(model_dir or directory, directory)

    def is_first(self, model: Object) -> bool | None:
        """Whether this training run is the first. None means that the model must not be trained."""
        first = self._model_dir is None
        if not first and not self.is_recorded(model):
            self.writer.skipped_training()
            return None
        if self.steps_left <= 0:
            return None
        self._model_dir = model.model_dir
        return first

    def is_recorded(self, model: Object) -> bool:
        return self._model_dir is not None and model.model_dir == self._model_dir

    @property
    def has_trained(self) -> bool:
        return self._model_dir is not None

    def predicts_first_batch_twice(self, model: Object) -> bool:
        """Whether predictions end with the first batch again, as stock's do on a TPU."""
        _, program = self.programs.get(id(model), (None, None))
        return program is not None and program.side.stock and program.use_tpu

    def prepare(self, arguments: CallArguments, begin: int) -> None:
        if arguments.get("max_steps") is None:
            arguments["steps"] = min(arguments.get("steps") or self.steps_left, self.steps_left)
        else:
            last = begin + self.steps_left
            if arguments["max_steps"] > last:
                self.writer.note("stopped_before", arguments["max_steps"])
            arguments["max_steps"] = min(arguments["max_steps"], last)
        inputs = InputRecord(
            begin=functools.partial(self.writer.input, self.steps_done),
            files=lambda number: [] if self.replayed is None else self.replayed.batches(number),
            write=lambda number, values: self.writer.batch(values, number),
            unlike=functools.partial(self.writer.note, "unlike"),
        )
        arguments["input_fn"] = recorded_input_fn(arguments["input_fn"], inputs)

    def begin(self, side: SideDescription, trained: Collection[str]) -> None:
        self.writer.note("settings", side)
        if self.leader is not None:
            self.leader.describe_follower(side)
            self.writer.note("follows", True)
        if self.perturbation is not None:
            self.perturbation.choose(side, trained)

    def next_state(self, number: int, of_side: Values, *, is_start: bool = False) -> Values:
        """Returns the variables with which the side continues; {} if it keeps its own values."""
        state: Values = {}
        if self.leader is not None:
            state = self.leader.state_after(number)
        elif self.perturbation is not None and is_start:
            state = of_side
        if self.perturbation is None:
            return state
        ulps = dict(sorted(self.perturbation.ulps.items()))
        self.writer.perturbed(ulps, sorted(self.perturbation.substituted))
        return self.perturbation.state(state)

    def record_progress(self, steps: int) -> None:
        self.steps_done = steps
        self.writer.note("progress", steps)

    @contextlib.contextmanager
    def attached(self, estimator_class: type) -> Iterator[None]:
        methods: dict[str, Function] = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": self.outcomes.evaluate,
            "predict": self.outcomes.predict,
            "export_saved_model": self.outcomes.export,
        }
        of_plain = {**methods, "__init__": self._init_plain}
        for name, method in of_plain.items():
            of_plain[name] = functools.partial(_unless_of_a_kind, estimator_class, method)
        with contextlib.ExitStack() as stack:
            # The subclass comes first, or its methods would be recorded twice.
            stack.enter_context(capture.intercepting(estimator_class, methods))
            bases = estimator_class.__mro__[1:]
            plain = next((base for base in bases if base.__name__ == "Estimator"), None)
            if plain is not None:
                stack.enter_context(capture.intercepting(plain, of_plain))
            embedding = tf_compat.legacy_tpu_class("TPUEmbedding")
            if embedding is not None:
                sending = {"generate_send_gradients_op": capture.send_before_counting}
                stack.enter_context(capture.intercepting(embedding, sending))
            yield

    def _init(self, original: Function, estimator: Object, arguments: CallArguments) -> None:
        if self.side.stock_v2:
            raise errors.InvalidInput(
                f"Side {self.side.name!r} runs programs of TensorFlow 2 on stock's TPUEmbeddingV2, "
                "but this program uses a TPUEstimator. Use side 'bridge-sparsecore'; or "
                "migrate the program with `migrate --form tf2 --target sparsecore`, use this side "
                "as side B, and pass the new program with --against."
            )
        spec = arguments.get("embedding_config_spec")
        quirks = self.side.quirks or arguments.get("quirks")
        legacy = None if spec is None else read_spec(spec, quirks)
        # Without tables, only the program itself depends on `use_tpu`.
        if self.side.use_tpu is False or (self.side.use_tpu and legacy is not None):
            arguments["use_tpu"] = self.side.use_tpu
        use_tpu = bool(arguments.get("use_tpu", True))
        pipelined = legacy is not None and legacy.pipeline_execution_with_tensor_core and use_tpu
        every = self.every(pipelined)
        config = arguments.get("config")
        if config is not None and hasattr(config, "tpu_config"):
            arguments["config"] = config.replace(
                model_dir=self.directory(arguments.pop("model_dir", None) or config.model_dir),
                tpu_config=config.tpu_config._replace(iterations_per_loop=every),
            )
        model_fn = arguments.get("model_fn")
        if model_fn is not None:
            arguments["model_fn"] = self.capturing(model_fn, legacy if use_tpu else None)
        arithmetic = self.side.arithmetic_of(arguments.get("arithmetic"))
        driver = None if self.side.stock else self._set_engine(arguments, quirks, arithmetic)
        original(estimator, **arguments)
        about = {"use_tpu": use_tpu, "every": every, "driver": driver, "arithmetic": arithmetic}
        self.remember(estimator, spec, legacy, **about)

    def remember(
        self, model: Object, spec: Object = None, legacy: LegacySpec | None = None, **about: Object
    ) -> None:
        program = Program(self.program, self.side, spec, legacy, is_tf1=self.is_tf1, **about)
        self.programs[id(model)] = model, program

    def _init_plain(self, original: Function, estimator: Object, arguments: CallArguments) -> None:
        config = arguments.get("config")
        asked = arguments.get("model_dir") or getattr(config, "model_dir", None)
        arguments["model_dir"] = self.directory(asked)
        if config is not None:
            arguments["config"] = config.replace(model_dir=arguments["model_dir"])
        arguments["model_fn"] = self.capturing(arguments["model_fn"], None)
        original(estimator, **arguments)
        self.remember(estimator, use_tpu=False, every=self.every(pipelined=False))

    def capturing(self, model_fn: Function, legacy: LegacySpec | None) -> Function:
        keys = {feature.key for feature in legacy.features} if legacy else set()
        if self.side.stock:
            model_fn = capture.refusing_specs_of_bridge(model_fn)
        model_fn = self.outcomes.capturing(model_fn)
        if self.sketches:
            model_fn = capture.sketching_model_fn(
                model_fn,
                self.capture,
                lambda: self.training,
                functools.partial(self.writer.note, "model-ops"),
            )
        return capture.capturing_model_fn(model_fn, keys, self.capture, lambda: self.training)

    def _set_engine(
        self, arguments: CallArguments, quirks: str | None, arithmetic: Arithmetic
    ) -> PlanKeepingDriver | None:
        arguments["quirks"] = quirks
        if self.side.software_tpu:
            arguments["engine"] = SOFTWARE_TPU
            return None
        driver = PlanKeepingDriver(native=self.side.native, arithmetic=arithmetic)
        arguments.update(engine=driver, arithmetic=None)  # the driver already has its arithmetic
        return driver

    def _train(self, original: Function, estimator: Object, arguments: CallArguments) -> Object:
        first = self.is_first(estimator)
        if first is None:
            if not self.is_recorded(estimator):
                train_a_step(original, estimator, arguments)
            return estimator
        if first and self.begin_from is not None:
            _check_legacy(find(self.begin_from))
        path = tf.train.latest_checkpoint(estimator.model_dir) or self.begin_from
        begin = int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP)) if path else 0
        self.prepare(arguments, begin)
        hook = RecordingHook(self, estimator, begin, is_first=first)
        arguments["hooks"] = [*(arguments.get("hooks") or ()), hook]
        config = estimator.config
        if self.leader and (config.save_checkpoints_steps or config.save_checkpoints_secs):
            # Checkpoints must contain the state from which the side continues.
            listeners = [BeforeSaving(hook), *(arguments.get("saving_listeners") or ())]
            arguments["saving_listeners"] = listeners
        with capture.replaced(self, "training", True):
            return original(estimator, **arguments)


def train_a_step(original: Function, estimator: Object, arguments: CallArguments) -> None:
    """Trains one step if the model has no checkpoint, because the program may need one."""
    if tf.train.latest_checkpoint(estimator.model_dir) is None:
        arguments.pop("max_steps", None)
        original(estimator, **{**arguments, "steps": 1})


def _unless_of_a_kind(
    kind: type, method: Function, original: Function, model: Object, arguments: CallArguments
) -> Object:
    if isinstance(model, kind):
        return original(model, **arguments)
    return method(original, model, arguments)


def _check_legacy(checkpoint: str) -> None:
    with Reader(checkpoint) as reader:
        if object_graph.KEY in reader.tensors:
            raise errors.InvalidInput(
                f"{checkpoint} is a checkpoint of TensorFlow 2, but a TPUEstimator can only start "
                "from a legacy checkpoint. Make the legacy program side A, or convert the "
                "checkpoint with `estimator-bridge convert` and pass the new one with --begin-from."
            )


class Leader:
    """Reads the variables of a recording step by step, renamed for the run that takes them over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._steps: Iterator[RecordedStep] = recording.steps()
        self._names: dict[str, str] = {}

    def describe_follower(self, side: SideDescription) -> None:
        of_follower = parts_of_tables(side["tables"])
        names = {part: name for name, part in of_follower.items()}
        theirs = parts_of_tables(self._recording.settings["tables"])
        self._names = {name: names[part] for name, part in theirs.items() if part in names}

    def state_after(self, number: int) -> Values:
        for step in self._steps:
            if step.number == number and VARIABLES in step.values:
                variables = step.values[VARIABLES]
                return {self._names.get(name, name): value for name, value in variables.items()}
            if step.number >= number:
                break
        return {}


class Perturbation:
    """Changes the last bits of side A's values, to measure how far rounding moves the results.

    The gradients of `gradients_of` (side B) replace side A's own, so that the run also shows which
    updates side A's optimizer makes from them.
    """

    def __init__(self, gradients_of: Recording | None, *, is_free: bool) -> None:
        self._lock = threading.Lock()
        self._is_free = is_free
        self._of_step = functools.lru_cache(maxsize=2)(
            (lambda step: {}) if gradients_of is None else gradients_of.gradients
        )
        self.substituted: set[str] = set()
        self.ulps: dict[str, int] = {}

    def choose(self, side: SideDescription, trained: Collection[str]) -> None:
        rows = [table["variable"] for table in side["tables"]]
        has_activations = bool(rows) and side["use_tpu"]
        ulps = VARIABLE_ULPS if has_activations or self._is_free else ACTIVATION_ULPS
        self.ulps = dict.fromkeys([*trained, *(rows if self._is_free else [])], ulps)

    def state(self, values: Mapping[str, Array]) -> Values:
        return {n: perturbed(n, value, self.ulps.get(n, 0)) for n, value in values.items()}

    def substitute(self, number: int, group: str, name: str, value: Array, is_open: bool) -> Array:
        if self._is_free:
            return value
        if group == ACTIVATIONS:
            return perturbed(f"{name} {number}", value, ACTIVATION_ULPS)
        theirs = self._gradient(number, name, is_open) if group == GRADIENTS else None
        if theirs is None or theirs.dtype != value.dtype:
            return value
        if theirs.shape != value.shape and not is_open:
            return value
        self.substituted.add(name.removesuffix(ROWS_OF_SLICES))
        return theirs

    def _gradient(self, number: int, name: str, is_open: bool) -> Array | None:
        with self._lock:
            gradients = self._of_step(number)
        if name.endswith(ROWS_OF_SLICES):
            return gradients.get(name.removesuffix(ROWS_OF_SLICES) + SUMMED_ROWS)
        return gradients.get(name) if is_open == (name + SUMMED_ROWS in gradients) else None

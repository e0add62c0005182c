"""Records what programs of TensorFlow 2 do, by the classes that they declare `verifiable`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator

import tensorflow as tf

import tf2_engine
from estimator_bridge import declared, errors
from estimator_bridge.checkpoint_files import Reader, object_graph
from estimator_bridge.convert.conversion import convert, find
from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verify.record.capture import Arguments, Function, intercept
from estimator_bridge.verify.record.description import Program, describe_training, variable_of
from estimator_bridge.verify.record.recorder import Recorder
from estimator_bridge.verify.record.recording import VARIABLES, Values
from estimator_bridge.verify.record.recording_hook import same_bits
from tf2_engine import tf_compat
from tf2_engine.backends import HostDriver
from tf2_engine.types import Array, Object, Variable

_METHODS = ("train", "restore", "evaluate", "predict")


class Tf2Recorder:
    """Records instances of the classes that a program declares, as a recorder is asked to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._has_trainers = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Records declared classes, and their engines, while the context is open.

        If a program builds an engine by itself, before any TPUEstimator, the run ends with
        InvalidInput: only the program knows what it trains with, and in which order.
        """
        engine_class: Object = tf2_engine.TPUEmbedding
        original = engine_class.__init__

        @functools.wraps(original)
        def init(engine: Object, *args: Object, **kwargs: Object) -> None:
            if not self._recorder.programs:
                raise errors.InvalidInput(
                    "The program builds a tf2_engine.TPUEmbedding by itself, and verify runs "
                    "programs that train a TPUEstimator, or a class that is declared with "
                    "@estimator_bridge.verifiable, such as the Trainer that `migrate --form tf2` "
                    "writes. Declare the class that trains, or compare what the program saves: "
                    "--against-checkpoint; see docs/verify.md."
                )
            native = self._recorder.side.native
            if self._has_trainers and native is not None:
                kwargs.setdefault("driver", HostDriver(native=native))
            original(engine, *args, **kwargs)

        engine_class.__init__ = init
        try:
            with declared.recorded(self._attach):
                yield
        finally:
            engine_class.__init__ = original

    def _attach(self, trainer_class: type) -> None:
        missing = [name for name in _METHODS if not callable(getattr(trainer_class, name, None))]
        if missing:
            raise errors.InvalidInput(
                f"{trainer_class.__name__} is declared with @estimator_bridge.verifiable and has "
                f"no {', '.join(missing)}; the decorator's documentation says what verify calls."
            )
        methods: dict[str, Function] = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": functools.partial(self._recorder.outcomes.evaluate, variables=_read),
            "predict": functools.partial(self._recorder.outcomes.predict, variables=_read),
        }
        if hasattr(trainer_class, "export_saved_model"):
            export = self._recorder.outcomes.export
            methods["export_saved_model"] = functools.partial(export, variables=_read)
        intercept(trainer_class, methods)

    def _init(self, original: Function, trainer: Object, arguments: Arguments) -> None:
        recorder = self._recorder
        self._check(type(trainer).__name__, arguments)
        spec = arguments["embedding_config_spec"]
        legacy = read_spec(spec)
        model_dir = arguments.get("model_dir")
        model_dir = model_dir or getattr(arguments.get("config"), "model_dir", None)
        arguments["model_dir"] = recorder.directory(model_dir)
        arguments["model_fn"] = recorder.capturing(arguments["model_fn"], legacy)
        program = Program(
            recorder.program,
            recorder.side,
            spec,
            legacy,
            use_tpu=True,
            every=recorder.every(legacy),
            batch_size=arguments.get("train_batch_size"),
        )
        recorder.programs[id(trainer)] = trainer, program
        self._has_trainers = True
        original(trainer, **arguments)

    def _check(self, name: str, arguments: Arguments) -> None:
        """Raises InvalidInput if the side cannot run an instance of the class of this name."""
        side = self._recorder.side
        if side.stock or side.use_tpu is False:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({name}), which side {side.name!r} cannot "
                "run: let the side be bridge, bridge-native or bridge-ops."
            )
        if side.software_tpu:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({name}), under the strategy that it "
                f"opens itself; side {side.name!r} runs TPUEstimators. Let the side be bridge."
            )
        if arguments.get("embedding_config_spec") is None or arguments.get("model_fn") is None:
            raise errors.InvalidInput(
                f"{name} is made without `embedding_config_spec` or `model_fn`, by which verify "
                "knows its tables and activations. Compare what the program saves: "
                "--against-checkpoint."
            )

    def _train(self, original: Function, trainer: Object, arguments: Arguments) -> Object:
        recorder = self._recorder
        first = recorder.is_first(trainer)
        if first is None:
            return trainer
        _, program = recorder.programs[id(trainer)]
        if first and recorder.begin_from is not None:
            trainer.restore(self._start(recorder.begin_from, program.spec))
        if not first:
            # An estimator makes a graph for each call, whose random numbers begin anew; here they
            # do when the seed is set.
            seed = getattr(getattr(trainer, "config", None), "tf_random_seed", None)
            tf.random.set_seed(seed)
            tf_compat.begin_random_numbers_anew()
        begin = int(trainer.step.numpy())
        recorder.prepare(arguments, begin)
        callback = _RecordingCallback(recorder, trainer, begin, is_first=first)
        arguments["callbacks"] = [*(arguments.get("callbacks") or ()), callback]
        recorder.training = True
        try:
            return original(trainer, **arguments)
        finally:
            recorder.training = False
            callback.finish()

    def _start(self, begin_from: str, spec: Object) -> str:
        """Returns a checkpoint of the form that the program reads."""
        path = find(begin_from)
        with Reader(path) as reader:
            if object_graph.KEY in reader.tensors:
                return path
        converted = os.path.join(self._recorder.writer.directory, "converted")
        convert(path, converted, spec=spec, allow=("*",))
        return find(converted)


class _RecordingCallback:
    """Writes every variable at the start and after each step of a training."""

    def __init__(self, recorder: Recorder, trainer: Object, begin: int, *, is_first: bool) -> None:
        self._recorder = recorder
        self._trainer = trainer
        self._program = recorder.programs[id(trainer)][1]
        self._begin = begin
        self._is_first = is_first
        self._steps_before = recorder.steps_done - begin
        # The latest step, until it is known whether another one follows.
        self._pending: tuple[int, dict[str, Values]] | None = None

    def on_train_begin(self) -> None:
        recorder, trainer = self._recorder, self._trainer
        recorder.capture.flush(0)
        if not self._is_first:
            return
        if recorder.begin_from is None:
            _save(trainer, recorder.start)
        state = _variables(trainer)
        recorder.writer.step(self._begin, {VARIABLES: state})
        trained = [name for name, variable in trainer.variables.items() if variable.trainable]
        side = describe_training(self._program, trainer, self._begin, recorder.steps_left)
        recorder.begin(side, trained)
        self._take_over(state, recorder.next_state(self._begin, state, is_start=True))

    def on_train_batch_end(self, step: int) -> None:
        """Writes the step before, and keeps this one."""
        self._write()
        (values,) = self._recorder.capture.flush(1)
        if (step - self._begin) % self._program.every == 0:
            self._look(step, values)
        self._pending = step, values
        self._recorder.record_progress(self._steps_before + step)

    def finish(self) -> None:
        """Writes the last step, with the variables."""
        if self._pending is not None and VARIABLES not in self._pending[1]:
            self._look(*self._pending)
        self._write()

    def _look(self, number: int, values: dict[str, Values]) -> None:
        """Adds the variables to the values of a step, and goes on from those of the leader."""
        values[VARIABLES] = state = _variables(self._trainer)
        self._take_over(state, self._recorder.next_state(number, state))

    def _take_over(self, state: Values, next_state: Values) -> None:
        """Gives variables other values, `state` being those that they have."""
        variables = _by_name(self._trainer)
        differing = {
            name: value
            for name, value in next_state.items()
            if name in variables and not same_bits(state[name], value)
        }
        for name, value in differing.items():
            variables[name].assign(value)
        if differing:
            self._trainer.engine.load()

    def _write(self) -> None:
        if self._pending is not None:
            self._recorder.writer.step(*self._pending)
        self._pending = None


def _by_name(trainer: Object) -> dict[str, Variable]:
    """Returns every variable: tables and slots by `variable_of`, the others by their names."""
    variables = dict(trainer.variables)
    variables[GLOBAL_STEP] = trainer.step
    for table in trainer.engine.tables.values():
        for part, (shard,) in table.variables.items():
            variables[variable_of(table.plan.name, part)] = shard
    return variables


def _variables(trainer: Object) -> Values:
    """Returns the values of every variable."""
    trainer.engine.retrieve()
    return {name: variable.numpy() for name, variable in _by_name(trainer).items()}


def _read(trainer: Object, arguments: Arguments) -> Iterable[tuple[str, Array]]:
    """Returns the variables that a method of a trainer has read, with their names."""
    return _variables(trainer).items()


def _save(trainer: Object, path: str) -> None:
    """Writes a checkpoint that the program, and `estimator-bridge convert`, can read."""
    variables = tf.Module()
    for name, variable in trainer.variables.items():
        setattr(variables, name, variable)
    checkpoint = tf.train.Checkpoint(
        embedding=trainer.engine, global_step=trainer.step, variables=variables
    )
    # Who restores it counts on from there.
    checkpoint.save_counter  # noqa: B018 - made when it is read
    checkpoint.write(path)

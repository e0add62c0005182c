"""Hooks that record the steps of a training run, and may make it follow another run."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.recording.files import VARIABLES, SideDescription, Values
from estimator_bridge.verification.record.capture import CallArguments
from estimator_bridge.verification.record.description import (
    LOADS,
    Program,
    describe,
    grouped_variables,
    variable_of,
)
from tf2_engine import tf_compat
from tf2_engine.types import Array, Object, Op, Session, Variable

Describe = Callable[[Program, Object, int, int], SideDescription]
"""Describes a side, given the program, the trainer, the first step and the number of steps."""


class RecordingHook(tf.train.SessionRunHook):
    """Writes every variable at the start and after each session call, and may replace its value."""

    def __init__(self, recorder: Object, model: Object, begin: int, *, is_first: bool) -> None:
        self._recorder = recorder
        self._model = model
        self._is_first = is_first
        self._steps_before = recorder.steps_done - begin
        self._number: int | None = None
        self._loads: list[Op] | None = None

    def begin(self) -> None:
        self._variables = grouped_variables()
        self._trained = {tf_compat.checkpoint_key(one) for one in tf.trainable_variables()}
        self._step = tf.train.get_global_step()
        self._saver = None
        if not self._is_first:
            return
        path = self._recorder.begin_from
        if path is None:
            self._saver = tf.train.Saver(sharded=False)
            return
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for part in itertools.chain(*self._variables.values()):
            name = tf_compat.checkpoint_key(part)
            if shapes.get(name) == [*(tf_compat.checkpoint_shape(part) or ())]:
                # If the target is in a list, each variable gets its own part of the tensor.
                target = part if tf_compat.part_of(part) is None else [part]
                tf.train.init_from_checkpoint(path, {name: target})

    def after_create_session(self, session: Session, coord: Object) -> None:
        if self._number is not None:
            return
        recorder = self._recorder
        if self._saver is not None:
            self._saver.save(session, recorder.start, write_meta_graph=False, write_state=False)
        self._number = int(session.run(self._step))
        recorder.capture.flush(0)
        if not self._is_first:
            return
        state = self._read(session)
        recorder.writer.step(self._number, {VARIABLES: state})
        _, program = recorder.programs[id(self._model)]
        steps = recorder.steps_left
        recorder.begin(
            describe(program, self._model, session.graph, self._number, steps), self._trained
        )
        self._take_over(session, state, recorder.next_state(self._number, state, is_start=True))

    def after_run(self, run_context: Object, run_values: Object) -> None:
        self.record(run_context.session)

    def record(self, session: Session) -> None:
        recorder, number = self._recorder, int(session.run(self._step))
        if self._number is None:
            return
        if number == self._number:  # a call without a step records nothing
            recorder.capture.flush(0)
            return
        state = self._read(session)
        num_steps = number - self._number
        # A call may capture fewer values than it has steps.
        for offset, values in enumerate(recorder.capture.flush(num_steps), 1):
            variables = {VARIABLES: state} if offset == num_steps else {}
            recorder.writer.step(self._number + offset, {**values, **variables})
        self._number = number
        self._take_over(session, state, recorder.next_state(number, state))
        recorder.record_progress(self._steps_before + number)

    def _read(self, session: Session) -> Values:
        return {
            name: parts[0]
            if len(parts) == 1
            else np.concatenate(parts, _axis(self._variables[name]))
            for name, parts in session.run(self._variables).items()
        }

    def _take_over(self, session: Session, state: Values, next_state: Values) -> None:
        assignments: dict[Op, Array] = {}
        for name, target in next_state.items():
            present = state.get(name)
            if (
                present is not None
                and present.shape == target.shape
                and not same_bits(present, target)
            ):
                assignments.update(_assigned(self._variables[name], target))
        if not assignments:
            return
        # Running a variable's initializer assigns the value that is fed to it.
        feed = {op.inputs[1]: value for op, value in assignments.items()}
        session.run([*assignments], feed)
        if self._loads is None:
            ops = session.graph.get_operations()
            self._loads = [op for op in ops if op.type.startswith(LOADS)]
        # A device that is not configured yet will load the variables later.
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            session.run(self._loads)


class BeforeSaving(tf.train.CheckpointSaverListener):
    """Records a step before it is saved, because recording may replace the variables."""

    def __init__(self, hook: RecordingHook) -> None:
        self._hook = hook

    def before_save(self, session: Session, global_step_value: int) -> None:
        self._hook.record(session)


def _assigned(parts: list[Variable], value: Array) -> dict[Op, Array]:
    if len(parts) == 1:
        return {_op(parts[0].initializer): value}
    axis = _axis(parts)
    ends = np.cumsum([part.shape.as_list()[axis] for part in parts])[:-1]
    pairs = zip(parts, np.split(value, ends, axis), strict=True)
    return {_op(part.initializer): rows for part, rows in pairs}


def _axis(parts: list[Variable]) -> int:
    axis, _ = tf_compat.part_of(parts[0]) or (0, 0)
    return axis


def _op(initializer: Op) -> Op:
    return getattr(initializer, "op", initializer)


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@dataclasses.dataclass(eq=False)
class TrainingSteps:
    """A callback that writes every variable at the start and after each step of training."""

    recorder: Object
    trainer: Object
    begin: int
    describe: Describe
    _: dataclasses.KW_ONLY
    is_first: bool

    def __post_init__(self) -> None:
        self._program = self.recorder.programs[id(self.trainer)][1]
        self._steps_before = self.recorder.steps_done - self.begin
        # The latest step. It is written when the next step is done, or at the end.
        self._pending: tuple[int, dict[str, Values]] | None = None

    def on_train_begin(self) -> None:
        recorder, trainer = self.recorder, self.trainer
        recorder.capture.flush(0)
        if not self.is_first:
            return
        if recorder.begin_from is None:
            checkpoint = checkpoint_of(trainer)
            # A program that restores the checkpoint continues to count from this counter.
            checkpoint.save_counter  # noqa: B018 - made when it is read
            checkpoint.write(recorder.start)
        state = values_of(trainer)
        recorder.writer.step(self.begin, {VARIABLES: state})
        trained = [name for name, variable in trainer.variables.items() if variable.trainable]
        side = self.describe(self._program, trainer, self.begin, recorder.steps_left)
        recorder.begin(side, trained)
        self._take_over(state, recorder.next_state(self.begin, state, is_start=True))

    def on_train_batch_end(self, step: int) -> None:
        self._write()
        (values,) = self.recorder.capture.flush(1)
        if (step - self.begin) % self._program.every == 0:
            self._look(step, values)
        self._pending = step, values
        self.recorder.record_progress(self._steps_before + step)

    def finish(self) -> None:
        if self._pending is not None and VARIABLES not in self._pending[1]:
            self._look(*self._pending)
        self._write()

    def _look(self, number: int, values: dict[str, Values]) -> None:
        values[VARIABLES] = state = values_of(self.trainer)
        self._take_over(state, self.recorder.next_state(number, state))

    def _take_over(self, state: Values, next_state: Values) -> None:
        variables = by_name(self.trainer)
        differing = {
            name: value
            for name, value in next_state.items()
            if name in variables and not same_bits(state[name], value)
        }
        for name, value in differing.items():
            variables[name].assign(value)
        if differing:
            self.trainer.engine.load()

    def _write(self) -> None:
        if self._pending is not None:
            self.recorder.writer.step(*self._pending)
        self._pending = None


def by_name(trainer: Object) -> dict[str, Variable]:
    variables = dict(trainer.variables)
    variables[GLOBAL_STEP] = trainer.step
    for table in trainer.engine.tables.values():
        for part, (shard,) in table.variables.items():
            variables[variable_of(table.plan.name, part)] = shard
    return variables


@tf_compat.eagerly()
def values_of(trainer: Object) -> Values:
    trainer.engine.retrieve()
    return {name: variable.numpy() for name, variable in by_name(trainer).items()}


def variables_read(trainer: Object, arguments: CallArguments) -> Iterable[tuple[str, Array]]:
    return values_of(trainer).items()


def checkpoint_of(trainer: Object) -> Object:
    variables = tf.compat.v2.Module()
    for name, variable in trainer.variables.items():
        setattr(variables, name, variable)
    return tf.compat.v2.train.Checkpoint(
        embedding=trainer.engine, global_step=trainer.step, variables=variables
    )

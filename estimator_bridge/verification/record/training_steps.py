"""Records the steps of training in TensorFlow 2, by a `Trainer` or a similar object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf

from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.recording.files import VARIABLES, SideDescription, Values
from estimator_bridge.verification.record.capture import Arguments
from estimator_bridge.verification.record.description import Program, variable_of
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.record.recording_hook import same_bits
from tf2_engine import tf_compat
from tf2_engine.types import Array, Object, Variable

Describe = Callable[[Program, Object, int, int], SideDescription]
"""Describes a side: takes the program, the trainer, the first step and the number of steps."""


@dataclasses.dataclass(eq=False)
class TrainingSteps:
    """A callback that writes every variable at the start and after each step of training."""

    recorder: Recorder
    trainer: Object
    begin: int
    describe: Describe
    _: dataclasses.KW_ONLY
    is_first: bool

    def __post_init__(self) -> None:
        self._program = self.recorder.programs[id(self.trainer)][1]
        self._steps_before = self.recorder.steps_done - self.begin
        # The latest step, until it is known whether another step follows.
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


def variables_read(trainer: Object, arguments: Arguments) -> Iterable[tuple[str, Array]]:
    return values_of(trainer).items()


def checkpoint_of(trainer: Object) -> tf.train.Checkpoint:
    variables = tf.Module()
    for name, variable in trainer.variables.items():
        setattr(variables, name, variable)
    return tf.train.Checkpoint(
        embedding=trainer.engine, global_step=trainer.step, variables=variables
    )

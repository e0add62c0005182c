"""A session hook that records the steps of a training, and begins it from a given start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.verify.record.capture import PART, Capture
from estimator_bridge.verify.record.recording import VARIABLES, Values, Writer
from tf2_engine.types import Graph, Object, Session, Variable


class RecordingHook(tf.train.SessionRunHook):
    """Writes every variable at the start and after each call, and begins from a given start.

    Args:
        begin_from: a checkpoint; variables that it lacks keep their initial values.
        save_start: where to write the start as a checkpoint; None does not.
        is_first: whether this is the first training of the recording, whose start is written.
        on_start: called with the graph.
        on_step: called with the global step.
    """

    def __init__(
        self,
        writer: Writer,
        capture: Capture,
        *,
        begin_from: str | None,
        save_start: str | None,
        is_first: bool,
        on_start: Callable[[Graph], None],
        on_step: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._capture = capture
        self._begin_from = begin_from
        self._save_start = save_start
        self._is_first = is_first
        self._on_start = on_start
        self._on_step = on_step
        self._number: int | None = None

    def begin(self) -> None:
        """Collects the variables, and initialises them from the start."""
        self._variables = grouped_variables()
        self._step = tf.train.get_global_step()
        if self._begin_from is not None:
            reader = tf.train.load_checkpoint(self._begin_from)
            shapes = reader.get_variable_to_shape_map()
            for name, parts in self._variables.items():
                if shapes.get(name) == _whole_shape(parts):
                    target = parts if PART.search(parts[0].op.name) else parts[0]
                    tf.train.init_from_checkpoint(self._begin_from, {name: target})
        self._saver = tf.train.Saver(sharded=False) if self._save_start else None

    def after_create_session(self, session: Session, coord: Object) -> None:
        """Writes the start."""
        if self._number is not None:
            return
        if self._saver is not None:
            self._saver.save(session, self._save_start, write_meta_graph=False, write_state=False)
        self._number = int(session.run(self._step))
        self._capture.flush()
        if self._is_first:
            self._writer.step(self._number, {VARIABLES: self._read(session)})
            self._on_start(session.graph)

    def after_run(self, run_context: Object, run_values: Object) -> None:
        """Writes the steps of the call, the last one with the variables."""
        session = run_context.session
        state, number = self._read(session), int(session.run(self._step))
        assert self._number is not None
        num_steps = number - self._number
        # A call that made no step, or captured less than its steps, ends with the state.
        steps = self._capture.flush()
        steps = [*steps, *({} for _ in range(num_steps - len(steps)))][:num_steps]
        for offset, values in enumerate(steps, 1):
            variables = {VARIABLES: state} if offset == num_steps else {}
            self._writer.step(self._number + offset, {**values, **variables})
        self._number = number
        self._on_step(number)

    def _read(self, session: Session) -> Values:
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in session.run(self._variables).items()
        }


def grouped_variables() -> dict[str, list[Variable]]:
    """Returns the variables of the default graph by their names in a checkpoint, part by part."""
    grouped: dict[str, list[Variable]] = {}
    for variable in tf.global_variables():
        grouped.setdefault(PART.sub("", variable.op.name), []).append(variable)
    return grouped


def _whole_shape(parts: list[Variable]) -> list[int]:
    first, *others = (part.shape.as_list() for part in parts)
    return [first[0] + sum(other[0] for other in others), *first[1:]] if others else first

"""Functions for sessions: repeated `run` calls, the global step, Savers and summary writers."""

from __future__ import annotations

import collections
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management as _checkpoint_management
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.ops import summary_ops_v2 as _summary_ops
from tensorflow.python.training import evaluation as _evaluation
from tensorflow.python.training import training_util as _training_util

from tf2_engine.types import Array, Graph, Message, Nest, Object, Op, Session, Tensor


def set_global_step_read(value: Tensor) -> None:
    tf.compat.v1.get_collection_ref(_training_util.GLOBAL_STEP_READ_KEY)[:] = [value]


def read_global_step(graph: Graph) -> Tensor:
    key = _training_util.GLOBAL_STEP_READ_KEY
    if tf.distribute.has_strategy() and not graph.get_collection(key):
        # TensorFlow cannot read a mirrored step.
        step = tf.compat.v1.train.get_global_step()
        graph.add_to_collection(key, tf.distribute.get_strategy().extended.read_var(step))
    return _training_util._get_or_create_global_step_read(graph)


def count_evaluation_step() -> Op:
    step = _evaluation._get_or_create_eval_step()
    return tf.compat.v1.assign_add(step, 1, use_locking=True)


def read_logged_variables(hook: Object) -> None:
    tensors = getattr(hook, "_tensors", None)
    if isinstance(tensors, dict):
        hook._tensors = {
            tag: tf.identity(each) if isinstance(each, tf.Variable) else each
            for tag, each in tensors.items()
        }


def add_saving_listener(hook: Object, listener: object) -> None:
    if listener not in hook._listeners:
        hook._listeners.append(listener)


def path_of_saver(hook: Object) -> str:
    path: str = hook._save_path
    return path


def publish_checkpoint(path: str) -> None:
    directory = os.path.dirname(path)
    state = tf.train.get_checkpoint_state(directory)
    paths = [*(state.all_model_checkpoint_paths if state is not None else ()), path]
    # If the directory is relative, paths must be relative to the file.
    names = [os.path.basename(p) if os.path.dirname(p) == directory else p for p in paths]
    older = [name for name in names[:-1] if name != names[-1]]
    _checkpoint_management.update_checkpoint_state_internal(
        directory, names[-1], [*older, names[-1]], save_relative_paths=True
    )


summary_ops = _summary_ops
"""Summaries that are written with the global step, as in `tf.contrib.summary`."""

summary_writer_initializers: Callable[[], list[Op]] = _summary_ops.summary_writer_initializer_op


_MAX_PLANS = 64
"""The maximum number of plans per session: new fetches in every call must not fill the memory."""

_RUN = tf.compat.v1.Session.run
_LEAVES = (tf.Tensor, tf.Operation)
_DICTS = (dict, collections.OrderedDict)


def remember_fetches(session: Session) -> None:
    """Speeds up repeated calls to `session.run` by analysing the same fetches only once.

    The public `Session.make_callable` is not used: its errors do not show the program line that
    created the failing op, and the callable keeps the session and its variables alive.
    """
    # A session with a cost model returns metadata from every call.
    if not session._config or not session._config.graph_options.build_cost_model:
        session.run = _RememberedFetches(session).run


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The C handles of a call's tensors and ops, and the position of each leaf in the result.

    An op's position is None. The plan keeps leaves alive, because they are identified by `id`.
    """

    leaves: Sequence[Object]
    outputs: Sequence[Object]
    targets: Sequence[Object]
    positions: Sequence[int | None]


class _RememberedFetches:
    """The `run` method of one session, with the plans of earlier fetches.

    A closed session keeps its variables until it is garbage collected. Therefore this object has
    only a weak reference to the session, and does not keep fetches: they may contain hooks that
    refer to the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._plans: dict[tuple[int, ...], _Plan] = {}

    def run(
        self,
        fetches: Nest,
        feed_dict: Object = None,
        options: Message | None = None,
        run_metadata: Message | None = None,
    ) -> Nest:
        session = self._session()
        assert session is not None  # The caller of `run` keeps the session alive.
        leaves: list[Object] = []
        kind: Object = type(session)
        plain = kind.run
        if (
            feed_dict
            or (options is not None and options.ByteSize())
            or session._closed
            or plain is not _RUN
            or not _flatten(fetches, leaves)
        ):
            return plain(session, fetches, feed_dict, options, run_metadata)
        key = tuple(map(id, leaves))
        plan = self._plans.get(key)
        if plan is None:
            # TensorFlow's `run` checks the fetches and extends the graph in C.
            result = plain(session, fetches, feed_dict, options, run_metadata)
            self._remember(key, session.graph, leaves)
            return result
        values: Sequence[Array] = ()
        if plan.outputs or plan.targets:  # The C API refuses to run without outputs and targets.
            values = session._do_call(
                session._call_tf_sessionrun, None, {}, plan.outputs, plan.targets, None
            )
        if run_metadata is not None:
            run_metadata.Clear()
        return _pack(fetches, iter(plan.positions), values)

    def _remember(self, key: tuple[int, ...], graph: Graph, leaves: list[Object]) -> None:
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = _plan_of(graph, leaves)
        if plan is not None:
            self._plans[key] = plan


def _plan_of(graph: Graph, leaves: list[Object]) -> _Plan | None:
    outputs: dict[int, int] = {}
    targets: list[Object] = []
    tensors: list[Tensor] = []
    positions: list[int | None] = []
    for leaf in leaves:
        element = graph.as_graph_element(leaf)
        if isinstance(element, tf.Operation):
            targets.append(element._c_op)
            positions.append(None)
            continue
        if element.op.type.startswith("GetSessionHandle"):  # Its result is a Python object.
            return None
        position = outputs.setdefault(id(element), len(outputs))
        if position == len(tensors):
            tensors.append(element)
        positions.append(position)
    return _Plan(leaves, [tensor._as_tf_output() for tensor in tensors], targets, positions)


def _flatten(fetches: Nest, leaves: list[Object]) -> bool:
    kind = type(fetches)
    if kind in _DICTS:
        return all(_flatten(value, leaves) for value in fetches.values())
    if kind is list or kind is tuple:
        return all(_flatten(value, leaves) for value in fetches)
    leaves.append(fetches)
    return kind is _resource_variable_ops.ResourceVariable or isinstance(fetches, _LEAVES)


def _pack(fetches: Nest, positions: Iterator[int | None], values: Sequence[Array]) -> Nest:
    kind = type(fetches)
    if kind in _DICTS:
        return kind((key, _pack(value, positions, values)) for key, value in fetches.items())
    if kind is list or kind is tuple:
        return kind(_pack(value, positions, values) for value in fetches)
    position = next(positions)
    return None if position is None else values[position]

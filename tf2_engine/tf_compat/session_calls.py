"""Speeds up repeated session calls by analysing the fetches only in the first call.

`Session.run` walks through the fetches in Python in every call. With hooks it also passes options
and metadata. The public `Session.make_callable` is no replacement: its errors do not show the
program line that created the failing op, and it keeps the session and its variables alive.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops

from tf2_engine.types import Array, Graph, Message, Nest, Object, Session, Tensor

_MAX_PLANS = 64
"""The largest number of plans per session, because fetches that always change would fill memory."""

_RUN = tf.compat.v1.Session.run
_LEAVES = (tf.Tensor, tf.Operation)
_DICTS = (dict, collections.OrderedDict)


def remember_fetches(session: Session) -> None:
    # A session with a cost model returns metadata from every call.
    if not session._config or not session._config.graph_options.build_cost_model:
        session.run = _RememberedFetches(session).run


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The C handles of a call's tensors and ops, and the position of each leaf in the result.

    Ops have no position. The plan keeps the leaves alive because they are identified by `id`.
    """

    leaves: Sequence[Object]
    outputs: Sequence[Object]
    targets: Sequence[Object]
    positions: Sequence[int | None]


class _RememberedFetches:
    """The `run` of one session.

    A closed session keeps its variables until it is garbage collected. Therefore this object must
    not refer to the session strongly, either directly or through the hooks in the fetches.
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

"""Speeds up repeated session calls: only the first call with some fetches analyses them.

`Session.run` walks the fetches in Python in every call, and with hooks it also passes options and
metadata. The public `Session.make_callable` is no replacement: its errors lack the program line
that made the failing op, and it keeps the session, with its variables, alive.
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
"""For each session. Fetches that differ from call to call must not fill the memory."""

_RUN = tf.compat.v1.Session.run
_LEAVES = (tf.Tensor, tf.Operation)
_DICTS = (dict, collections.OrderedDict)


def remember_fetches(session: Session) -> None:
    """Makes `session.run` fast for fetches that it has seen before, with equal results."""
    # With a cost model, every call returns metadata.
    if not session._config or not session._config.graph_options.build_cost_model:
        session.run = _RememberedFetches(session).run


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The C handles of a call's tensors and ops, and the position of each leaf's value.

    Ops have no value. Leaves are kept alive because they are identified by their `id`.
    """

    leaves: Sequence[Object]
    outputs: Sequence[Object]
    targets: Sequence[Object]
    positions: Sequence[int | None]


class _RememberedFetches:
    """The `run` of one session.

    A closed session keeps its variables until it is freed. So nothing here may hold a strong
    reference to it, neither directly nor through hooks, which are keys of the fetches.
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
        assert session is not None  # The caller of `run` holds a reference.
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
            # TensorFlow's method checks the fetches and extends the graph in C.
            result = plain(session, fetches, feed_dict, options, run_metadata)
            self._remember(key, session.graph, leaves)
            return result
        values: Sequence[Array] = ()
        if plan.outputs or plan.targets:  # In C it is an error to run nothing.
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
        if element.op.type.startswith("GetSessionHandle"):  # A handle is a Python object.
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

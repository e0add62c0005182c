"""Computes gradients of losses for a model_fn, and thereby also trains the model's tables.

A model_fn calls these functions instead of its optimizers' methods. As with
`tf.compat.v1.tpu.CrossShardOptimizer`, each replica differentiates its share of the loss, and the
gradients of all replicas are summed. As in a TPUEstimator, asking for the gradient of a table's
dummy variable trains the table.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.training.model_variables import DUMMY_PREFIX
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

GradientsAndVariables = list[tuple[Tensor | None, Variable]]


class Differentiated(NamedTuple):
    """A loss whose gradient a model_fn has computed.

    `share` is this replica's share of the loss, a tensor or a list of tensors. `upstream` is the
    gradient with respect to `share` (`grad_ys` of `tf.gradients`); None means 1. The loss trains
    `tables`.
    """

    loss: Tensor
    share: Nest
    upstream: Nest
    tables: frozenset[str]


class Differentiations:
    """Collects the losses that a model_fn differentiates in one step."""

    def __init__(self, of_tables: Mapping[str, Variable]) -> None:
        self._tables = {id(dummy): table for table, dummy in of_tables.items()}
        self._losses: list[Differentiated] = []

    def tables_of(self, variables: Sequence[Object]) -> list[str | None]:
        return [self._tables.get(id(each)) for each in variables]

    def record(
        self, loss: Tensor, share: Nest, upstream: Nest, tables: Sequence[str | None]
    ) -> None:
        named = frozenset(each for each in tables if each is not None)
        self._losses.append(Differentiated(loss, share, upstream, named))

    def gradients(
        self, activations: Mapping[str, Tensor], tables: Mapping[str, str]
    ) -> dict[str, Tensor]:
        """Computes the gradients of activations, which are zero for tables that no loss trains.

        `tables` maps each feature to its table.

        Raises:
            InvalidInput: nothing was differentiated, or several losses have a gradient for one
                activation.
        """
        if not self._losses:
            raise errors.InvalidInput(
                "The model_fn computes no gradient that trains a table. Call training.minimize or "
                "training.compute_gradients; or call training.gradients with the dummy variables "
                "of the tables, which tf.compat.v1.trainable_variables() includes."
            )
        taken: dict[str, Tensor] = {}
        for each in self._merged():
            keys = [key for key in activations if tables[key] in each.tables]
            sources = [activations[key] for key in keys]
            gradients = tf.gradients(each.share, sources, grad_ys=each.upstream)
            for key, gradient in zip(keys, gradients, strict=True):
                if gradient is not None and key in taken:
                    raise errors.InvalidInput(_taken_twice(key, tables[key]))
                if gradient is not None:
                    taken[key] = gradient
        for key in activations.keys() - taken.keys():
            log.warning(_NO_GRADIENT, key)
        return {
            key: taken[key] if key in taken else tf.zeros_like(value)
            for key, value in activations.items()
        }

    def _merged(self) -> list[Differentiated]:
        merged: dict[int, Differentiated] = {}
        for each in self._losses:
            first = merged.setdefault(id(each.loss), each)
            merged[id(each.loss)] = first._replace(tables=first.tables | each.tables)
        return [*merged.values()]


_NO_GRADIENT = (
    "Feature %r: no loss has a gradient for its activation; zeros are sent. Optimizers other than "
    "SGD may move rows at a zero gradient."
)


def _taken_twice(feature: str, table: str) -> str:
    return (
        f"Feature {feature!r}: several losses are differentiated with respect to its activation, "
        "but only one can train a table. Differentiate the sum of the losses, or leave "
        f"{DUMMY_PREFIX}{table} out of the `var_list` of all losses but one."
    )


class _OfThread(threading.local):
    step: Differentiations | None = None


_here = _OfThread()


@contextlib.contextmanager
def recorded(of_tables: Mapping[str, Variable]) -> Iterator[Differentiations]:
    before, _here.step = _here.step, Differentiations(of_tables)
    try:
        yield _here.step
    finally:
        _here.step = before


def minimize(
    optimizer: Object,
    loss: Tensor,
    global_step: Variable | None = None,
    var_list: Sequence[Variable] | None = None,
    *args: Object,
    **settings: Object,
) -> Op:
    """Trains variables and tables with the gradient of this replica's share of a loss.

    Args:
        optimizer: an optimizer of `tf.compat.v1.train`, or an object with the same methods.
        global_step: a variable that is incremented when the variables are updated. `Trainer` counts
            every step in any case.
        var_list: by default all trainable variables and all tables.
        *args, **settings: further arguments of `optimizer.minimize`.
    """
    with _recording(loss, var_list, settings.get("grad_loss")) as (share, variables, tables):
        kept = _without_tables(variables, tables)
        if kept or not variables:
            return optimizer.minimize(share, global_step, kept or var_list, *args, **settings)
        # The model has only tables.
        return tf.no_op() if global_step is None else global_step.assign_add(1, read_value=False)


def compute_gradients(
    optimizer: Object,
    loss: Tensor,
    var_list: Sequence[Variable] | None = None,
    *args: Object,
    **settings: Object,
) -> GradientsAndVariables:
    """Computes the gradients of the loss. A program can change them before `apply_gradients`.

    As in a TPUEstimator, such a change does not affect tables. The gradients of the tables' dummy
    variables are 0.

    Args:
        optimizer, loss, var_list, *args, **settings: as for `minimize`.
    """
    with _recording(loss, var_list, settings.get("grad_loss")) as (share, variables, tables):
        kept = _without_tables(variables, tables)
        pairs: GradientsAndVariables = []
        if kept or not variables:
            pairs = optimizer.compute_gradients(share, kept or var_list, *args, **settings)
        if len(pairs) != len(kept):
            return pairs
        taken = iter(pairs)
        return [
            next(taken) if table is None else (tf.zeros_like(each), each)
            for each, table in zip(variables, tables, strict=True)
        ]


def gradients(
    ys: Nest, xs: Nest, grad_ys: Nest = None, *args: Object, **settings: Object
) -> list[Tensor | None]:
    """Returns `tf.gradients(ys, xs)`, and trains the tables whose dummy variables are in `xs`.

    As in the legacy program, but unlike in `minimize`, `ys` is not divided by the number of
    replicas. The gradients of dummy variables are 0.
    """
    step, sources = _here.step, tf.nest.flatten(xs)
    tables: list[str | None] = [None] * len(sources)
    if step is not None:
        tables = step.tables_of(sources)
        if any(tables):
            step.record(tf.nest.flatten(ys)[0], ys, grad_ys, tables)
    others = _without_tables(sources, tables)
    taken = iter(tf.gradients(ys, others, grad_ys, *args, **settings))
    return [
        next(taken) if table is None else tf.zeros_like(each)
        for each, table in zip(sources, tables, strict=True)
    ]


def CrossShardOptimizer(  # noqa: N802
    opt: Object,
    reduction: str = tf.compat.v1.losses.Reduction.MEAN,
    name: str = "CrossShardOptimizer",
    group_assignment: Object = None,
) -> Object:
    """Returns the optimizer itself, because the strategy sums the gradients of all replicas.

    Raises:
        InvalidSpec: the arguments do not ask for the mean over all replicas.
    """
    if reduction != tf.compat.v1.losses.Reduction.MEAN or group_assignment is not None:
        raise errors.InvalidSpec(
            f"{name}: reduction={reduction!r} and group_assignment={group_assignment!r} are not "
            "supported, because gradients are averaged over all replicas. Leave these arguments "
            "out, or train with a TPUEstimator, which supports them."
        )
    return opt


@contextlib.contextmanager
def _recording(
    loss: Tensor, var_list: Sequence[Variable] | None, upstream: Tensor | None
) -> Iterator[tuple[Tensor, list[Variable], list[str | None]]]:
    """Yields the replica's share of a loss, the variables to train, and the tables to train.

    If one optimizer calls another, the loss is recorded only once.
    """
    step = _here.step
    if step is None:
        variables = [*(var_list or ())]
        yield loss, variables, [None] * len(variables)
        return
    variables = [*(tf.compat.v1.trainable_variables() if var_list is None else var_list)]
    share = loss / tf.distribute.get_strategy().num_replicas_in_sync
    tables = step.tables_of(variables)
    step.record(loss, share, upstream, tables)
    _here.step = None
    try:
        yield share, variables, tables
    finally:
        _here.step = step


def _without_tables(variables: Sequence[Variable], tables: Sequence[str | None]) -> list[Variable]:
    return [each for each, table in zip(variables, tables, strict=True) if table is None]

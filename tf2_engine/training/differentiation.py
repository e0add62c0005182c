"""Gradients of a model's variables; the loss that they are taken of also trains the tables.

A model_fn calls these functions in place of the methods of its optimizers. The strategy adds the
gradients of all replicas, so that each replica contributes its share of the loss, as with
`tf.compat.v1.tpu.CrossShardOptimizer`. A table is trained by the loss whose variables have the
table's dummy (see `dummies`) among them, as in a TPUEstimator.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.training import dummies
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

GradientsAndVariables = list[tuple[Tensor | None, Variable]]


class Differentiated(NamedTuple):
    """A loss whose gradient a model_fn has taken.

    Attributes:
        loss: as the program has it.
        share: that of this replica, a tensor or a list of them.
        upstream: the gradient of `share`, as `tf.gradients` takes it; None is 1.
        tables: those that it trains.
    """

    loss: Tensor
    share: Nest
    upstream: Nest
    tables: frozenset[str]


class Differentiations:
    """Keeps the losses that a model_fn differentiates in one step.

    Args:
        of_tables: the dummy of each table.
    """

    def __init__(self, of_tables: Mapping[str, Variable]) -> None:
        self.dummies = of_tables
        self.losses: list[Differentiated] = []

    def gradients(
        self, activations: Mapping[str, Tensor], tables: Mapping[str, str]
    ) -> dict[str, Tensor]:
        """Returns the gradients of activations; zeros where no loss trains the table.

        Args:
            tables: the table of each feature.

        Raises:
            InvalidInput: nothing was differentiated, or the gradient of an activation is taken of
                several losses.
        """
        if not self.losses:
            raise errors.InvalidInput(
                "The model_fn takes no gradient that trains a table. Call training.minimize, "
                "training.compute_gradients, or training.gradients with the dummies of the tables "
                "among its variables, as tf.compat.v1.trainable_variables() has them."
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
        """Returns each loss once: it may be differentiated for several optimizers."""
        merged: dict[int, Differentiated] = {}
        for each in self.losses:
            first = merged.setdefault(id(each.loss), each)
            merged[id(each.loss)] = first._replace(tables=first.tables | each.tables)
        return [*merged.values()]


_NO_GRADIENT = (
    "Feature %r: no loss has a gradient for its activation; zeros are sent. Optimizers other than "
    "SGD may move rows at a zero gradient."
)


def _taken_twice(feature: str, table: str) -> str:
    return (
        f"Feature {feature!r}: the gradient of its activation is taken of several losses, and a "
        "table is trained by one. Train by their sum, or leave "
        f"{dummies.PREFIX}{table} out of the `var_list` of all but one."
    )


class _OfThread(threading.local):
    """Keeps the losses of the replica that is traced in this thread."""

    step: Differentiations | None = None


_here = _OfThread()


@contextlib.contextmanager
def recorded(of_tables: Mapping[str, Variable]) -> Iterator[Differentiations]:
    """Yields an object to which the losses are added whose gradients are taken in the context."""
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
    """Trains variables of a model, and the tables, by the gradient of the loss.

    Args:
        optimizer: of `tf.compat.v1.train`, or with the same methods.
        loss: scalar; the gradient of its share of this replica is applied.
        global_step: has no effect: `Trainer` counts each step.
        var_list: by default all trainable variables, and so all tables.
        *args, **settings: others of `optimizer.minimize`.
    """
    with _recording(loss, var_list, settings.get("grad_loss")) as (share, variables, of_tables):
        kept = [each for each in variables if dummies.table_of(each, of_tables) is None]
        if variables and not kept:
            return tf.no_op()  # The model has tables alone.
        return optimizer.minimize(share, None, kept or var_list, *args, **settings)


def compute_gradients(
    optimizer: Object,
    loss: Tensor,
    var_list: Sequence[Variable] | None = None,
    *args: Object,
    **settings: Object,
) -> GradientsAndVariables:
    """Returns the gradients of the loss, to be changed and applied by `apply_gradients`.

    The tables are trained by the gradient of the loss, whatever becomes of those that are returned:
    clipping, for instance, does not reach the tables, as in a TPUEstimator. The gradients of their
    dummies are 0.

    Args:
        optimizer, loss, var_list, *args, **settings: as those of `minimize`.
    """
    with _recording(loss, var_list, settings.get("grad_loss")) as (share, variables, of_tables):
        kept = [each for each in variables if dummies.table_of(each, of_tables) is None]
        pairs: GradientsAndVariables = []
        if kept or not variables:
            pairs = optimizer.compute_gradients(share, kept or var_list, *args, **settings)
        taken = iter(pairs)
        if len(pairs) != len(kept):
            return pairs
        return [
            (tf.zeros_like(each), each)
            if dummies.table_of(each, of_tables) is not None
            else next(taken)
            for each in variables
        ]


def gradients(
    ys: Nest, xs: Nest, grad_ys: Nest = None, *args: Object, **settings: Object
) -> list[Tensor | None]:
    """Returns `tf.gradients(ys, xs)`; with dummies of tables among `xs`, `ys` trains the tables.

    In contrast to `minimize`, every replica contributes all of `ys`, as in the legacy program. The
    gradients of dummies are 0.
    """
    step, sources = _here.step, tf.nest.flatten(xs)
    tables: list[str | None] = [None] * len(sources)
    if step is not None:
        tables = [dummies.table_of(each, step.dummies) for each in sources]
        named = frozenset(each for each in tables if each is not None)
        if named:
            step.losses.append(Differentiated(tf.nest.flatten(ys)[0], ys, grad_ys, named))
    others = [each for each, table in zip(sources, tables, strict=True) if table is None]
    taken = iter(tf.gradients(ys, others, grad_ys, *args, **settings))
    return [
        next(taken) if table is None else tf.zeros_like(each)
        for each, table in zip(sources, tables, strict=True)
    ]


def CrossShardOptimizer(opt: Object, *args: Object, **settings: Object) -> Object:  # noqa: N802
    """Returns the optimizer itself: the strategy adds the gradients of its replicas."""
    return opt


@contextlib.contextmanager
def _recording(
    loss: Tensor, var_list: Sequence[Variable] | None, upstream: Tensor | None
) -> Iterator[tuple[Tensor, list[Variable], Mapping[str, Variable]]]:
    """Yields the share of a loss, the variables that it trains, and the dummies of tables.

    Records the loss unless an optimizer calls from within another.
    """
    step = _here.step
    if step is None:
        yield loss, [*(var_list or ())], {}
        return
    variables = [*(tf.compat.v1.trainable_variables() if var_list is None else var_list)]
    share = loss / tf.distribute.get_strategy().num_replicas_in_sync
    tables = [dummies.table_of(each, step.dummies) for each in variables]
    named = frozenset(each for each in tables if each is not None)
    step.losses.append(Differentiated(loss, share, upstream, named))
    _here.step = None
    try:
        yield share, variables, step.dummies
    finally:
        _here.step = step

"""Computes gradients of losses for a model_fn, and thereby also trains the model's tables.

A model_fn calls these functions instead of its optimizers' methods. The strategy sums the gradients
of all replicas, so each replica differentiates its share of the loss, as with
`tf.compat.v1.tpu.CrossShardOptimizer`. As in a TPUEstimator, a loss trains a table if the program
asks for the gradient of the table's dummy variable (see `dummies`).
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
    """A loss whose gradient a model_fn has computed.

    Attributes:
        loss: the program's loss.
        share: this replica's share of the loss, a tensor or a list of tensors.
        upstream: the gradient of `share` (`grad_ys` of `tf.gradients`). None means 1.
        tables: the tables that the loss trains.
    """

    loss: Tensor
    share: Nest
    upstream: Nest
    tables: frozenset[str]


class Differentiations:
    """Collects the losses whose gradients a model_fn computes in one step.

    Args:
        of_tables: maps each table's name to its dummy variable.
    """

    def __init__(self, of_tables: Mapping[str, Variable]) -> None:
        self.dummies = of_tables
        self.losses: list[Differentiated] = []

    def gradients(
        self, activations: Mapping[str, Tensor], tables: Mapping[str, str]
    ) -> dict[str, Tensor]:
        """Computes the gradients of activations, which are zero for tables that no loss trains.

        Args:
            tables: maps each feature to its table.

        Raises:
            InvalidInput: nothing was differentiated, or several losses have a gradient for one
                activation.
        """
        if not self.losses:
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
        f"Feature {feature!r}: several losses are differentiated with respect to its activation, "
        "but only one can train a table. Differentiate the sum of the losses, or leave "
        f"{dummies.PREFIX}{table} out of the `var_list` of all losses but one."
    )


class _OfThread(threading.local):
    step: Differentiations | None = None


_here = _OfThread()


@contextlib.contextmanager
def recorded(of_tables: Mapping[str, Variable]) -> Iterator[Differentiations]:
    """Yields an object that collects all losses whose gradients are computed inside the context."""
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
    """Trains the variables and tables of a model with the gradient of the loss.

    Args:
        optimizer: an optimizer of `tf.compat.v1.train`, or an object with the same methods.
        loss: a scalar. The gradient of this replica's share of the loss is applied.
        global_step: a variable that is incremented when the variables are updated, as in a session.
            `Trainer` counts every step in any case.
        var_list: by default all trainable variables and all tables.
        *args, **settings: further arguments of `optimizer.minimize`.
    """
    with _recording(loss, var_list, settings.get("grad_loss")) as (share, variables, of_tables):
        kept = [each for each in variables if dummies.table_of(each, of_tables) is None]
        if variables and not kept:
            # The model has only tables.
            return (
                tf.no_op() if global_step is None else global_step.assign_add(1, read_value=False)
            )
        return optimizer.minimize(share, global_step, kept or var_list, *args, **settings)


def compute_gradients(
    optimizer: Object,
    loss: Tensor,
    var_list: Sequence[Variable] | None = None,
    *args: Object,
    **settings: Object,
) -> GradientsAndVariables:
    """Computes the gradients of the loss. A program can change them before `apply_gradients`.

    As in a TPUEstimator, changing the returned gradients, for instance clipping them, does not
    affect tables. The gradients of dummies are 0.

    Args:
        optimizer, loss, var_list, *args, **settings: as for `minimize`.
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
    """Returns `tf.gradients(ys, xs)`. If `xs` contains dummies of tables, `ys` trains these tables.

    As in the legacy program, but unlike in `minimize`, each replica differentiates `ys` itself and
    not a share of it. The gradients of dummies are 0.
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


def CrossShardOptimizer(  # noqa: N802
    opt: Object,
    reduction: str = tf.compat.v1.losses.Reduction.MEAN,
    name: str = "CrossShardOptimizer",
    group_assignment: Object = None,
) -> Object:
    """Returns the optimizer itself, because the strategy sums the gradients of all replicas.

    Raises:
        InvalidSpec: the arguments ask for anything but the mean of the gradients over all replicas.
    """
    if reduction != tf.compat.v1.losses.Reduction.MEAN or group_assignment is not None:
        raise errors.InvalidSpec(
            f"{name}: reduction={reduction!r} and group_assignment={group_assignment!r} are not "
            "supported: gradients are averaged over all replicas. Leave them out, or train with a "
            "TPUEstimator, which takes them."
        )
    return opt


@contextlib.contextmanager
def _recording(
    loss: Tensor, var_list: Sequence[Variable] | None, upstream: Tensor | None
) -> Iterator[tuple[Tensor, list[Variable], Mapping[str, Variable]]]:
    """Yields the replica's share of a loss, the variables to train, and the dummies of tables.

    Records the loss, except in an optimizer that another optimizer calls.
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

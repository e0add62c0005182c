"""Replaces TensorFlow 1 names that need a graph or a session, for use in model_fns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.training import model_variables
from tf2_engine.training.model_variables import name_of
from tf2_engine.types import Object, Op, Tensor, TensorLike, Variable

v1 = tf.compat.v1


class Saver:
    """Replaces `tf.compat.v1.train.Saver` in a `Scaffold`. `Trainer` writes the checkpoints.

    Attributes:
        renamed: maps names in the checkpoint to the variables that evaluations and predictions
            restore from these names; see `ExponentialMovingAverage.variables_to_restore`.
        max_to_keep, keep_checkpoint_every_n_hours: which checkpoints to keep.
    """

    def __init__(
        self,
        var_list: Mapping[str, Variable] | Iterable[Variable] | None = None,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        **settings: Object,
    ) -> None:
        self.renamed = dict(var_list) if isinstance(var_list, Mapping) else {}
        self.max_to_keep = max_to_keep
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours

    def save(self, *args: Object, **settings: Object) -> None:
        """Raises OutOfOrder, because `Trainer.train` writes checkpoints."""
        raise errors.OutOfOrder(
            "Saver.save: there is no session to save. Trainer.train writes checkpoints, as its "
            "RunConfig says."
        )

    restore = save


@dataclasses.dataclass(frozen=True)
class Scaffold:
    """Replaces `tf.compat.v1.train.Scaffold` in the result of a model_fn."""

    saver: Saver | None = None
    summary_op: object = None  # has no effect, because all summaries are written


class ExponentialMovingAverage:
    """Keeps averages of variables: average = decay * average + (1 - decay) * variable.

    Each run of the op from `apply` updates the averages, which start with the variables' initial
    values. In model_fns, this class replaces `tf.compat.v1.train.ExponentialMovingAverage`, and
    saves averages under the same names.

    Args:
        decay: between 0 and 1.
        num_updates: if given, the decay is min(decay, (1 + num_updates) / (10 + num_updates)).
        name: the last part of the averages' names.

    Raises:
        InvalidSpec: `zero_debias` is set.
    """

    def __init__(
        self,
        decay: TensorLike,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if zero_debias:
            raise errors.InvalidSpec(
                "ExponentialMovingAverage: zero_debias=True is not supported, because averages "
                "begin with the initial values of the variables. Leave the argument out."
            )
        self._decay, self._num_updates, self.name = decay, num_updates, name
        self._averages: dict[str, Variable] = {}

    def apply(self, var_list: Iterable[Variable] | None = None) -> Op:
        """Updates averages of variables, by default of all trainable ones, and returns the op."""
        decay = tf.convert_to_tensor(self._decay, tf.float32)
        if self._num_updates is not None:
            updates = tf.cast(self._num_updates, tf.float32)
            decay = tf.minimum(decay, (1.0 + updates) / (10.0 + updates))
        ops = []
        for variable in model_variables.trainable() if var_list is None else var_list:
            average = self._make(variable)
            rate = tf.cast(1.0 - decay, average.dtype)
            ops.append(average.assign_sub((average - variable) * rate, read_value=False))
        return tf.group(*[op for op in ops if op is not None])

    def average(self, var: Variable) -> Variable | None:
        """Returns the average of a variable, or None."""
        return self._averages.get(name_of(var))

    def average_name(self, var: Variable) -> str:
        """Returns the name of a variable's average in checkpoints."""
        return f"{name_of(var)}/{self.name}"

    def variables_to_restore(
        self, moving_avg_variables: Iterable[Variable] | None = None
    ) -> dict[str, Tensor]:
        """Maps names in a checkpoint to the variables that are restored from these names.

        Args:
            moving_avg_variables: the variables to restore from their averages; by default all
                trainable ones.
        """
        averaged = model_variables.trainable()
        if moving_avg_variables is not None:
            averaged = list(moving_avg_variables)
        names = {name_of(variable): self.average_name(variable) for variable in averaged}
        variables = {name_of(variable): variable for variable in averaged}
        everything = model_variables.current().variables
        averages = set(names.values())
        variables.update({n: v for n, v in everything.items() if n not in averages})
        return {names.get(name, name): variable for name, variable in variables.items()}

    def _make(self, variable: Variable) -> Variable:
        name = name_of(variable)
        if name not in self._averages:
            store = model_variables.current()
            self._averages[name] = store.average_of(variable, self.average_name(variable))
        return self._averages[name]


_OF_LAYER = "/Regularizer/"
"""The scope in which `tf.compat.v1.layers` compute their variables' losses a second time."""


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Lists the regularization losses of the model, in the order of the model's variables.

    After them come losses that the model_fn itself added to the collection.

    Args:
        scope: a regular expression. Variables and losses whose names do not match are left out.
    """
    computed = [
        regularizer()
        for name, regularizer in model_variables.current().regularizers()
        if scope is None or re.match(scope, name)
    ]
    added = [
        loss for loss in v1.losses.get_regularization_losses(scope) if _OF_LAYER not in loss.name
    ]
    return [*(loss for loss in computed if loss is not None), *added]


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """Sums the regularization losses. If there are none, the sum is 0."""
    losses = get_regularization_losses(scope)
    return tf.add_n(losses, name=name) if losses else tf.constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Sums the losses of `tf.compat.v1.losses` and the regularization losses."""
    losses = v1.losses.get_losses(scope=scope)
    if add_regularization_losses:
        losses = losses + get_regularization_losses(scope)
    if not losses:
        raise ValueError("The model has no losses to add; compute one with tf.compat.v1.losses.")
    return tf.add_n(losses, name=name)


def placeholder(*args: Object, **settings: Object) -> Tensor:
    """Creates a placeholder in the default graph or, if there is none, in a new graph."""
    if not tf.executing_eagerly():
        return v1.placeholder(*args, **settings)
    with tf.Graph().as_default():
        return v1.placeholder(*args, **settings)


def shared_embedding_columns(*args: Object, **settings: Object) -> list[Object]:
    """Calls `tf.compat.v1.feature_column.shared_embedding_columns` in a graph."""
    with tf.Graph().as_default():
        return v1.feature_column.shared_embedding_columns(*args, **settings)


def shared_embeddings(*args: Object, **settings: Object) -> list[Object]:
    """Calls `tf.feature_column.shared_embeddings` in a graph."""
    with tf.Graph().as_default():
        return tf.feature_column.shared_embeddings(*args, **settings)

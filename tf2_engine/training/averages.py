"""Exponential moving averages of variables, with the names and results of TensorFlow 1's class."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.training import model_variables
from tf2_engine.types import Op, Tensor, TensorLike, Variable


class ExponentialMovingAverage:
    """Keeps averages of variables: average = decay * average + (1 - decay) * variable.

    Each run of the op from `apply` updates the averages. Use this class in model_fns instead of
    `tf.compat.v1.train.ExponentialMovingAverage`. An average starts with the initial value of its
    variable. In checkpoints it has the name that TensorFlow 1 would give it.

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
                "ExponentialMovingAverage: zero_debias=True is not supported: averages begin with "
                "the initial value of their variable. Leave it out."
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
        return self._averages.get(_name(var))

    def average_name(self, var: Variable) -> str:
        """Returns the name of a variable's average in checkpoints."""
        return f"{_name(var)}/{self.name}"

    def variables_to_restore(
        self, moving_avg_variables: Iterable[Variable] | None = None
    ) -> dict[str, Tensor]:
        """Maps names in a checkpoint to the variables that are restored from these names.

        Args:
            moving_avg_variables: the variables to restore from their averages, by default all
                trainable variables.
        """
        averaged = model_variables.trainable()
        if moving_avg_variables is not None:
            averaged = list(moving_avg_variables)
        names = {_name(variable): self.average_name(variable) for variable in averaged}
        variables = {_name(variable): variable for variable in averaged}
        everything = model_variables.current().variables
        averages = set(names.values())
        variables.update({n: v for n, v in everything.items() if n not in averages})
        return {names.get(name, name): variable for name, variable in variables.items()}

    def _make(self, variable: Variable) -> Variable:
        name = _name(variable)
        if name not in self._averages:
            store = model_variables.current()
            self._averages[name] = store.average_of(variable, self.average_name(variable))
        return self._averages[name]


def _name(variable: Variable) -> str:
    return str(variable.name.partition(":")[0])

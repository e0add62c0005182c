"""What a driver answers to: six verbs, and one made of three of them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine.batch import RawIds
from tf2_engine.cores import Cores, EmulatedCores
from tf2_engine.plan import Plan
from tf2_engine.tables import Table

Update = Callable[[Sequence[Sequence[Any]], Sequence[Any]], Any]
"""Takes gradients and rates as `Driver.send_gradients` does; returns the op that updates."""


def building_graph() -> bool:
    """Whether a plain `tf.Graph` is under construction: then ops must be run by whoever runs it."""
    return not tf.executing_eagerly() and not tf.inside_function()


class Driver(abc.ABC):
    """Runs a plan on some device.

    A verb speaks of one global step: what differs between cores comes as a sequence with one
    entry per core, in core order. In a `tf.Graph` the verbs return ops that the caller must run;
    in a tf.function and eagerly they have taken effect when they return.
    """

    @classmethod
    def for_engine(cls, *, initialize: bool) -> Driver:
        """Returns the driver of an engine that is made in the current scope.

        Args:
            initialize: whether to initialise the hardware, if there is any to initialise.
        """
        return cls()

    def cores(self, count: int | None, hosts: int | None) -> Cores:
        """Returns the cores of an engine that is made in the current scope.

        Args:
            count, hosts: how many the user asks for; None is for the driver to say.

        Raises:
            InvalidSpec: there are others.
        """
        return EmulatedCores(count, 1 if hosts is None else hosts)

    def initialized(self) -> bool | None:
        """Whether an engine has initialised the hardware already; None where it cannot be asked.

        Hosts have none to initialise.
        """
        return False

    @abc.abstractmethod
    def configure(self, plan: Plan) -> Any:
        """Gets ready to run `plan`; state of an earlier plan is dropped."""

    @abc.abstractmethod
    def load(self, tables: Mapping[str, Table]) -> Any:
        """Takes parameters and slots over from the variables, for instance after a restore."""

    @abc.abstractmethod
    def retrieve(self, tables: Mapping[str, Table]) -> Any:
        """Brings the variables up to date, for instance before a checkpoint is written."""

    @abc.abstractmethod
    def enqueue(
        self, inputs: Sequence[Sequence[RawIds] | None], training: Any, name: str | None = None
    ) -> Any:
        """Hands over one batch.

        Args:
            inputs: per core, per feature; None for a core whose part comes with another call.
            training: whether gradients will come back; a bool or a scalar bool tensor.
            name: tags the batch: a `dequeue` and `send_gradients` of that name take it.
        """

    @abc.abstractmethod
    def dequeue(self, name: str | None = None) -> Sequence[Sequence[Any]]:
        """Returns the activations of the oldest batch that was not looked up yet.

        Returns:
            Per core, per feature: [*output_shape, dim] float32.

        Raises:
            OutOfOrder: nothing is enqueued.
        """

    @abc.abstractmethod
    def send_gradients(
        self, gradients: Sequence[Sequence[Any]], rates: Sequence[Any], name: str | None = None
    ) -> Any:
        """Updates the tables with the gradients of the oldest training batch looked up.

        Args:
            gradients: per core, per feature: the shape of the activation, float32.
            rates: the dynamic learning rates by tag, scalar float32.

        Raises:
            OutOfOrder: no batch waits for gradients.
        """

    def look_up(
        self,
        inputs: Sequence[Sequence[RawIds] | None],
        training: bool | None,
        name: str | None = None,
    ) -> tuple[Sequence[Sequence[Any]], Update]:
        """Looks one batch up at once, when nobody knows yet whether its gradients will come.

        A device finds out by itself: a rewrite of the graph turns a batch into one for inference
        if no op of its name sends gradients. The software TPU has no such rewrite: there a batch
        is for inference if it is known that no gradients can come.

        Args:
            inputs: as those of `enqueue`.
            training: None where it is not known; False if no gradients can come.
            name: tells the batches of a graph from each other.

        Returns:
            What `dequeue` returns, and what sends the gradients of this batch, if it is called.
        """
        self.enqueue(inputs, training is not False, name)
        return self.dequeue(name), lambda gradients, rates: self.send_gradients(
            gradients, rates, name
        )

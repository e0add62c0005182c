"""Builds an engine: a plan, tables, and a driver that is configured for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, shapes
from tf2_engine.backends.interface import Driver, EngineCores
from tf2_engine.graph_mode import building_graph
from tf2_engine.plan import Plan, Shape, make_plan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import Table, VariableFactory, create_tables
from tf2_engine.types import Nest, Op


@dataclasses.dataclass(frozen=True)
class BuiltEngine:
    """The parts of an engine that exist once it is built.

    Attributes:
        plan: the plan that the driver runs.
        tables: the variables of every table, slots included, by table name.
        ops: in a `tf.Graph` the ops that configure the driver and hand it the tables, else None.
    """

    plan: Plan
    tables: dict[str, Table]
    ops: tuple[Op, Op] | None


class Builder:
    """Makes plans for an engine, and builds it.

    Args:
        training: whether tables have slots and are updated.
        batch_size: the global batch size, or None.
        variable_factory: makes the variables; None leaves it to the cores.

    Raises:
        InvalidSpec: the cores do not divide the batch size.
    """

    def __init__(
        self,
        spec: EngineSpec,
        driver: Driver,
        cores: EngineCores,
        *,
        training: bool,
        batch_size: int | None,
        variable_factory: VariableFactory | None,
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._cores = cores
        self._training = training
        self._variable_factory = variable_factory or cores.variable_factory
        self._batch_size = shapes.per_core(batch_size, cores.count)

    def plan_for(self, output_shapes: Sequence[Shape]) -> Plan:
        """Returns the plan for activations of these shapes, without `dim`, in feature order."""
        return make_plan(
            self._spec,
            output_shapes,
            num_hosts=self._cores.hosts,
            num_cores=self._cores.count,
            training=self._training,
        )

    def plan_for_inputs(self, input_shapes: Nest, batch_size: int | None) -> Plan:
        """Returns the plan for the arguments of `TPUEmbedding.build`.

        Args:
            batch_size: samples per core; None takes the batch size of the engine.
        """
        size = self._batch_size if batch_size is None else batch_size
        return self.plan_for(shapes.from_arguments(self._spec, input_shapes, size))

    def plan_for_batch(self, output_shapes: Sequence[Shape], *, fixed: bool) -> Plan:
        """Returns the plan for a first batch.

        Args:
            output_shapes: the shapes of its activations.
            fixed: whether it fixes the size of the batches to come.
        """
        if not fixed:
            output_shapes = [(None, *shape[1:]) for shape in output_shapes]
        return self.plan_for(shapes.with_batch_size(self._spec, output_shapes, self._batch_size))

    def build(self, plan: Plan, track: Callable[[Mapping[str, Table]], None]) -> BuiltEngine:
        """Makes the variables, configures the driver and hands it the tables.

        Args:
            track: makes the tables part of checkpoints. A restore that came first reaches them
                then, before the driver takes them over.
        """
        # Inside a tf.function variables and queues belong outside of it; in a plain graph they
        # belong to the graph.
        with tf.init_scope():
            tables = create_tables(plan, self._variable_factory)
            track(tables)
            ops = (self._driver.configure(plan), self._driver.load(tables))
            return BuiltEngine(plan, tables, ops if building_graph() else None)


def not_built(call: str) -> errors.OutOfOrder:
    """Returns the error for a call on an engine that is not built."""
    return errors.OutOfOrder(
        f"`{call}` is called on an engine that is not built; call `enqueue` first, or `build`."
    )

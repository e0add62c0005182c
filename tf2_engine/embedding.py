"""The mid-level API: enqueue a batch, dequeue its activations, apply gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import batch, errors, specs, structure
from tf2_engine.config_proto import config_proto
from tf2_engine.drivers import DRIVERS
from tf2_engine.drivers.base import Driver, building_graph
from tf2_engine.plan import Plan, Shape, make_plan
from tf2_engine.tables import PARAMETERS, Table, VariableFactory, create_tables


class TPUEmbedding:
    """Embedding tables that are looked up and trained with the arithmetic of a TPU.

    Works eagerly, in tf.functions and in a `tf.Graph`. In a graph the methods return ops, and
    whoever runs the graph runs them.

        embedding = TPUEmbedding(feature_config, optimizer=Adagrad(0.1))
        embedding.enqueue(features)
        activations = embedding.dequeue()
        ...
        embedding.apply_gradients(gradients)

    Unlike `tf.tpu.experimental.embedding.TPUEmbedding` it runs without a TPU, and the
    configuration objects that are passed in are not changed.

    Args:
        feature_config: an `EngineSpec`, or any nest of
            `tf.tpu.experimental.embedding.FeatureConfig`.
        optimizer: for tables without one.
        pipeline_execution_with_tensor_core: activations do not see the update of the step before.
        driver: what runs the plan, by name or as an object.
        num_cores: cores to emulate on one machine. With more than one, batches, activations and
            gradients are lists with one entry per core.
        num_hosts: hosts whose row placement to emulate.
        training: False makes no slots and looks up alone.
        variable_factory: makes the variables of the tables; see `tables.create_tables`.

    Raises:
        InvalidSpec: a setting cannot be honoured; the message names it.
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Any = None,
        pipeline_execution_with_tensor_core: bool = False,
        *,
        driver: str | Driver = "host",
        num_cores: int = 1,
        num_hosts: int = 1,
        training: bool = True,
        variable_factory: VariableFactory | None = None,
    ) -> None:
        if isinstance(feature_config, specs.EngineSpec):
            self._spec = feature_config
        else:
            self._spec = specs.from_feature_config(
                feature_config,
                optimizer,
                pipeline_execution_with_tensor_core=pipeline_execution_with_tensor_core,
            )
        self._driver = driver if isinstance(driver, Driver) else _make_driver(driver)
        self._num_cores = num_cores
        self._num_hosts = num_hosts
        self._training = training
        self._variable_factory = variable_factory
        self._plan: Plan | None = None
        self._tables: dict[str, Table] = {}

    def __repr__(self) -> str:
        state = "built" if self._plan else "not built"
        return f"<TPUEmbedding {len(self._spec.tables)} tables, {self._driver!r}, {state}>"

    @property
    def plan(self) -> Plan:
        """The plan that the driver runs."""
        if self._plan is None:
            raise errors.OutOfOrder(
                "The engine is not built yet; `build` or `enqueue` comes first."
            )
        return self._plan

    @property
    def config_proto(self) -> Any:
        """The `TPUEmbeddingConfiguration` of the plan."""
        return config_proto(self.plan)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The variables of every table, slots included, by table name."""
        return self._tables

    @property
    def embedding_tables(self) -> dict[str, tuple[tf.Variable, ...]]:
        """The shards of every table's parameters, by table name."""
        return {name: table.variables[PARAMETERS] for name, table in self._tables.items()}

    def build(self, output_shapes: Sequence[Shape]) -> None:
        """Makes the plan and the variables, and configures the driver.

        Args:
            output_shapes: for each feature of the spec the per-core shape of its activation
                without `dim`.

        Raises:
            OutOfOrder: the engine is built already.
        """
        if self._plan is not None:
            raise errors.OutOfOrder("The engine is built already.")
        plan = make_plan(
            self._spec,
            output_shapes,
            num_hosts=self._num_hosts,
            num_cores=self._num_cores,
            training=self._training,
        )
        # Inside a tf.function variables and queues belong outside of it; in a plain graph they
        # belong to the graph.
        with tf.init_scope():
            tables = create_tables(plan, self._variable_factory)
            self._driver.configure(plan)
            self._driver.load(tables)
        self._plan, self._tables = plan, tables

    def enqueue(
        self, features: Any, weights: Any = None, training: Any = True, name: str | None = None
    ) -> Any:
        """Hands over one batch; the first one fixes shapes and builds the engine.

        Args:
            features: the structure of the feature config, with int32 or int64 Tensors,
                SparseTensors and RaggedTensors as leaves; a list of such per core when there are
                several cores.
            weights: None, or the same structure with a weight tensor or None per feature.
            training: whether gradients will come back.
            name: tags the ops.

        Returns:
            In a `tf.Graph` an op, or None where there is nothing to run.

        Raises:
            InvalidInput, WrongType: the batch does not fit; the message names the feature.
        """
        per_core = self._per_core(features, "features")
        weight_per_core = self._per_core(weights, "weights") if weights is not None else None
        flat = [structure.flatten(self._spec.structure, core, "features") for core in per_core]
        flat = [[_as_tensor(value) for value in core] for core in flat]
        shapes = [self._output_shapes(core) for core in flat]
        for other in shapes[1:]:
            self._check_shapes(shapes[0], other)
        if self._plan is None:
            self.build(shapes[0])
        else:
            self._check_shapes([feature.output_shape for feature in self.plan.features], shapes[0])
        inputs = []
        for core, values in enumerate(flat):
            core_weights = (
                [None] * len(values)
                if weight_per_core is None
                else structure.flatten(self._spec.structure, weight_per_core[core], "weights")
            )
            inputs.append(
                [
                    batch.read_ids(feature, value, weight)
                    for feature, value, weight in zip(
                        self.plan.features, values, core_weights, strict=True
                    )
                ]
            )
        return _op(self._driver.enqueue(inputs, training, name))

    def dequeue(self, name: str | None = None) -> Any:
        """Returns the activations of the oldest batch that was not looked up yet.

        Returns:
            The structure of the feature config; for each feature [*output_shape, dim] float32. A
            list of such per core when there are several cores.

        Raises:
            OutOfOrder: nothing is enqueued. (While a tf.function runs it is an
                InvalidArgumentError with the same message.)
        """
        plan = self.plan
        packed = [structure.pack(plan.structure, core) for core in self._driver.dequeue(name)]
        return packed if plan.num_cores > 1 else packed[0]

    def apply_gradients(self, gradients: Any, name: str | None = None) -> Any:
        """Updates the tables with the gradients of the oldest training batch looked up.

        Args:
            gradients: the structure that `dequeue` returned, each of the shape of the activation;
                None counts as zeros, and the rows are updated with them.
            name: tags the ops.

        Returns:
            In a `tf.Graph` the op that updates.

        Raises:
            InvalidInput, WrongType: a gradient does not fit; the message names the feature.
            OutOfOrder: no batch waits for gradients.
        """
        plan = self.plan
        if not plan.training:
            raise errors.OutOfOrder(
                "`apply_gradients` is not possible: the engine was made with training=False."
            )
        flat = [
            [
                self._read_gradient(feature, value)
                for feature, value in zip(
                    plan.features, structure.flatten(plan.structure, core, "gradients"), strict=True
                )
            ]
            for core in self._per_core(gradients, "gradients")
        ]
        rates = [tf.cast(rate(), tf.float32) for rate in plan.dynamic_rates]
        return _op(self._driver.send_gradients(flat, rates, name))

    def load(self) -> Any:
        """Makes the driver take over the values of the variables, as after a restore."""
        return _op(self._driver.load(self._tables))

    def retrieve(self) -> Any:
        """Brings the variables up to date, as before a checkpoint."""
        return _op(self._driver.retrieve(self._tables))

    def _per_core(self, value: Any, what: str) -> list[Any]:
        if self._num_cores == 1:
            return [value]
        if not isinstance(value, (list, tuple)) or len(value) != self._num_cores:
            raise errors.InvalidInput(
                f"`{what}` must be a list with one entry for each of the {self._num_cores} cores."
            )
        return list(value)

    def _output_shapes(self, values: Sequence[Any]) -> list[Shape]:
        return [
            batch.output_shape(
                feature.name, feature.max_sequence_length, feature.output_shape, value
            )
            for feature, value in zip(self._spec.features, values, strict=True)
        ]

    def _check_shapes(self, expected: Sequence[Shape], found: Sequence[Shape]) -> None:
        for feature, want, got in zip(self._spec.features, expected, found, strict=True):
            if len(want) != len(got) or any(
                a is not None and b is not None and a != b for a, b in zip(want, got, strict=True)
            ):
                raise errors.InvalidInput(
                    f"Feature {feature.name!r}: the engine is built for activations of shape "
                    f"{tuple(want)}, but this batch leads to {tuple(got)}. Batches must keep their "
                    "shape."
                )

    @staticmethod
    def _read_gradient(feature: Any, value: Any) -> Any:
        expected = [*feature.output_shape, feature.table.dim]
        if value is None:
            if feature.cells is None:
                raise errors.InvalidInput(
                    f"{feature.where}: the gradient is None, and the batch size is not fixed, so "
                    "zeros cannot stand in for it. Pass zeros of the shape of the activation."
                )
            warnings.warn(
                f"{feature.where}: the gradient is None; zeros are used. Optimizers other than SGD "
                "may move rows at a zero gradient.",
                stacklevel=3,
            )
            return tf.zeros(expected, tf.float32)
        if isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value)
        if not isinstance(value, tf.Tensor):
            raise errors.WrongType(
                f"{feature.where}: a gradient must be a tensor, got {type(value).__name__}."
            )
        if value.dtype != tf.float32:
            raise errors.WrongType(
                f"{feature.where}: a gradient must be float32, got {value.dtype.name}."
            )
        if not value.shape.is_compatible_with(expected):
            raise errors.InvalidInput(
                f"{feature.where}: found a gradient of shape {value.shape}, expected {expected}."
            )
        return value


def _op(done: Any) -> Any:
    # Outside of a plain graph the call has taken effect, and a tf.function may not return an op.
    return done if building_graph() else None


def _make_driver(name: str) -> Driver:
    if name not in DRIVERS:
        raise errors.InvalidSpec(f"`driver` must be one of {', '.join(DRIVERS)}, got {name!r}.")
    return DRIVERS[name]()


def _as_tensor(value: Any) -> Any:
    # numpy arrays are welcome; everything else is judged where its feature is known.
    return (
        tf.convert_to_tensor(value)
        if hasattr(value, "__array__") and not isinstance(value, (tf.Tensor, tf.Variable))
        else value
    )

"""Builds steps with use_tpu=True: the engine has the tables, and the model reads activations.

The model_fn is traced before the engine is built, with placeholders as activations, because the
names of the tables depend on the variable scopes that the model_fn opens.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input import feeding
from estimator_bridge.runtime.input.feature_splitting import (
    CoreInput,
    Notify,
    cut_predictions,
    pad_batch,
    split_batch,
    split_features,
)
from estimator_bridge.runtime.input.feeding import CoreLayout, NotifyOfPython, run_at_start
from estimator_bridge.runtime.program_types import CallModel, Hook, InputBatch, ModelSpec, ReadInput
from estimator_bridge.runtime.step import activation_proxy, devices
from estimator_bridge.runtime.step.core_tracing import CoreTracer, sum_in_order
from estimator_bridge.runtime.step.model_step import (
    ModelStep,
    check_spec,
    join_cores,
    step_of_specs,
)
from estimator_bridge.runtime.step.table_variables import NAMES, table_factory, variable_names
from estimator_bridge.settings import render
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation import on_sparse_cores
from estimator_bridge.translation.translate import output_shapes, translate
from tf2_engine import EngineSpec, TPUEmbedding, structure, tf_compat
from tf2_engine.batch import FeatureBatch
from tf2_engine.types import Graph, Object, Op, Tensor, TensorLike


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """The settings of a step that runs on the engine."""

    legacy: LegacySpec | None  # None for a model without an embedding spec
    cores: CoreLayout
    engine: devices.Engine
    notify: Notify
    predict_batch_size: int  # a prediction's batch is padded to this many samples in all cores
    core_batch_size: int  # samples per core, for devices that need the size beforehand
    notify_of_python: NotifyOfPython | None = None  # see `read_per_core`


def build_engine_step(
    mode: str, input_fn: ReadInput, model_fn: CallModel, settings: EngineSettings
) -> ModelStep:
    if mode != ModeKeys.PREDICT:
        batches, hooks = feeding.read_per_core(
            input_fn, settings.cores, settings.legacy, settings.notify_of_python
        )
        feeding.tell_of_queues()
        return _build(mode, batches, hooks, model_fn, settings)
    settings = dataclasses.replace(settings, cores=settings.cores.for_predictions())
    at_once = dataclasses.replace(settings.cores, count=1)
    ((features, _),), hooks = feeding.read_per_core(input_fn, at_once, settings.legacy)
    size = settings.predict_batch_size
    features, num_samples = pad_batch(features, size)
    batches = [(part, None) for part in split_batch(features, settings.cores.count)]
    step = _build(mode, batches, hooks, model_fn, settings)
    predictions = cut_predictions(step.predictions, size, num_samples)
    return dataclasses.replace(step, predictions=predictions)


def _build(
    mode: str,
    batches: Sequence[InputBatch],
    hooks: Sequence[Hook],
    model_fn: CallModel,
    settings: EngineSettings,
) -> ModelStep:
    legacy = settings.legacy
    if legacy is None or not legacy.features:
        if legacy is not None:
            # Columns that only tensor cores use have their tables as variables of the model.
            inputs = [split_features(features, legacy, settings.notify) for features, _ in batches]
            batches = [(part.features, b[1]) for part, b in zip(inputs, batches, strict=True)]
        specs = _trace(mode, batches, model_fn, settings.cores)
        return _step(mode, specs, hooks, broadcast=settings.cores.is_broadcast)
    embedding = _Embedding(mode, legacy, batches, settings)
    specs = _trace(mode, embedding.batches, model_fn, settings.cores, embedding.proxies)
    update = embedding.connect()
    step = _step(mode, specs, [*embedding.device.hooks, *hooks])
    return embedding.trained(step, update) if mode == ModeKeys.TRAIN else step


_ATTRIBUTE = "_tables_of_step"


@dataclasses.dataclass(frozen=True)
class TablesOfStep:
    """The engine of a step, and each core's inputs and gradients, for hooks of the same graph."""

    engine: TPUEmbedding
    inputs: Sequence[CoreInput]
    gradients: Sequence[Mapping[str, Tensor]]
    train_op: Op
    is_current: bool

    def parts(self) -> list[list[FeatureBatch]]:
        order = self.engine.plan.structure
        parts = []
        for part in self.inputs:
            ids, weights = (
                structure.flatten(order, nest, "features") for nest in (part.ids, part.weights)
            )
            parts.append([*map(FeatureBatch, ids, weights)])
        return parts

    def gradients_in_order(self) -> list[list[Tensor]]:
        order = self.engine.plan.structure
        return [structure.flatten(order, part, "gradients") for part in self.gradients]


def tables_of_graph(graph: Graph) -> TablesOfStep | None:
    kept: TablesOfStep | None = getattr(graph, _ATTRIBUTE, None)
    return kept


class _Embedding:
    def __init__(
        self, mode: str, legacy: LegacySpec, batches: Sequence[InputBatch], settings: EngineSettings
    ) -> None:
        self._training = mode == ModeKeys.TRAIN
        self._legacy, self._settings = legacy, settings
        self._inputs = [split_features(part, legacy, settings.notify) for part, _ in batches]
        # Rates may depend on the step, so the step is read before the lookup and the train_op.
        self._step = tf.identity(tf.train.get_or_create_global_step())
        spec = translate(legacy, training=self._training, step=lambda: self._step)
        lines = render.warnings_of_step(legacy, training=self._training)
        if devices.arithmetic_of(settings.engine) == "sparsecore":
            on_sparse_cores.check(legacy)
            spec = on_sparse_cores.engine_spec(spec)
            lines += on_sparse_cores.warnings(legacy, training=self._training)
        for line in lines:
            settings.notify(line)
        self._spec = _once_per_graph(spec)
        self._output_shapes = output_shapes(legacy, self._batch_size(batches[0]), len(batches))
        dims = {table.name: table.dim for table in self._spec.tables}
        shapes = {
            feature.key: [*shape, dims[feature.table]]
            for feature, shape in zip(legacy.features, self._output_shapes, strict=True)
        }
        dummies = None
        if self._training:
            # Slots of the model's optimizer are placed with their variable only if it has a device.
            # Without a device, the slots of a dummy would be spread over several parameter servers.
            with settings.cores.on(0):
                by_table = activation_proxy.create_dummies([table.name for table in legacy.tables])
            dummies = {feature.key: by_table[feature.table] for feature in legacy.features}
        self.proxies = []
        self.batches: list[InputBatch] = []
        for core, (part, (_, labels)) in enumerate(zip(self._inputs, batches, strict=True)):
            with settings.cores.on(core):
                # The gradients of later cores are copied from core 0.
                proxy = activation_proxy.ActivationProxy(shapes, None if core else dummies)
                self.batches.append(({**part.features, **proxy.features}, labels))
            self.proxies.append(proxy)

    def connect(self) -> Op:
        names = variable_names(self._legacy, tf_compat.column_scopes(tf.get_default_graph()))
        NAMES[tf.get_default_graph()] = names  # for `verify`
        settings, training = self._settings, self._training
        servers = getattr(settings.engine, "servers", None)
        make = functools.partial(
            TPUEmbedding,
            self._spec,
            training=training,
            variable_factory=table_factory(names, servers),
        )
        self.device = device = devices.make_device(
            settings.engine, settings.cores.count, make, self._output_shapes
        )
        multiplier, multiplier_fn = None, self._legacy.experimental_gradient_multiplier_fn
        if multiplier_fn is not None and self._training:
            multiplier = tf.cast(multiplier_fn(self._step), tf.float32)
        rates = [rate() for rate in device.engine.plan.dynamic_rates] if self._training else []
        activations, enqueued = device.look_up(
            [part.ids for part in self._inputs],
            [part.weights for part in self._inputs],
            self._training,
            [*rates, self._step, *([] if multiplier is None else [multiplier])],
        )
        per_core = list(zip(self.proxies, activations, strict=True))
        for proxy, of_core in per_core:
            proxy.resolve(of_core)
        if not self._training:
            return None
        gradients = [self._sent(proxy, of_core, multiplier) for proxy, of_core in per_core]
        self._gradients = gradients
        return tf.group(device.update(gradients), enqueued)

    def trained(self, step: ModelStep, update: Op) -> ModelStep:
        device, is_pipelined = self.device, self._spec.pipeline_execution_with_tensor_core
        train_op = tf.group(step.train_op, update)
        tables = TablesOfStep(
            device.engine, self._inputs, self._gradients, train_op, not device.holds_tables
        )
        setattr(tf.get_default_graph(), _ATTRIBUTE, tables)
        hooks = [run_at_start(activation_proxy.initialize_dummies())]
        if is_pipelined and self._settings.cores.devices:
            # Workers may still hold a pending update of the previous session. Loading drops this
            # update, because the new session repeats its step.
            hooks.append(run_at_start(device.engine.load()))
        before_save = end_of_loop = None
        is_behind = is_pipelined or device.holds_tables
        if is_behind or self._spec.profile_data_directory:
            before_save = functools.partial(device.retrieve, retrieve=device.engine.retrieve())
        if is_behind:
            with tf.control_dependencies([train_op]):
                end_of_loop = tf.group(device.engine.retrieve())
        return dataclasses.replace(
            step,
            train_op=train_op,
            input_hooks=(*hooks, *step.input_hooks),
            before_save=before_save,
            end_of_loop=end_of_loop,
        )

    def _sent(
        self,
        proxy: activation_proxy.ActivationProxy,
        activations: Mapping[str, Tensor],
        multiplier: Tensor | None,
    ) -> dict[str, Tensor]:
        gradients = {}
        for key, activation in activations.items():
            gradient = proxy.gradients.get(key)
            if gradient is None:
                self._settings.notify(
                    f"Feature {key!r}: the loss has no gradient for its activation; zeros are "
                    "sent. Optimizers other than SGD may move rows at a zero gradient."
                )
                gradient = tf.zeros_like(activation)
            gradients[key] = gradient if multiplier is None else gradient * multiplier
        return gradients

    def _batch_size(self, batch: InputBatch) -> int | None:
        sizes = {ids.shape.as_list()[0] for ids in self._inputs[0].ids.values()}
        batch_size = sizes.pop() if len(sizes) == 1 else None
        expected = self._settings.core_batch_size
        if batch_size is None and (
            self._settings.engine == devices.SOFTWARE_TPU or _dense_sizes(batch) == {expected}
        ):
            batch_size = expected
        return None if batch_size is None else batch_size * len(self._inputs)


def _dense_sizes(batch: InputBatch) -> set[int | None]:
    leaves = tf.nest.flatten(batch)
    return {
        leaf.shape.as_list()[0]
        for leaf in leaves
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank
    }


# These fields of a spec are read for every core. Functions in these fields come from core 0.
_RESULTS_OF_CORES = ("loss", "predictions", "eval_metrics", "host_call")


def _trace(
    mode: str,
    batches: Sequence[InputBatch],
    model_fn: CallModel,
    cores: CoreLayout,
    proxies: Sequence[activation_proxy.ActivationProxy] = (),
) -> list[ModelSpec]:
    tracer = CoreTracer(cores, batches)
    with tracer.trace() as (features, labels):
        spec = model_fn(features, labels)
    check_spec(mode, spec)
    if getattr(spec, "training_chief_hooks", None):
        raise errors.InvalidInput(
            "training_chief_hooks returned by EstimatorSpec is not supported in TPUEstimator. "
            "Give the hooks as `training_hooks`."
        )
    specs: list[Object] = [spec]
    results = {field: getattr(spec, field, None) for field in _RESULTS_OF_CORES}
    gradients = proxies[0].gradients if proxies else {}
    for core in range(1, cores.count):
        of_core, gradients_of_core = tracer.copy(core, (results, gradients))
        specs.append(types.SimpleNamespace(**of_core))
        if proxies:
            proxies[core].gradients = gradients_of_core
    tracer.join()
    # Like stock, the tracer cannot find sums inside TensorFlow 2's control flow.
    sees_sums = not tf.control_flow_v2_enabled()
    if mode == ModeKeys.TRAIN and cores.count > 1 and sees_sums and not tracer.sums:
        raise errors.InvalidInput(
            "CrossShardOptimizer must be used for model training on TPUs with several cores: the "
            "train_op does not sum the gradients of the cores. Wrap the optimizer in tf.tpu."
            "CrossShardOptimizer."
        )
    return specs


def _step(
    mode: str, specs: Sequence[ModelSpec], input_hooks: Sequence[Hook], *, broadcast: bool = False
) -> ModelStep:
    # Cores with the same input are assumed to have the same output.
    step = step_of_specs(mode, specs[:1] if broadcast else specs, on_engine=True)
    step = dataclasses.replace(step, input_hooks=tuple(input_hooks))
    if mode == ModeKeys.EVAL and len(specs) > 1:
        loss = sum_in_order([tf.convert_to_tensor(spec.loss) for spec in specs]) / len(specs)
        step = dataclasses.replace(step, loss=loss)
    if mode == ModeKeys.PREDICT and len(specs) > 1:
        predictions = join_cores(
            "TPUEstimatorSpec.predictions", [spec.predictions for spec in specs]
        )
        step = dataclasses.replace(step, predictions=predictions)
    return step


def _once_per_graph(spec: EngineSpec) -> EngineSpec:
    memoized = functools.cache(_memoized)  # tables with the same rate share its ops
    tables = []
    for table in spec.tables:
        assert table.optimizer is not None  # the translation gives every table an optimizer
        rate = table.optimizer.learning_rate
        if callable(rate):
            optimizer = dataclasses.replace(table.optimizer, learning_rate=memoized(rate))
            table = dataclasses.replace(table, optimizer=optimizer)
        tables.append(table)
    return dataclasses.replace(spec, tables=tuple(tables))


def _memoized(function: Callable[[], TensorLike]) -> Callable[[], TensorLike]:
    results: weakref.WeakKeyDictionary[tf.Graph, TensorLike] = weakref.WeakKeyDictionary()

    def of_this_graph() -> TensorLike:
        graph = tf.get_default_graph()
        if graph not in results:
            results[graph] = function()
        return results[graph]

    return of_this_graph

"""Steps with use_tpu=True: the tables in the TF2 engine, the model around its activations.

The model_fn is traced first, on stand-ins for the activations: only then is known under which
scope its columns put each table, and so what the variables are called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge.legacy.estimator_spec import HostCallHook, ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.input.feature_splitting import CoreInput, Notify, split_features
from estimator_bridge.runtime.input.feeding import Cores, read_per_core
from estimator_bridge.runtime.input.padding import cut_predictions, pad_batch
from estimator_bridge.runtime.step.activation_proxy import DUMMY_COLLECTION, Trap, create_dummies
from estimator_bridge.runtime.step.core_tracing import CoreTracer
from estimator_bridge.runtime.step.devices import SOFTWARE_TPU, make_device
from estimator_bridge.runtime.step.host_calls import call_with_all_cores
from estimator_bridge.runtime.step.model_step import Step
from estimator_bridge.runtime.step.plain_step import MODE_HOOKS, check_spec, scaffold_of
from estimator_bridge.runtime.step.table_variables import table_factory, variable_names
from estimator_bridge.translation.legacy_spec import LegacySpec
from estimator_bridge.translation.translate import Translation, translate
from tf2_engine import tf_compat


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """What a step needs beside the user's functions.

    Attributes:
        legacy: the embedding spec as read; None for a model without one.
        cores: how batches are spread.
        engine: what the tables are on: a name of `devices`, or a driver for hosts.
        notify: called with a line for every setting that deserves a warning.
        predict_batch_size: samples that a batch of a prediction is filled up to; None leaves it.
        core_batch_size: samples of a core, for devices that need to know them beforehand.
    """

    legacy: LegacySpec | None
    cores: Cores
    engine: Any
    notify: Notify
    predict_batch_size: int | None = None
    core_batch_size: int | None = None


class InitializeHook(tf.train.SessionRunHook):
    """Initialises variables that no checkpoint holds, in every session that is created."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._op = tf.variables_initializer(list(variables))

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the initialisers."""
        session.run(self._op)


class OncePerGraph:
    """A function whose ops are made once in each graph."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self) -> Any:
        """Returns what the function made in this graph."""
        graph = tf.get_default_graph()
        if graph not in self._made:
            self._made[graph] = self._function()
        return self._made[graph]


def build_engine_step(
    mode: str,
    input_fn: Callable[[], Any],
    model_fn: Callable[[Any, Any], Any],
    settings: EngineSettings,
) -> Step:
    """Builds a step in the default graph.

    Args:
        input_fn: gives a dataset, or features, or (features, labels); its batch size is
            `settings.cores.input_batch_size`.
        model_fn: called once per core with features and labels.
    """
    # Predictions come in the order of the input, so one core makes them.
    if mode == ModeKeys.PREDICT:
        settings.cores.check_for_predictions()
        settings = dataclasses.replace(settings, cores=dataclasses.replace(settings.cores, count=1))
    batches, hooks = read_per_core(input_fn, settings.cores, settings.legacy)
    if mode != ModeKeys.PREDICT:
        return _build(mode, batches, hooks, model_fn, settings)
    ((features, _),) = batches
    size, real = settings.predict_batch_size, None
    if size is not None:
        features, real = pad_batch(features, size)
    step = _build(mode, [(features, None)], hooks, model_fn, settings)
    if size is None:
        return step
    return dataclasses.replace(step, predictions=cut_predictions(step.predictions, size, real))


def _build(
    mode: str,
    batches: Sequence[Any],
    hooks: Sequence[Any],
    model_fn: Callable[[Any, Any], Any],
    settings: EngineSettings,
) -> Step:
    legacy = settings.legacy
    if legacy is not None and not legacy.features:
        # Columns for tensor cores alone: their tables are variables of the model.
        inputs = _core_inputs(batches, legacy, settings)
        batches = [
            (part.features, labels) for part, (_, labels) in zip(inputs, batches, strict=True)
        ]
        legacy = None
    if legacy is None:
        specs = _trace(mode, batches, model_fn, settings.cores)
        broadcast = settings.cores.input_mode == InputPipelineConfig.BROADCAST
        return _step(mode, specs, specs[0].train_op, hooks, broadcast=broadcast)
    embedding = _Embedding(mode, legacy, batches, settings)
    specs = _trace(mode, embedding.batches, model_fn, settings.cores)
    update = embedding.connect()
    train_op = specs[0].train_op
    hooks = [*embedding.hooks, *hooks]
    if mode != ModeKeys.TRAIN:
        return _step(mode, specs, train_op, hooks)
    train_op = tf.group(train_op, update)
    hooks = [InitializeHook(tf.get_collection(DUMMY_COLLECTION)), *hooks]
    return dataclasses.replace(
        _step(mode, specs, train_op, hooks),
        before_save=embedding.before_save(),
        end_of_loop=embedding.end_of_loop(train_op),
    )


class _Embedding:
    """The engine's part of a step: stand-ins first, the engine once the model is traced."""

    def __init__(
        self, mode: str, legacy: LegacySpec, batches: Sequence[Any], settings: EngineSettings
    ) -> None:
        self._training = mode == ModeKeys.TRAIN
        self._legacy = legacy
        self._settings = settings
        self._inputs = _core_inputs(batches, legacy, settings)
        # Read before the train_op moves it: the activations wait for what is made of it.
        self._step = tf.identity(tf.train.get_or_create_global_step())
        self._translation = self._translate()
        dims = {table.name: table.dim for table in self._translation.engine_spec.tables}
        tables = {feature.key: feature.table for feature in legacy.features}
        shapes = {
            feature.key: [*shape, dims[feature.table]]
            for feature, shape in zip(legacy.features, self._translation.output_shapes, strict=True)
        }
        dummies = None
        if self._training:
            made = create_dummies([table.name for table in legacy.tables])
            dummies = {key: made[table] for key, table in tables.items()}
        self._traps = [Trap(shapes, dummies) for _ in self._inputs]
        self.batches = [
            ({**part.features, **trap.features}, labels)
            for part, trap, (_, labels) in zip(self._inputs, self._traps, batches, strict=True)
        ]

    def connect(self) -> Any:
        """Builds the engine around the traced model; returns the op that updates the tables."""
        spec = self._translation.engine_spec
        names = variable_names(self._legacy, tf_compat.column_scopes(tf.get_default_graph()))
        device = self._device = make_device(
            self._settings.engine,
            self._settings.cores.count,
            spec,
            self._translation.output_shapes,
            self._training,
            table_factory(names),
        )
        multiplier = self._multiplier()
        waits = [rate() for rate in device.engine.plan.dynamic_rates] if self._training else []
        activations, enqueued = device.look_up(
            [part.ids for part in self._inputs],
            [part.weights for part in self._inputs],
            self._training,
            [*waits, self._step, *([] if multiplier is None else [multiplier])],
        )
        for trap, core in zip(self._traps, activations, strict=True):
            trap.resolve(core)
        if not self._training:
            return None
        gradients = [
            self._sent(trap, core, multiplier)
            for trap, core in zip(self._traps, activations, strict=True)
        ]
        return tf.group(device.update(gradients), enqueued)

    @property
    def hooks(self) -> tuple[Any, ...]:
        """What sessions need, once the model is connected."""
        return self._device.hooks

    def before_save(self) -> Callable[[Any], None] | None:
        """Returns what brings the variables up to date in a session; None if they always are."""
        spec = self._translation.engine_spec
        if not (self._is_behind or spec.profile_data_directory):
            return None
        retrieve = self._device.engine.retrieve()
        return lambda session: self._device.retrieve(session, retrieve)

    def end_of_loop(self, train_op: Any) -> Any:
        """Returns the train_op of the last step of a loop; None if it is that of the others."""
        if not self._is_behind:
            return None
        with tf.control_dependencies([train_op]):
            return tf.group(self._device.engine.retrieve())

    @property
    def _is_behind(self) -> bool:
        """Whether the variables are behind the tables after a step."""
        pipelined = self._translation.engine_spec.pipeline_execution_with_tensor_core
        return bool(pipelined or self._device.holds_tables)

    def _sent(self, trap: Trap, activations: Mapping[str, Any], multiplier: Any) -> dict[str, Any]:
        sent = {}
        for key, activation in activations.items():
            gradient = trap.gradients.get(key)
            if gradient is None:
                self._settings.notify(
                    f"Feature {key!r}: the loss has no gradient for its activation; zeros are "
                    "sent. Optimizers other than SGD may move rows at a zero gradient."
                )
                gradient = tf.zeros_like(activation)
            sent[key] = gradient if multiplier is None else gradient * multiplier
        return sent

    def _multiplier(self) -> Any:
        function = self._legacy.gradient_multiplier_fn
        if function is None or not self._training:
            return None
        return tf.cast(function(self._step), tf.float32)

    def _translate(self) -> Translation:
        count = len(self._inputs)
        batch = _static_batch(self._inputs[0])
        if batch is None and self._settings.engine == SOFTWARE_TPU:
            batch = self._settings.core_batch_size
        translation = translate(
            self._legacy,
            training=self._training,
            batch_size=None if batch is None else batch * count,
            num_cores=count,
            step=lambda: self._step,
        )
        for note in translation.notes:
            self._settings.notify(note)
        return dataclasses.replace(
            translation, engine_spec=_once_per_graph(translation.engine_spec)
        )


def _core_inputs(
    batches: Sequence[Any], legacy: LegacySpec, settings: EngineSettings
) -> list[CoreInput]:
    assert len(batches) == settings.cores.count
    return [
        split_features(features, legacy, 1, notify=settings.notify)[0] for features, _ in batches
    ]


def _trace(
    mode: str, batches: Sequence[Any], model_fn: Callable[[Any, Any], Any], cores: Cores
) -> list[Any]:
    tracer, devices = CoreTracer(cores.count), cores.devices
    specs = []
    for number, (features, labels) in enumerate(batches):
        where = tf.device(devices[number]) if devices else contextlib.nullcontext()
        with tracer.core(number), where:
            specs.append(model_fn(features, labels))
        check_spec(mode, specs[-1])
    tracer.join()
    return specs


def _step(
    mode: str,
    specs: Sequence[Any],
    train_op: Any,
    input_hooks: Sequence[Any],
    *,
    broadcast: bool = False,
) -> Step:
    first = specs[0]
    hooks = list(getattr(first, MODE_HOOKS[mode]) or ())
    metrics = getattr(first, "eval_metric_ops", None) or {}
    if getattr(first, "eval_metrics", None):
        metrics = _on_host("eval_metrics", specs, broadcast)
    host_call = None
    if getattr(first, "host_call", None):
        host_call = _on_host("host_call", specs, broadcast)
        # In training the device loop runs the ops, and the hook only has the summary writers.
        hooks.append(HostCallHook(None if mode == ModeKeys.TRAIN else host_call))
    loss = first.loss
    if mode == ModeKeys.EVAL and len(specs) > 1:
        loss = tf.add_n([spec.loss for spec in specs]) / len(specs)
    return Step(
        loss=loss,
        train_op=train_op,
        predictions=first.predictions,
        eval_metric_ops=metrics,
        scaffold=scaffold_of(first),
        input_hooks=tuple(input_hooks),
        hooks=tuple(hooks),
        host_call=host_call,
    )


def _on_host(what: str, specs: Sequence[Any], broadcast: bool) -> Any:
    # Cores with the same input are taken to have the same output.
    calls = [getattr(spec, what) for spec in (specs[:1] if broadcast else specs)]
    return call_with_all_cores(what, calls, no_v1_summaries=True)


def _static_batch(part: CoreInput) -> int | None:
    """Returns the samples of a core's batch if every embedding feature says how many."""
    sizes = {ids.shape.as_list()[0] for ids in part.ids.values()}
    return sizes.pop() if len(sizes) == 1 else None


def _once_per_graph(spec: Any) -> Any:
    """Makes each dynamic rate's ops once, so that the lookup can wait for them."""
    wrapped: dict[Any, OncePerGraph] = {}
    tables = []
    for table in spec.tables:
        rate = table.optimizer.learning_rate
        if callable(rate):
            once = wrapped.setdefault(rate, OncePerGraph(rate))
            table = dataclasses.replace(
                table, optimizer=dataclasses.replace(table.optimizer, learning_rate=once)
            )
        tables.append(table)
    return dataclasses.replace(spec, tables=tuple(tables))

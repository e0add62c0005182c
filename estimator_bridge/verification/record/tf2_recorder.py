"""Records TensorFlow 2 training runs of programs that mark a training class as `verifiable`."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import Iterator, Mapping

import tensorflow as tf

import tf2_engine
from estimator_bridge import declared, errors
from estimator_bridge.checkpoint_files import Reader, find, object_graph
from estimator_bridge.convert.conversion import convert
from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import stock_optimizer
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.verification.record.capture import CallArguments, intercept, replaced
from estimator_bridge.verification.record.description import describe_training
from estimator_bridge.verification.record.keras_recorder import KerasRecorder
from estimator_bridge.verification.record.recorder import Recorder, train_a_step
from estimator_bridge.verification.record.recording_hook import TrainingSteps, variables_read
from tf2_engine import tf_compat
from tf2_engine.backends import HostDriver, SparseCoreDriver
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.batch import Batch, FeatureBatch, by_cell, read_ids
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.keras.table_model import TableModelBase
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.training.trainer import Trainer
from tf2_engine.types import Function, Nest, Object, Op, Tensor

_METHODS = ("train", "restore", "evaluate", "predict")
_Queue = dict[str | None, collections.deque[Nest]]


class Tf2Recorder:
    """Records the training of all objects whose classes a program declares `verifiable`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._has_trainers = False
        self._keras = KerasRecorder(recorder)
        # Whether a layer is being constructed. A layer may build an engine; the program may not.
        self._in_layer = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        engine_class: Object = tf2_engine.TPUEmbedding
        original = engine_class.__init__

        @functools.wraps(original)
        def init(engine: Object, *args: Object, **kwargs: Object) -> None:
            if not self._recorder.programs and not self._in_layer:
                raise errors.InvalidInput(
                    "The program builds a tf2_engine.TPUEmbedding itself, but verify only runs "
                    "programs that train a TPUEstimator, a TableModel of tf2_engine.keras, or a "
                    "class that is declared with @estimator_bridge.verifiable, such as the Trainer "
                    "that `migrate --form tf2` writes. Declare the class that trains, or compare "
                    "what the program saves: --against-checkpoint; see docs/verify.md."
                )
            side = self._recorder.side
            if self._has_trainers and side.stock_v2:
                kwargs["driver"] = StockDriver()
            elif (self._has_trainers or self._in_layer) and side.native is not None:
                kwargs["driver"] = kwargs.get("driver") or HostDriver(native=side.native)
            original(engine, *args, **kwargs)

        layer_class: Object = EmbeddingLayer
        original_layer = layer_class.__init__

        @functools.wraps(original_layer)
        def init_layer(layer: Object, *args: Object, **kwargs: Object) -> None:
            with replaced(self, "_in_layer", True):
                original_layer(layer, *args, **kwargs)

        with (
            replaced(engine_class, "__init__", init),
            replaced(layer_class, "__init__", init_layer),
            declared.recorded(self._attach),
        ):
            yield

    def _attach(self, trainer_class: type) -> None:
        if trainer_class is TableModelBase:
            self._keras.attach(trainer_class)
            return
        missing = [name for name in _METHODS if not callable(getattr(trainer_class, name, None))]
        if missing:
            raise errors.InvalidInput(
                f"{trainer_class.__name__} is declared with @estimator_bridge.verifiable, but has "
                f"no {', '.join(missing)}. Add what the decorator's documentation asks for."
            )
        outcomes = self._recorder.outcomes
        methods: dict[str, Function] = {
            "__init__": self._init,
            "train": self._train,
            "evaluate": functools.partial(outcomes.evaluate, variables=variables_read),
            "predict": functools.partial(outcomes.predict, variables=variables_read),
        }
        if hasattr(trainer_class, "export_saved_model"):
            export = functools.partial(outcomes.export, variables=variables_read)
            methods["export_saved_model"] = export
        intercept(trainer_class, methods)

    def _init(self, original: Function, trainer: Object, arguments: CallArguments) -> None:
        recorder = self._recorder
        self._check(type(trainer), arguments)
        spec = arguments.get("embedding_config_spec")
        legacy = None if spec is None else read_spec(spec)
        model_dir = arguments.get("model_dir")
        model_dir = model_dir or getattr(arguments.get("config"), "model_dir", None)
        arguments["model_dir"] = recorder.directory(model_dir)
        arguments["model_fn"] = recorder.capturing(arguments["model_fn"], legacy)
        arithmetic = recorder.side.arithmetic_of(arguments.get("arithmetic"))
        if arithmetic != "tpu":
            _check_takes_arithmetic(original, type(trainer).__name__, recorder.side.name)
            arguments["arithmetic"] = arithmetic
        recorder.remember(
            trainer,
            spec,
            legacy,
            use_tpu=legacy is not None,
            every=recorder.every(bool(legacy and legacy.pipeline_execution_with_tensor_core)),
            batch_size=arguments.get("train_batch_size"),
            arithmetic=arithmetic,
        )
        self._has_trainers = True
        original(trainer, **arguments)

    def _check(self, kind: type, arguments: CallArguments) -> None:
        side, name = self._recorder.side, kind.__name__
        if side.stock or side.use_tpu is False:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({name}), which side {side.name!r} cannot "
                "run. Use side 'bridge', 'bridge-native' or 'bridge-ops'."
            )
        if side.software_tpu:
            raise errors.InvalidInput(
                f"The program trains with TensorFlow 2 ({name}), but side {side.name!r} runs "
                "only TPUEstimators. Use side 'bridge'."
            )
        has_spec = arguments.get("embedding_config_spec") is not None or kind is Trainer
        if not has_spec or arguments.get("model_fn") is None:
            raise errors.InvalidInput(
                f"{name} is created without `embedding_config_spec` or `model_fn`, but to read "
                "tables and activations, verify needs both. To compare only what the program "
                "saves, use --against-checkpoint."
            )

    @tf_compat.eagerly()  # The program may disable eager execution.
    def _train(self, original: Function, trainer: Object, arguments: CallArguments) -> Object:
        recorder = self._recorder
        first = recorder.is_first(trainer)
        if first is None:
            if not recorder.is_recorded(trainer):
                train_a_step(original, trainer, arguments)
            return trainer
        _, program = recorder.programs[id(trainer)]
        if first and recorder.begin_from is not None:
            trainer.restore(self._start(recorder.begin_from, program.spec))
        if not first:
            # Estimators build a graph per call, so their random numbers restart. In TensorFlow 2,
            # setting the seed restarts them.
            seed = getattr(getattr(trainer, "config", None), "tf_random_seed", None)
            tf.random.set_seed(seed)
            tf_compat.begin_random_numbers_anew()
        begin = int(trainer.step.numpy())
        recorder.prepare(arguments, begin)
        callback = TrainingSteps(recorder, trainer, begin, describe_training, is_first=first)
        arguments["callbacks"] = [*(arguments.get("callbacks") or ()), callback]
        try:
            with replaced(recorder, "training", True):
                return original(trainer, **arguments)
        finally:
            callback.finish()

    def _start(self, begin_from: str, spec: Object) -> str:
        path = find(begin_from)
        with Reader(path) as reader:
            if object_graph.KEY in reader.tensors:
                return path
        converted = os.path.join(self._recorder.writer.directory, "converted")
        convert(path, converted, spec=spec, allow=("*",), no_tables=spec is None)
        return find(converted)


def _check_takes_arithmetic(init: Function, name: str, side: str) -> None:
    if "arithmetic" not in inspect.signature(init).parameters:
        raise errors.InvalidInput(
            f"{name} has no argument `arithmetic`, which side {side!r} needs. Use side 'bridge', "
            "or add the argument to the class as in tf2_engine.training.Trainer."
        )


class StockDriver(SparseCoreDriver):
    """Looks up and trains with TPUEmbeddingV2; the base class loads and retrieves the tables."""

    def __init__(self) -> None:
        super().__init__()
        self._embedding: Object = None
        self._waiting: weakref.WeakKeyDictionary[Object, tuple[_Queue, _Queue]] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<StockDriver {self._embedding!r}>"

    def configure(self, plan: Plan) -> Op:
        done = super().configure(plan)
        with tf.init_scope(), self._strategy.scope():
            kind = tf.tpu.experimental.embedding.TPUEmbeddingV2
            self._embedding = kind(_feature_config(plan))
            self._embedding.build()
        for table in self._tables:
            table.variables = dict(self._embedding.variables[table.stack.name])
        return done

    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        (part,) = batch.parts.values()
        enqueued, _ = self._of_computation()
        enqueued.setdefault(name, collections.deque()).append(part)
        return tf.group()

    def dequeue(self, name: str | None = None) -> Activations:
        enqueued, looked_up = self._of_computation()
        part = enqueued[name].popleft()
        features = zip(self._ready().features, part, strict=True)
        inputs = [_by_row(feature, each) for feature, each in features]
        activations, preserved = self._embedding(
            {_key(position): each.ids for position, each in enumerate(inputs)},
            {_key(position): each.weights for position, each in enumerate(inputs)},
        )
        looked_up.setdefault(name, collections.deque()).append(preserved)
        return [[activations[_key(position)] for position in range(len(part))]]

    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        _, looked_up = self._of_computation()
        (of_core,) = gradients
        sent = {_key(position): gradient for position, gradient in enumerate(of_core)}
        self._embedding.apply_gradients(sent, looked_up[name].popleft())
        return tf.group()

    def _of_computation(self) -> tuple[_Queue, _Queue]:
        computation = tf_compat.tpu_computation_context()
        if computation is None:
            raise tf2_engine.errors.OutOfOrder("TPUEmbeddingV2 only works inside `strategy.run`.")
        return self._waiting.setdefault(computation, ({}, {}))


def _by_row(feature: FeaturePlan, values: FeatureBatch) -> FeatureBatch:
    if not isinstance(values.ids, tf.SparseTensor) or len(feature.output_shape) == 1:
        return values
    raw = by_cell(feature, read_ids(feature, values.ids, values.weights))
    shape = tf.stack([tf.cast(raw.num_samples, tf.int64), 1])
    ids = tf.SparseTensor(raw.index, raw.ids, shape)
    return FeatureBatch(ids, None if raw.weight is None else ids.with_values(raw.weight))


def _key(position: int) -> str:
    # Stock orders features by their keys.
    return f"{position:06}"


def _feature_config(plan: Plan) -> Mapping[str, Object]:
    emb, optimizer_of = tf.tpu.experimental.embedding, functools.cache(stock_optimizer)
    tables = {}
    for table in plan.tables:
        optimizer, reason = optimizer_of(table.optimizer)
        if reason is not None:
            raise errors.InvalidSpec(f"Table {table.name!r}: {reason}.")
        # The driver of SparseCores refuses any other value.
        optimizer.weight_decay_factor = None
        optimizer.multiply_weight_decay_factor_by_learning_rate = None
        tables[table.name] = emb.TableConfig(
            table.vocabulary_size,
            table.dim,
            initializer=tf.zeros_initializer(),
            optimizer=optimizer,
            combiner=table.combiner,
            name=table.name,
        )
    return {
        _key(position): emb.FeatureConfig(
            tables[feature.table.name], output_shape=list(feature.output_shape), name=feature.name
        )
        for position, feature in enumerate(plan.features)
    }

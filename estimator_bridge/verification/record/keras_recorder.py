"""Records training runs of a `TableModel` of tf2_engine.keras."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, find, object_graph
from estimator_bridge.convert.formats.checkpoint_format import GLOBAL_STEP
from estimator_bridge.recording.array_files import Values
from estimator_bridge.recording.files import LOSS, Recording, parts_of_tables
from estimator_bridge.verification.record.capture import (
    CallArguments,
    Function,
    captured_both_ways,
    captured_update,
    replaced,
)
from estimator_bridge.verification.record.description import describe_model, variable_of
from estimator_bridge.verification.record.outcome_recorder import CapturedMetrics
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.record.recording_hook import (
    TrainingSteps,
    by_name,
    checkpoint_of,
    variables_read,
)
from tf2_engine import TPUEmbedding
from tf2_engine.backends.tpu import topology
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras.layer_bases.column_layers import NoEngine
from tf2_engine.types import Array, Nest, Object, Tensor, Variable

_UPDATE, _MEAN_LOSS = "update_metrics", "mean_loss"
_ENGINE = "_tpu_embedding"


class KerasRecorder:
    """Records the Keras models of a program."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._metrics = KerasMetricValues()
        # The models must stay alive, because ids of dead objects are reused.
        self._trainings: dict[int, KerasTraining] = {}

    def attach(self, model_class: type) -> None:
        methods: dict[str, Function] = {
            "keep_checkpoints": self._keep_checkpoints,
            "fit": self._fit,
            "evaluate": self._evaluate,
            "predictions": self._predictions,
            "export_saved_model": self._export,
        }
        for name, method in methods.items():
            setattr(model_class, name, _replaced(getattr(model_class, name), method))

    def _training(self, model: Object, directory: str | None = None) -> KerasTraining:
        known = self._trainings.get(id(model))
        if known is None:
            self._check(model)
            known = KerasTraining(model, self._recorder.directory(directory))
            self._trainings[id(model)] = known
        return known

    def _check(self, model: Object) -> None:
        side, name = self._recorder.side, type(model).__name__
        other_numbers = side.arithmetic not in ("tpu", _arithmetic(model)) or side.stock_v2
        chosen = side.software_tpu or other_numbers
        if side.stock or side.use_tpu is False or chosen:
            raise errors.InvalidInput(
                f"The program trains a Keras model ({name}), which side {side.name!r} cannot run. "
                "Use side 'bridge', 'bridge-native' or 'bridge-ops'."
            )

    def _keep_checkpoints(
        self, original: Function, model: Object, directory: str | None, *args: Object, **kw: Object
    ) -> None:
        if directory is not None:
            original(model, self._training(model, directory).model_dir, *args, **kw)

    def _fit(self, original: Function, model: Object, x: Object, **options: Object) -> Object:
        recorder, training = self._recorder, self._training(model)
        first = recorder.is_first(training)
        if first is None:
            return None
        if model.checkpoints is None:
            model.keep_checkpoints(training.model_dir)
        training.validation = options.get("validation_data")
        # Tracing creates the variables, and runs no step.
        model.restore(x, training=True)
        model.observe(_Observer(recorder))
        model.train_step = self._reporting(model.train_step)
        if first and recorder.begin_from is not None:
            training.restore(find(recorder.begin_from), recorder.side_a)
        begin = model.global_step
        self._remember(training, x)
        arguments: CallArguments = {
            "input_fn": lambda: x,
            **{key: options.pop(key, None) for key in ("steps", "max_steps")},
        }
        recorder.prepare(arguments, begin)
        steps = TrainingSteps(recorder, training, begin, describe_model, is_first=first)
        followed = tf.keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: steps.on_train_begin(),
            on_train_batch_end=lambda batch, logs: steps.on_train_batch_end(model.global_step),
        )
        options["callbacks"] = [followed, *options.get("callbacks", ())]
        try:
            with replaced(recorder, "training", True):
                return original(model, arguments.pop("input_fn")(), **arguments, **options)
        finally:
            steps.finish()

    def _reporting(self, train_step: Function) -> Function:
        @functools.wraps(train_step)
        def step(batch: Object) -> Object:
            results = train_step(batch)
            if self._recorder.training and "loss" in results:
                self._recorder.capture.tensor(LOSS, LOSS, results["loss"])
            return results

        return step

    def _remember(self, training: KerasTraining, x: Object) -> None:
        recorder = self._recorder
        engine = training.engine
        overlaps = bool(engine.tables) and engine.plan.pipeline_execution_with_tensor_core
        recorder.remember(
            training,
            use_tpu=True,
            every=recorder.every(overlaps),
            batch_size=_batch_size(x.element_spec),
            arithmetic=_arithmetic(training.model),
        )

    def _evaluate(
        self, original: Function, model: Object, x: Object = None, *args: Object, **options: Object
    ) -> Object:
        training = self._training(model)
        # `fit` evaluates prepared data, and must not get the step as a metric.
        by_fit = "return_dict" in options
        options.pop("_use_cached_eval_dataset", None)

        def evaluate(_: Object, input_fn: Function, steps: int | None) -> dict[str, Object]:
            data = model.prepared(input_fn()) if by_fit else input_fn()
            results = original(model, data, *args, steps=steps, **options)
            return {**results, "global_step": model.global_step}

        data = training.validation if by_fit else x
        arguments: CallArguments = {"input_fn": lambda: data, "steps": options.pop("steps", None)}
        with self._metrics.attached(model):
            results = self._recorder.outcomes.evaluate(
                evaluate, training, arguments, variables_read, self._metrics
            )
        if by_fit:
            del results["global_step"]
        return results

    def _predictions(self, original: Function, model: Object, x: Object) -> Iterator[Object]:
        def predict(_: Object, input_fn: Function) -> Iterator[Object]:
            yield from original(model, input_fn())

        arguments: CallArguments = {"input_fn": lambda: x}
        outcomes = self._recorder.outcomes
        yield from outcomes.predict(predict, self._training(model), arguments, variables_read)

    def _export(self, original: Function, model: Object, *args: Object, **kw: Object) -> Object:
        training = self._training(model)
        read = functools.partial(exported_variables, training, a=self._recorder.side_a)
        return self._recorder.outcomes.export(
            lambda _: original(model, *args, **kw), training, {}, variables_read, read
        )


class _Observer:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def activation(self, key: str, value: Tensor) -> Tensor:
        if not self._recorder.training:
            return value
        return captured_both_ways(self._recorder.capture, key, value)

    def gradient(self, name: str, value: Object) -> Object:
        if not self._recorder.training:
            return value
        return captured_update(self._recorder.capture, value, name)


def _replaced(original: Function, method: Function) -> Function:
    @functools.wraps(original)
    def call(model: Object, *args: Object, **kwargs: Object) -> Object:
        return method(original, model, *args, **kwargs)

    return call


def _arithmetic(model: Object) -> str:
    return getattr(model.with_tables.tables, "arithmetic", "tpu")


def _batch_size(spec: Object) -> int | None:
    shapes = [each.shape for each in tf.nest.flatten(spec)]
    sizes = {shape[0] for shape in shapes if shape.rank}
    return next((size for size in sizes if size is not None), None)


class KerasMetricValues(CapturedMetrics):
    """Captures the inputs of metrics in a `test_step` that `migrate --form keras` has written."""

    def __init__(self) -> None:
        super().__init__()
        self._model: Object = None

    @contextlib.contextmanager
    def attached(self, model: Object) -> Iterator[None]:
        self._model, self._names = model, None
        with contextlib.ExitStack() as stack:
            if callable(getattr(model, _UPDATE, None)):
                update = self._capturing_update(getattr(model, _UPDATE))
                stack.enter_context(replaced(model, _UPDATE, update))
            mean_loss = getattr(model, _MEAN_LOSS, None)
            if mean_loss is not None:
                update = self._capturing_loss(mean_loss.update_state)
                stack.enter_context(replaced(mean_loss, "update_state", update))
            model.test_function = None  # makes Keras trace the function again
            yield
        model.test_function = None

    def _capturing_update(self, update: Function) -> Function:
        @do_not_convert
        def call(*args: Object, **kwargs: Object) -> Object:
            if args and kwargs:
                return update(*args, **kwargs)
            return _called(update, self._keep_arguments(kwargs or list(args), keep))

        def keep(name: str, argument: Object) -> Object:
            return self._keep(name, argument) if tf.is_tensor(argument) else argument

        return call

    def _capturing_loss(self, update: Function) -> Function:
        @do_not_convert
        def call(loss: Object, *args: Object, **kwargs: Object) -> Object:
            return update(self._keep(LOSS, loss), *args, **kwargs)

        return call

    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        metrics = [each for each in self._model.metrics if each.name != LOSS]
        _reset(metrics)
        for batch in batches:
            flat = [tf.constant(batch[name]) for name in names]
            _called(self._model.update_metrics, tf.nest.pack_sequence_as(self._structure, flat))
        results = {each.name: each.result().numpy() for each in metrics}
        _reset(metrics)
        return results


def _called(function: Function, structure: Nest) -> Object:
    return function(**structure) if isinstance(structure, dict) else function(*structure)


def _reset(metrics: Sequence[Object]) -> None:
    for each in metrics:
        each.reset_state()


@dataclasses.dataclass(eq=False)
class KerasTraining:
    """A `TableModel`, its directory, and the dataset that `fit` was given for evaluations."""

    model: Object
    model_dir: str
    validation: Object = None

    @functools.cached_property
    def engine(self) -> TPUEmbedding | NoEngine:
        """The engine with the tables; raises InvalidInput if verify cannot record it."""
        if topology.is_tpu(self.model.distribute_strategy):
            raise errors.InvalidInput(
                "The program trains a Keras model under a TPUStrategy, but verify cannot read "
                "tables on a TPU step by step. Leave out the program's flag that selects a TPU: "
                "tables on a host have a TPU's arithmetic, too."
            )
        engine = self.model.with_tables.tables.embedding
        if not isinstance(engine, (TPUEmbedding, NoEngine)):
            raise errors.InvalidInput(
                "Keras optimizers train the program's tables, which therefore do not have a TPU's "
                "arithmetic. Pass ColumnEmbedding optimizers of tf.tpu.experimental.embedding, or "
                'arithmetic="tpu".'
            )
        return engine

    @property
    def step(self) -> Variable:
        step: Variable = self.model.with_tables.step
        return step

    @property
    def variables(self) -> dict[str, Variable]:
        by_name, computed = self.model.checkpoints.variables(), self.model.checkpoints.computed
        return {name: variable for name, variable in by_name.items() if name not in computed}

    def restore(self, checkpoint: str, a: Recording | None) -> None:
        with Reader(checkpoint) as reader:
            is_converted = object_graph.KEY in reader.tensors
            whole = {name for name, tensor in reader.tensors.items() if tensor.is_whole}
        if is_converted:
            checkpoint_of(self).restore(checkpoint).expect_partial()
        else:
            self._assign(checkpoint, self._legacy_names(checkpoint, a), whole)
            self.engine.load()
        self.model.checkpoints.count_steps()

    def _assign(self, checkpoint: str, names: Mapping[str, str], whole: Collection[str]) -> None:
        # Variables that a legacy checkpoint does not store whole are assigned after the first step.
        reader = tf.train.load_checkpoint(checkpoint)
        shapes: Mapping[str, list[int]] = reader.get_variable_to_shape_map()
        for name, variable in by_name(self).items():
            legacy = names.get(name, name)
            if legacy in whole and shapes[legacy] == variable.shape.as_list():
                value: Array = reader.get_tensor(legacy)
                variable.assign(tf.cast(value, variable.dtype))

    def _legacy_names(self, checkpoint: str, a: Recording | None) -> dict[str, str]:
        if a is None:
            raise errors.InvalidInput(
                f"{checkpoint} was written by the legacy program, and does not say which variables "
                "are tables. Convert it with `estimator-bridge convert`, and begin from the new "
                "checkpoint."
            )
        parts = parts_of_tables(a.settings["tables"])
        return {
            (variable_of(table) if slot is None else variable_of(table, slot)): name
            for name, (table, slot) in parts.items()
        }


def exported_variables(
    training: KerasTraining, directory: str, a: Recording | None
) -> Iterator[tuple[str, Array]]:
    prefix = os.path.join(directory, "variables", "variables")
    with Reader(prefix) as stored:
        objects = object_graph.read_from(stored)
    assert objects is not None
    tables = {} if a is None else {t["name"]: t["variable"] for t in a.settings["tables"]}
    by_name = _names(training.model)
    reader = tf.train.load_checkpoint(prefix)
    for path, key in objects.keys.items():
        if path[-2:-1] == (_ENGINE,):
            name = tables.get(path[-1], variable_of(path[-1]))
        else:
            name = by_name.get(objects.names.get(key, ""), "")
        if name:
            yield name, reader.get_tensor(key)


def _names(model: Object) -> Mapping[str, str]:
    of_metrics = [each for metric in model.metrics for each in metric.variables]
    others = {id(each) for each in (*model.with_tables.weights, *of_metrics)}
    layers = (each for each in model.weights if id(each) not in others)
    names = {each.name.partition(":")[0]: model.name_of(each) for each in layers}
    return {**names, GLOBAL_STEP: GLOBAL_STEP}

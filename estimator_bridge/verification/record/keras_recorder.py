"""Records trainings of a `TableModel` of tf2_engine.keras.

The inputs of its metrics are what `test_step` passes to `update_metrics(...)` and
`mean_loss.update_state(loss)`, as `migrate --form keras` writes it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import find
from estimator_bridge.recording.array_files import Values
from estimator_bridge.recording.files import LOSS
from estimator_bridge.verification.record.capture import (
    Arguments,
    Function,
    captured_both_ways,
    captured_update,
    replaced,
)
from estimator_bridge.verification.record.description import describe_model
from estimator_bridge.verification.record.keras_training import KerasTraining, exported_variables
from estimator_bridge.verification.record.metric_values import CapturedMetrics
from estimator_bridge.verification.record.recorder import Recorder
from estimator_bridge.verification.record.training_steps import TrainingSteps, variables_read
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Nest, Object, Tensor

_UPDATE, _MEAN_LOSS = "update_metrics", "mean_loss"


class KerasRecorder:
    """Records the Keras models of a program."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._metrics = KerasMetricValues()
        # Keeps the models alive, because ids of dead objects are reused.
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
                f"The program trains a Keras model ({name}), which side {side.name!r} cannot run: "
                "let the side be bridge, bridge-native or bridge-ops."
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
        # Tracing makes the variables; nothing runs.
        model.restore(x, training=True)
        model.observe(_Observer(recorder))
        model.train_step = self._reporting(model.train_step)
        if first and recorder.begin_from is not None:
            training.restore(find(recorder.begin_from), recorder.side_a)
        begin = model.global_step
        self._remember(training, x)
        arguments: Arguments = {
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
        """Makes a step record the loss that it reports, like the loss of a TPUEstimatorSpec.

        Optimizers may minimize another loss, for example one with regularization terms.
        """

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
        # `fit` evaluates prepared data and does not want the step among the metrics.
        by_fit = "return_dict" in options
        options.pop("_use_cached_eval_dataset", None)

        def evaluate(_: Object, input_fn: Function, steps: int | None) -> dict[str, Object]:
            data = model.prepared(input_fn()) if by_fit else input_fn()
            results = original(model, data, *args, steps=steps, **options)
            return {**results, "global_step": model.global_step}

        data = training.validation if by_fit else x
        arguments: Arguments = {"input_fn": lambda: data, "steps": options.pop("steps", None)}
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

        arguments: Arguments = {"input_fn": lambda: x}
        outcomes = self._recorder.outcomes
        yield from outcomes.predict(predict, self._training(model), arguments, variables_read)

    def _export(self, original: Function, model: Object, *args: Object, **kw: Object) -> Object:
        training = self._training(model)
        read = functools.partial(exported_variables, training, a=self._recorder.side_a)
        return self._recorder.outcomes.export(
            lambda _: original(model, *args, **kw), training, {}, variables_read, read
        )


class _Observer:
    """Captures the values that a model computes while it trains."""

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
    """Returns the arithmetic of a model's tables; "tpu" without tables."""
    return getattr(model.with_tables.tables, "arithmetic", "tpu")


def _batch_size(spec: Object) -> int | None:
    shapes = [each.shape for each in tf.nest.flatten(spec)]
    sizes = {shape[0] for shape in shapes if shape.rank}
    return next((size for size in sizes if size is not None), None)


class KerasMetricValues(CapturedMetrics):
    """The losses and the arguments of `update_metrics` of one evaluation."""

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
            model.test_function = None  # so that it is traced again
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

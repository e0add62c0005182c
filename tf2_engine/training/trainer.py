"""`Trainer`, which trains, evaluates, predicts and exports with a model_fn, like an estimator."""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf2_engine import (
    checkpoint_names,
    declared,
    errors,
    forks,
    interruptions,
    log,
    output_folders,
    tf_compat,
)
from tf2_engine.summaries.events import EventFile
from tf2_engine.training.checkpoints import Checkpoints
from tf2_engine.training.hooks import HookRunner
from tf2_engine.training.host_functions import HostCall, Metrics
from tf2_engine.training.loop import Arrivals, Loop, TrainerSteps
from tf2_engine.training.model import PRESENT, Model, PreparedBatch, without_padding
from tf2_engine.training.saved_models import export
from tf2_engine.training.trainer_specs import (
    Function,
    ModeKeys,
    ModelSpec,
    RunConfig,
    WarmStartSettings,
)
from tf2_engine.types import Array, Nest, Object, Op, Tensor, Variable

v1 = tf.compat.v1


class Trainer:
    """Trains and runs a model_fn with embedding tables, like an estimator.

    The trainer calls the model_fn as a TPUEstimator would, with features that include the
    activations of tables. The model_fn returns a `ModelSpec`. `get_variable`, `tf.layers` and
    optimizers of `tf.compat.v1.train` create each variable once, under its legacy name, so training
    can continue from a converted checkpoint. Call optimizers through `minimize`,
    `compute_gradients` and `gradients` of this package.

    `params` also contains "batch_size" (of the global batch), "context" (the replicas) and, for the
    model_fn, "use_tpu": False during an export, else True.

    Args:
        model_fn: takes `features`, and optionally `labels`, `mode`, `params` and `config`.
        model_dir: the directory for checkpoints and event files; by default that of `config`.
        params: passed to the program's functions.
        train_batch_size, eval_batch_size, predict_batch_size: sizes of global batches.
        embedding_config_spec: an `Embedding`, or a legacy spec; None for a model without tables.
        warm_start_from: another model's checkpoint, or a `WarmStartSettings`.
        arithmetic: "tpu" computes like TPUs before v5p, "sparsecore" like TPU v5p, v6e and TPU7x.
            Both also work on a host.
        sparse_core_limits: limits on the ids of a step on SparseCores, as proposed by
            `estimator-bridge audit --sample`, in a `tf2_engine.SparseCoreLimits` or in stock's
            SparseCoreEmbeddingConfig.

    Attributes:
        engine: the `tf2_engine.TPUEmbedding`, or a stand-in if the model has no tables.
        variables: maps legacy names to the variables of the model and its optimizers, which are
            created when the first batch arrives.
        stop_training: set this to True to end training after the current step.
        drive: a function that takes all items from an iterator. Taking an item, which is a list
            with the loss of each replica, runs a step.
    """

    def __new__(cls, *args: Object, **kwargs: Object) -> Trainer:
        """Creates the object. This method exists so that `verify` can record the class."""
        declared.used(cls)
        return super().__new__(cls)

    @tf_compat.eagerly()
    def __init__(
        self,
        model_fn: Function,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Object = None,
        *,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        embedding_config_spec: Object = None,
        warm_start_from: str | WarmStartSettings | None = None,
        arithmetic: str = "tpu",
        sparse_core_limits: Object = None,
    ) -> None:
        self.config = config or RunConfig()
        self.model_dir: str = model_dir or self.config.model_dir or tempfile.mkdtemp()
        if self.model_dir not in (model_dir, self.config.model_dir):
            log.info("There is no model_dir; %s is used.", self.model_dir)
        self.config = self.config.replace(model_dir=self.model_dir)  # for the model_fn
        sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._model = Model(
            model_fn,
            self.config,
            params or {},
            sizes,
            embedding_config_spec,
            arithmetic,
            sparse_core_limits,
        )
        self.params = self._model.params
        self.strategy = self._model.strategy
        self.engine = self._model.engine
        self.step = self._model.step
        self.variables: dict[str, Variable] = self._model.store.variables
        self.stop_training = False
        self.drive: Callable[[Iterator[Sequence[Tensor]]], object] = _run_all
        self._checkpoints = Checkpoints(self.model_dir, self._model, warm_start_from)
        self._steps: dict[str, Function] = {}
        self._hooked: set[str] = set()  # the modes whose step was traced with a call's hooks
        self._specs: dict[str, ModelSpec] = {}  # the model_fn's latest result
        self._hooks = HookRunner(self.step)
        self._is_training = False
        self._arrivals = Arrivals()
        latest = self.latest_checkpoint()
        if latest:
            self._checkpoints.restore(latest)

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint, or None."""
        return self._checkpoints.latest()

    @tf_compat.eagerly()
    def restore(self, checkpoint: str) -> None:
        """Restores the step immediately, and the variables when the first batch creates them."""
        self._checkpoints.restore(checkpoint, pinned=True)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the event files of evaluations called `name`."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def get_variable_names(self) -> list[str]:
        """Lists the variables and tables in the latest checkpoint."""
        stored = tf.train.list_variables(self._latest())
        return checkpoint_names.names_in(key for key, _ in stored)

    def get_variable_value(self, name: str) -> Array:
        """Reads a variable or a table from the latest checkpoint."""
        reader = tf.train.load_checkpoint(self._latest())
        keys = [checkpoint_names.key_of_variable(name), checkpoint_names.key_of_table(name)]
        if name == checkpoint_names.GLOBAL_STEP:
            keys.append(checkpoint_names.KEY_OF_STEP)
        for key in keys:
            if reader.has_tensor(key):
                value: Array = reader.get_tensor(key)
                return value
        raise errors.InvalidInput(
            f"{self.latest_checkpoint()} has no variable {name!r}; get_variable_names lists them."
        )

    @tf_compat.eagerly()
    def train(
        self,
        input_fn: Function,
        hooks: Sequence[Object] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Object] | None = None,
        *,
        callbacks: Sequence[Object] = (),
    ) -> Trainer:
        """Trains until a global step, for a number of steps, or until the end of the input.

        After SIGTERM or Ctrl-C, training finishes the step and writes a checkpoint, and then the
        signal takes effect; see `tf2_engine.interruptions`.

        Args:
            input_fn: returns a `tf.data.Dataset` of features, or of (features, labels).
            hooks: callbacks, and SessionRunHooks that need no session.
            steps, max_steps: the number of steps, or the global step at which to stop; not both.
            saving_listeners: objects with `before_save(None, step)` and `after_save(None, step)`.
                Training ends if `after_save` returns True.
            callbacks: objects with some of these methods: `observe(engine, model_dir)` is called
                before the step is traced, `on_train_begin()` once all variables have their values,
                `on_train_batch_end(step)` after each step, and `on_train_end()`.

        Raises:
            InvalidInput: a hook needs a session, or the latest checkpoint was not converted.
            CannotWrite: the model_dir is a file or read-only.
        """
        self._checkpoints.go_to(None)
        if steps is not None:
            max_steps = int(self.step.numpy()) + steps
        if max_steps is not None and int(self.step.numpy()) >= max_steps:
            return self
        output_folders.create(self.model_dir)
        callbacks = [*callbacks, *(each for each in hooks or () if _is_callback(each))]
        run_hooks = [each for each in hooks or () if not _is_callback(each)]
        watching = [each for each in callbacks if hasattr(each, "observe")]
        for each in watching:
            each.observe(self.engine, self.model_dir)
            self._steps.pop(ModeKeys.TRAIN, None)  # the step is traced again
        self.stop_training, self._is_training = False, True
        try:
            self._train(input_fn, run_hooks, callbacks, saving_listeners or (), max_steps)
        except KeyboardInterrupt as interrupt:
            # The traceback starts at the user's call; internal frames would only distract.
            raise interrupt.with_traceback(None) from None
        finally:
            self._is_training = False
            if watching:
                self.engine.observe(None)
                self._steps.pop(ModeKeys.TRAIN, None)
        return self

    def _train(
        self,
        input_fn: Function,
        hooks: Sequence[Object],
        callbacks: Sequence[Object],
        listeners: Sequence[Object],
        max_steps: int | None,
    ) -> None:
        steps = TrainerSteps(self._arrivals, self._checkpoints)
        with interruptions.held_back(steps):
            batches, run_step = self._prepared(ModeKeys.TRAIN, input_fn, hooks)
            self._model.store.start_local()
            self._checkpoints.keep(self._model.saver)
            loop = Loop(self, steps, self._checkpoints, self._hooks, callbacks, listeners)
            self.drive(loop.run(self._specs[ModeKeys.TRAIN], run_step, batches, max_steps))

    @tf_compat.eagerly()
    def evaluate(
        self,
        input_fn: Function,
        steps: int | None = None,
        hooks: Sequence[Object] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Object]:
        """Evaluates a number of batches, and returns metrics, the mean loss and the global step.

        The results are also written to an event file in `eval_dir(name)`.

        Args:
            steps: the number of batches; by default all.
            checkpoint_path: by default the latest checkpoint.

        Raises:
            CannotWrite: the `eval_dir` is a file or read-only.
        """
        output_folders.create(self.eval_dir(name))
        losses, metrics = [], None
        in_graph: dict[str, Object] = {}
        batches = self._results(ModeKeys.EVAL, input_fn, steps, hooks, checkpoint_path)
        try:
            for (loss, values), in_graph in batches:  # noqa: B007 - the last one is final
                losses.append(loss)
                metric_fn, _ = self._specs[ModeKeys.EVAL].eval_metrics or (None, [])
                if metric_fn is not None:
                    metrics = metrics or Metrics(metric_fn, values)
                    metrics.update(values)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        if not losses:
            raise errors.InvalidInput("evaluate: the dataset of the input_fn has no batch.")
        results = {**in_graph, **(metrics.results() if metrics is not None else {})}
        results["loss"] = sum(losses) / len(losses)
        results["global_step"] = step = int(self.step.numpy())
        log.info("Evaluation at step %d: %s", step, results)
        events = EventFile(self.eval_dir(name))
        events.scalars(step, {key: each for key, each in results.items() if key != "global_step"})
        events.flush()
        return results

    def predict(
        self,
        input_fn: Function,
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Object] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Object]]:
        """Yields predictions as arrays, for each sample or each batch.

        Args:
            predict_keys: which predictions to keep; by default all.
            checkpoint_path: by default the latest checkpoint.
        """
        batches = self._results(ModeKeys.PREDICT, input_fn, None, hooks, checkpoint_path)
        while True:
            try:
                with tf_compat.eagerly():
                    batch, _ = next(batches, (None, None))
            except KeyboardInterrupt as interrupt:
                raise interrupt.with_traceback(None) from None
            if batch is None:
                return
            batch = without_padding(batch)
            kept = {key: batch[key] for key in predict_keys} if predict_keys else batch
            if not yield_single_examples:
                yield kept
                continue
            for number in range(len(next(iter(kept.values())))):
                yield {name: values[number] for name, values in kept.items()}

    @tf_compat.eagerly()
    def export_saved_model(
        self,
        export_dir_base: str | bytes,
        serving_input_receiver_fn: Function,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        *,
        table_dtype: str | Mapping[str, str] = "float32",
    ) -> bytes:
        """Writes a SavedModel to a new directory, whose name is a timestamp, and returns the path.

        The SavedModel needs only TensorFlow: the model_fn builds a separate graph, in which columns
        look up tables as they do without a TPU.

        Args:
            assets_extra: maps paths below the directory `assets.extra` to files to copy there.
            checkpoint_path: by default the latest checkpoint.
            table_dtype: as in `tf2_engine.serving_table`, or a dict from table names to types.

        Raises:
            InvalidInput: there is no checkpoint, a variable is missing in it, there is no default
                signature, or a tf.function of the model_fn reads a table in a small type.
            InvalidSpec: a type or table is unknown, or a row is out of a type's range.
        """
        checkpoint = checkpoint_path or self._latest()
        self._checkpoints.check(checkpoint)
        return export(
            *(self._model, checkpoint, os.fsdecode(export_dir_base), serving_input_receiver_fn),
            *(assets_extra or {}, as_text, table_dtype),
        )

    def _latest(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise errors.InvalidInput(f"There is no checkpoint in {self.model_dir}; train first.")
        return checkpoint

    def _results(
        self,
        mode: str,
        input_fn: Function,
        steps: int | None,
        hooks: Sequence[Object] | None,
        checkpoint_path: str | None,
    ) -> Iterator[Nest]:
        if not self._is_training:
            self._checkpoints.go_to(checkpoint_path)
        batches, run_step = self._prepared(mode, input_fn, hooks or ())
        runner = self._hooks
        runner.start()
        kind = "evaluation" if mode == ModeKeys.EVAL else "prediction"
        start = self._checkpoints.at or "the variables as they are"
        reading = interruptions.ReadingSteps(f"the {kind} of {start}")
        cancellation = tf_compat.Cancellation()
        reading.canceller = cancellation.cancel
        session = self._checkpoints.as_in_session(
            self._model.saver, changes=self._model.changes[mode]
        )
        host_call = contextlib.closing(HostCall(self._specs[mode].host_call))
        with session, reading, host_call as host:
            while (steps is None or reading.num_ended < steps) and not runner.stopped:
                asked = runner.before()
                try:
                    with reading.step(), cancellation.possible():
                        outputs = run_step(batches)
                except tf.errors.OutOfRangeError:
                    break
                local = self.strategy.experimental_local_results
                runner.after(asked, local(outputs["hooks"])[0])
                host.run(local(outputs["host"]), int(self.step.numpy()))
                results = (outputs["result"], outputs.get("metrics", {}))
                yield tf.nest.map_structure(_merge_replicas, *local(results))
        runner.end()

    def _prepared(
        self, mode: str, input_fn: Function, hooks: Sequence[Object]
    ) -> tuple[Iterator[Nest], Function]:
        """Creates all variables. Returns the mode's batches, and a function that runs a step."""
        forks.check()
        batches = iter(self._model.batches(input_fn, mode))
        self._hooks = HookRunner(self.step, hooks)
        if mode not in self._steps or hooks or mode in self._hooked or _hooks_of(self._specs[mode]):
            self._steps[mode] = self._traced_step(mode)
        (self._hooked.add if hooks else self._hooked.discard)(mode)
        self._steps[mode].get_concrete_function(batches)  # type: ignore[attr-defined]
        self._checkpoints.add_created()
        return batches, self._steps[mode]

    def _traced_step(self, mode: str) -> Function:
        def step(batches: Iterator[PreparedBatch]) -> Nest:
            batch = next(batches)
            outputs = self.strategy.run(self._step_on_replica, args=(mode, batch))
            if mode == ModeKeys.TRAIN:
                self._arrivals.count(batch)
            return outputs

        function: Function = tf.function(step, autograph=False)
        return function

    def _step_on_replica(self, mode: str, batch: PreparedBatch) -> dict[str, Nest]:
        return self._model.call(mode, batch, lambda spec: self._outputs(mode, batch, spec))

    def _outputs(
        self, mode: str, batch: PreparedBatch, spec: ModelSpec
    ) -> tuple[dict[str, Nest], dict[str, Tensor]]:
        self._specs[mode] = spec
        _, host_arguments = spec.host_call or (None, [])
        outputs = {
            "hooks": self._hooks.trace(_hooks_of(spec), self._model.read_step()),
            "host": host_arguments,
        }
        if mode == ModeKeys.PREDICT:
            predictions = spec.predictions
            named = predictions if isinstance(predictions, dict) else {"output": predictions}
            if PRESENT in batch:
                named = {**named, PRESENT: batch[PRESENT]}
            return {**outputs, "result": self._hooks.with_ops(named)}, {}
        if mode == ModeKeys.EVAL:
            _, values = spec.eval_metrics or (None, [])
            ops = (spec.eval_metric_ops or {}).items()
            metrics = {name: _pair(each) for name, each in ops}
            with tf.control_dependencies([update for _, update in metrics.values()]):
                loss = tf.identity(spec.loss)
            final = {name: tf.convert_to_tensor(value) for name, (value, _) in metrics.items()}
            return {**outputs, "result": self._hooks.with_ops((loss, values))}, final
        # A TPU cannot compute strings. Legacy programs do not write summaries on a TPU either.
        merged = None if self._model.on_tpu else v1.summary.merge_all()
        summaries = [] if merged is None else [merged]
        return {**outputs, "loss": spec.loss, "summaries": summaries}, {}


# For `help`, which would otherwise show the signature of `__new__`.
Trainer.__new__.__signature__ = inspect.signature(Trainer.__init__)  # type: ignore[attr-defined]


def _pair(metric: Object) -> tuple[Tensor, Op]:
    if hasattr(metric, "update_state"):
        return metric.result(), tf_compat.update_of_metric(metric) or tf.no_op()
    value, update = metric
    return value, update


def _run_all(steps: Iterator[Sequence[Tensor]]) -> None:
    for _ in steps:
        pass


def _is_callback(hook: Object) -> bool:
    return hasattr(hook, "on_train_batch_end")


def _hooks_of(spec: ModelSpec) -> list[Object]:
    hooks = {
        ModeKeys.TRAIN: [*(spec.training_hooks or ()), *(spec.training_chief_hooks or ())],
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }
    return list(hooks[spec.mode] or ())


def _merge_replicas(*parts: Tensor) -> Array:
    arrays: list[Array] = [part.numpy() for part in parts]
    if not arrays[0].shape:
        return sum(arrays) / len(arrays)
    merged: Array = arrays[0] if len(arrays) == 1 else tf.concat(arrays, 0).numpy()
    return merged

"""`Estimator`: trains, evaluates, predicts and exports with a legacy model_fn."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, TypeVar

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys, checked_all, checked_hooks
from estimator_bridge.legacy.tf_config import TaskType
from estimator_bridge.runtime.cluster import task_software, tasks
from estimator_bridge.runtime.cluster.tasks import ChiefHasEnded, WorkerEnd
from estimator_bridge.runtime.estimator import estimator_arguments
from estimator_bridge.runtime.loop import inference, training_session
from estimator_bridge.runtime.program_types import Hook, InputFn, ModelFn, ModelSpec
from estimator_bridge.runtime.saving import checkpoint_state, warm_starting
from estimator_bridge.runtime.saving.saved_model_writer import ReceiverFn, write_saved_model
from estimator_bridge.runtime.step import clients
from estimator_bridge.runtime.step.model_step import EstimatorJob, ModelStep, default_session_config
from estimator_bridge.runtime.step.plain_step import build_plain_step
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import log, output_folders, small_types
from tf2_engine.arguments import typed
from tf2_engine.types import Array, Graph, Nest, Object, Variable

_Self = TypeVar("_Self", bound="Estimator")

PathLike = str | os.PathLike[str]

_OVERRIDABLE = ("latest_checkpoint", "model_fn", "_model_dir", "_session_config")


@typed
class Estimator:
    """Runs a model_fn and input_fns as `tf.compat.v1.estimator.Estimator` does.

    Args:
        model_fn: takes features and any of labels, mode, config and params; returns an
            EstimatorSpec or a TPUEstimatorSpec.
        model_dir: None means the directory in `config`, or else a new temporary directory.
        params: passed on to model_fn and input_fn.
        warm_start_from: initial values for a model_dir without a checkpoint: the path of a
            checkpoint or SavedModel, or a WarmStartSettings.

    Raises:
        InvalidInput: the model_fn has the wrong arguments, the config is not a RunConfig, or
            `model_dir` differs from the directory in the config.
    """

    _resource_step: bool | None = None  # see `new_graph`

    def __init__(
        self,
        model_fn: ModelFn | None,
        model_dir: PathLike | None = None,
        config: RunConfig | None = None,
        params: Object = None,
        warm_start_from: Object = None,
    ) -> None:
        # As in stock, a program that overrides this method, even by a static method, may override
        # all members.
        type(self)._assert_members_are_not_overridden(self)
        config = estimator_arguments.read_config(config, model_dir)
        self._model_fn = estimator_arguments.checked_model_fn(model_fn, params)
        self._config = config
        self._params = copy.deepcopy({} if params is None else params)
        self._strategies = estimator_arguments.read_strategies(
            self._config, between_graph=not self._is_in_graph()
        )
        self._cluster = tasks.cluster_of(self._config)
        if self._cluster is not None:
            self._check_cluster(self._cluster)
            if self._cluster.is_chief:
                tasks.tell_all_at_exit(self._cluster, workers_train=not self._is_in_graph())
        self._warm_start = warm_starting.read_settings(warm_start_from)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model_dir!r}>"

    @property
    def model_dir(self) -> str:
        return str(self._config.model_dir)

    @property
    def _model_dir(self) -> str:
        return self.model_dir

    @_model_dir.setter
    def _model_dir(self, path: PathLike) -> None:
        self._assign(model_dir=os.fspath(path))

    @property
    def _session_config(self) -> tf.ConfigProto:
        return self._config.session_config or default_session_config()

    @_session_config.setter
    def _session_config(self, config: tf.ConfigProto) -> None:
        self._assign(session_config=config)

    def _assign(self, **values: Object) -> None:
        if "_config" in vars(self):
            self._config = self._config.replace(**values)

    def _assert_members_are_not_overridden(self) -> None:
        kind = type(self)
        if kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return
        overridden = sorted(
            name
            for name in vars(kind)
            if not name.startswith("__")
            and name not in _OVERRIDABLE
            and any(
                name in vars(base) for base in kind.__mro__[1:-1] if issubclass(base, Estimator)
            )
        )
        if overridden:
            raise errors.InvalidInput(
                f"Subclasses of Estimator cannot override members of Estimator, but {kind} does "
                f"override {overridden}. Give them other names."
            )

    def _create_and_assert_global_step(self, graph: Graph) -> Variable:
        return tf.train.create_global_step(graph)

    @property
    def config(self) -> RunConfig:
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Object:
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> ModelFn:
        """The model_fn with bound params; a function of features, labels, mode and config."""

        def public(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
            batch = {"features": features, "labels": labels}
            config, params = copy.deepcopy(config), self.params
            return estimator_arguments.call(
                self._model_fn, **batch, mode=mode, config=config, params=params
            )

        return public

    def train(
        self: _Self,
        input_fn: InputFn,
        hooks: Sequence[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[tf.train.CheckpointSaverListener] | None = None,
    ) -> _Self:
        """Trains, starting from the latest checkpoint in the model_dir if there is one.

        After SIGTERM or Ctrl-C, training finishes the current step, or cancels a step that still
        waits for input. It then writes a checkpoint and lets the signal take effect.

        Args:
            input_fn: takes any of params, config and mode.
            steps: how many steps to add. If None, training ends when the input ends.
            max_steps: the global step at which to stop, instead of `steps`.

        Raises:
            InvalidInput: `steps` or `max_steps` is invalid, or this process is an evaluator.
            WrongType: a hook or listener has the wrong type.
            CannotWrite: the model_dir is a file or read-only.
            SystemExit: the chief has ended, and this process is a parameter server or a worker with
                use_tpu=True.
        """
        self._serve_if_told()
        end = self._join_cluster()
        if self._config.task_type == TaskType.EVALUATOR:
            raise errors.InvalidInput(
                "TF_CONFIG makes this process an evaluator, which does not train. Use "
                "`tf.estimator.train_and_evaluate`, which only evaluates in such a process."
            )
        if steps is not None and max_steps is not None:
            raise errors.InvalidInput(
                f"Can not provide both steps and max_steps, got {steps} and {max_steps}. Drop one."
            )
        self._check_steps(ModeKeys.TRAIN, "steps", steps)
        self._check_steps(ModeKeys.TRAIN, "max_steps", max_steps)
        if self._config.is_chief:
            output_folders.create(self.model_dir)
        checkpoint = self.latest_checkpoint()
        if checkpoint is not None and max_steps is not None:
            if max_steps <= checkpoint_state.step_of(checkpoint):
                log.info(
                    "Nothing to train: the global step has already reached max_steps=%d.", max_steps
                )
                return self
        schedule = self._schedule(steps, max_steps)
        job = self._job(ModeKeys.TRAIN, input_fn, hooks, checkpoint)
        listeners = checked_all(
            saving_listeners,
            tf.train.CheckpointSaverListener,
            "`saving_listeners` must be a list of CheckpointSaverListener",
        )
        try:
            with contextlib.nullcontext() if end is None else end.training():
                loss = training_session.train(job, schedule, listeners)
        except ChiefHasEnded:
            log.info("The chief has ended, so this worker has nothing to train.")
            return self
        except KeyboardInterrupt as interrupt:
            # The traceback starts at the user's call; our internal frames would only distract.
            raise interrupt.with_traceback(None) from None
        # Scripts search logs for stock's wording.
        log.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Object]:
        """Returns the metrics of a checkpoint, the mean "loss" and the "global_step".

        Args:
            steps: the number of batches. None means all batches of the input.
            checkpoint_path: None means the latest checkpoint, or initial values if there is none.
            name: a suffix for the directory of event files, so that several evaluations do not mix.

        Raises:
            InvalidInput: `steps` is invalid, or the name of a metric is already taken.
            CannotWrite: the model_dir is a file or read-only.
        """
        self._serve_if_told()
        self._check_steps(ModeKeys.EVAL, "steps", steps)
        checkpoint = self._checkpoint(checkpoint_path, "evaluate")
        output_folders.create(self.eval_dir(name))
        job = self._job(ModeKeys.EVAL, input_fn, hooks, checkpoint)
        in_one_call = self._runs_on_engine(ModeKeys.EVAL)
        try:
            return inference.evaluate(job, steps, self.eval_dir(name), in_one_call=in_one_call)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Nest]:
        """Yields predictions in the order of the input. The last batch may be smaller.

        Args:
            predict_keys: the keys of the predictions to yield. None means all keys.
            yield_single_examples: whether to yield single examples instead of whole batches.

        Raises:
            InvalidInput: no prediction has a key in `predict_keys`, or the predictions of a batch
                differ in length.
        """
        self._serve_if_told()
        checkpoint = self._checkpoint(checkpoint_path, "predict")
        job = self._job(ModeKeys.PREDICT, input_fn, hooks, checkpoint)
        try:
            yield from inference.predict(job, predict_keys, yield_single_examples)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None

    def export_saved_model(
        self,
        export_dir_base: PathLike,
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
        *,
        table_dtype: str | Mapping[str, str] = "float32",
    ) -> bytes:
        """Writes a SavedModel into a new timestamped directory; returns the path as bytes.

        The SavedModel has only TensorFlow's own ops.

        Args:
            serving_input_receiver_fn: returns the tensors to feed, and the features computed from
                them.
            assets_extra: maps paths below `assets.extra` to the files that are copied there.
            checkpoint_path: None means the latest checkpoint.
            table_dtype: how to store the tables of the embedding config: "float32", "float16",
                "bfloat16" or "int8", or a dict that maps table names to these types.
                `tf2_engine.small_types` gives bounds on the errors. Stock has no such option.

        Raises:
            InvalidInput: the receiver function is missing, the checkpoint does not fit the model,
                or a tf.function of the model_fn reads a table that is not stored as float32.
            InvalidSpec: `table_dtype` has an unknown type or table, or a type that cannot
                represent a value of the table.
            NotTrained: there is no checkpoint.
        """
        receiver_fn = estimator_arguments.checked_receiver_fn(serving_input_receiver_fn)
        options = {"assets_extra": assets_extra, "as_text": as_text}
        options["table_dtypes"] = self._table_dtypes(table_dtype, experimental_mode)
        functions = {experimental_mode: receiver_fn}
        return self._export(export_dir_base, functions, checkpoint_path, **options)

    def export_savedmodel(
        self,
        export_dir_base: PathLike,
        serving_input_receiver_fn: ReceiverFn,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Exports like `export_saved_model`, but keeps op attributes that have default values."""
        receiver_fn = estimator_arguments.checked_receiver_fn(serving_input_receiver_fn)
        options = {"assets_extra": assets_extra, "as_text": as_text}
        options["strip_default_attrs"] = strip_default_attrs
        functions = {ModeKeys.PREDICT: receiver_fn}
        return self._export(export_dir_base, functions, checkpoint_path, **options)

    def experimental_export_all_saved_models(
        self,
        export_dir_base: PathLike,
        input_receiver_fn_map: Mapping[str, ReceiverFn],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes one SavedModel with a graph for each mode in `input_receiver_fn_map`."""
        options = {"assets_extra": assets_extra, "as_text": as_text}
        return self._export(export_dir_base, input_receiver_fn_map, checkpoint_path, **options)

    def eval_dir(self, name: str | None = None) -> str:
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint, or None."""
        return checkpoint_state.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Lists the variables of the latest checkpoint; raises NotTrained if there is none."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint_of_training())]

    def get_variable_value(self, name: str) -> Array:
        """Reads a value from the latest checkpoint; raises NotTrained if there is none."""
        return tf.train.load_variable(self._checkpoint_of_training(), name)

    def _job(
        self, mode: str, input_fn: InputFn, hooks: Sequence[Hook] | None, checkpoint: str | None
    ) -> EstimatorJob:
        def build() -> ModelStep:
            step = self._build(mode, input_fn)
            if checkpoint is None and self._warm_start is not None:
                warm_starting.warm_start(self._warm_start, self._tables())
            return dataclasses.replace(step, tables=self._tables())

        # An engine has one copy of the tables, and its model runs on TPU cores, not on replicas.
        on_engine = self._runs_on_engine(mode)
        strategy = None if on_engine else self._strategies[mode]
        checked = checked_hooks(hooks, "Each hook must be a SessionRunHook")
        client = self._client(mode)
        return EstimatorJob(
            build, self._config, checked, checkpoint, strategy, client, self._resource_step
        )

    def _build(self, mode: str, input_fn: InputFn) -> ModelStep:
        read = functools.partial(self._call, input_fn, mode, {})
        model = functools.partial(self._call_model, mode=mode, items={})
        return build_plain_step(mode, read, model, strategy=self._strategies[mode])

    def _call(
        self, function: Callable[..., Object], mode: str, items: Mapping[str, Object], **batch: Nest
    ) -> Object:
        context = estimator_arguments.input_context(self._config)
        if mode == ModeKeys.TRAIN and context is not None:
            batch["input_context"] = context
        params = estimator_arguments.with_items(self._params, items)
        return estimator_arguments.call(
            function, mode=mode, config=self.config, params=params, **batch
        )

    def _call_model(
        self, features: Nest, labels: Nest, mode: str, items: Mapping[str, Object]
    ) -> ModelSpec:
        log.info("Calling model_fn.")
        spec = self._call(self._model_fn, mode, items, features=features, labels=labels)
        log.info("Done calling model_fn.")
        return spec

    def _client(self, mode: str) -> clients.Client:
        if self._cluster is not None and self._is_in_graph() and self._runs_on_engine(mode):
            return clients.InGraph(self._cluster)
        if self._cluster is not None and not self._is_in_graph() and mode == ModeKeys.TRAIN:
            return clients.BetweenGraph(self._cluster)
        return clients.Client()

    def _is_in_graph(self) -> bool:
        return False

    def _check_cluster(self, cluster: tasks.Cluster) -> None:
        if any(strategy is not None for strategy in self._strategies.values()):
            raise errors.InvalidInput(
                f"TF_CONFIG has a cluster of {cluster}, and the RunConfig has a strategy: "
                f"{self._strategies}. Leave out the cluster or the strategy."
            )

    def _serve_if_told(self) -> None:
        if self._cluster is None or self._cluster.is_chief:
            return
        if self._cluster.task_type == TaskType.PS or self._is_in_graph():
            task_software.serve(self._cluster)
            raise SystemExit(0)

    def _join_cluster(self) -> WorkerEnd | None:
        client = self._client(ModeKeys.TRAIN)
        if isinstance(client, clients.BetweenGraph):
            log.info(
                "Trains asynchronously in a cluster of %s: the chief and each worker run this "
                "program, and the parameter servers hold the variables.",
                client.cluster,
            )
            clients.announce(client.cluster)
        return client.end

    def _wait_for_turn(self, seconds: float) -> None:
        end = self._client(ModeKeys.TRAIN).end
        if end is not None and seconds > 0:
            log.info("This worker begins to train in %g seconds.", seconds)
            end.come.wait(seconds)

    def _check_steps(self, mode: str, name: str, value: int | None) -> None:
        if value is not None and value <= 0:
            raise errors.InvalidInput(f"Must specify {name} > 0, got {value}.")

    def _runs_on_engine(self, mode: str) -> bool:
        return False

    def _schedule(self, steps: int | None, max_steps: int | None) -> training_session.Schedule:
        return training_session.Schedule(steps, max_steps)

    def _call_for_export(self, features: Nest, labels: Nest, mode: str) -> ModelSpec:
        return self._call_model(features, labels, mode, {})

    def _tables(self) -> TableVariables:
        return TableVariables()

    def _table_dtypes(self, table_dtype: Object, mode: str) -> dict[str, str]:
        names = self._tables().names
        if not names and table_dtype != "float32":
            raise errors.InvalidInput(
                f"`table_dtype`={table_dtype!r} is for the tables of an `embedding_config_spec`, "
                "but this estimator has no tables. Leave `table_dtype` out."
            )
        dtypes = small_types.checked(table_dtype, names)
        small = {names[table]: each for table, each in dtypes.items() if each != "float32"}
        if small and mode != ModeKeys.PREDICT:
            raise errors.InvalidInput(
                f"`table_dtype`={table_dtype!r} works only in exports for prediction, but "
                f"`experimental_mode` is {mode!r}. Leave one of them out."
            )
        return small

    def _export(
        self,
        export_dir_base: PathLike,
        receiver_fns: Mapping[str, ReceiverFn],
        checkpoint_path: str | None,
        **options: Object,
    ) -> bytes:
        checkpoint = checkpoint_path or self.latest_checkpoint()
        if checkpoint is None and self._warm_start is not None:
            checkpoint = warm_starting.checkpoint_of(self._warm_start)
        return write_saved_model(
            export_dir_base,
            receiver_fns,
            self._call_for_export,
            self._config,
            checkpoint or self._checkpoint_of_training(),
            tables=self._tables(),
            **options,
        )

    def _checkpoint(self, path: str | None, method: str) -> str | None:
        path = path or self.latest_checkpoint()
        if path is None:
            log.info(
                f"There is no checkpoint in the model_dir {self.model_dir}: {method} starts from "
                "initial values."
            )
        return path

    def _checkpoint_of_training(self) -> str:
        path = self.latest_checkpoint()
        if path is None:
            raise errors.NotTrained(
                f"Could not find trained model in model_dir {self.model_dir!r}: there is no "
                "checkpoint. Call `train` first."
            )
        return path


class EstimatorV2(Estimator):
    """An Estimator that lacks `export_savedmodel`, the old name of `export_saved_model`."""

    @property
    def export_savedmodel(self) -> NoReturn:
        """Raises AttributeError, so that `hasattr` returns False."""
        raise AttributeError(
            "`tf.estimator.Estimator` of TensorFlow 2 has no `export_savedmodel`. Please use "
            "`export_saved_model`, or `tf.compat.v1.estimator.Estimator`."
        )

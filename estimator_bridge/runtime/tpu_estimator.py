"""`TPUEstimator`: train, evaluate and predict with legacy model_fns on the TF2 engine."""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig, parse_iterations_per_loop
from estimator_bridge.legacy.spec import checked_quirks
from estimator_bridge.runtime import graph_loop
from estimator_bridge.runtime.calls import call_input_fn, call_model_fn
from estimator_bridge.runtime.device_loop import DeviceLoop
from estimator_bridge.runtime.engine_step import EngineSettings, build_engine_step
from estimator_bridge.runtime.feeding import Cores
from estimator_bridge.runtime.plain_step import build_plain_step
from estimator_bridge.runtime.plain_tables import look_up_dicts
from estimator_bridge.runtime.step import Step
from estimator_bridge.translation.read_spec import read_spec

BATCH_SIZE = "batch_size"
CONTEXT = "context"
USE_TPU = "use_tpu"
_RESERVED = (BATCH_SIZE, CONTEXT)


class TPUEstimator:
    """Runs a model_fn and input_fns as stock's TPUEstimator does.

    With `use_tpu=False` the columns are ordinary ones and the model's own optimizer trains the
    tables; those of config dicts are looked up for the model. With `use_tpu=True` the tables live
    in the TF2 engine with the arithmetic of a TPU; on a machine without one the engine runs on the
    host and emulates `TPUConfig.num_shards` cores.

    Args:
        model_fn: takes features and any of labels, mode, config and params; returns a
            TPUEstimatorSpec or EstimatorSpec.
        model_dir: where checkpoints and events go; None takes the config's, or a new temporary
            directory.
        config: a TPU RunConfig.
        params: handed to model_fn and input_fn, with "batch_size" added.
        use_tpu: see above.
        train_batch_size, eval_batch_size, predict_batch_size: samples of a global batch.
        eval_on_tpu: whether evaluation uses the engine too.
        embedding_config_spec: tables, features and their optimizer; stock's or ours.
        quirks: "stock" or "documented"; overrides the spec's.
        engine: the engine's driver, by name or as an object.

    Raises:
        InvalidSpec, InvalidInput: a setting is outside its range or not supported; the message
            names it.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: int = 1,
        *,
        quirks: str | None = None,
        engine: Any = "host",
    ) -> None:
        if model_fn is None:
            raise errors.InvalidInput("`model_fn` must be given.")
        if not hasattr(config, "tpu_config"):
            raise errors.InvalidInput(
                f"`config` must be a tpu.RunConfig, got {type(config).__name__}."
            )
        for key in _RESERVED:
            if key in (params or {}):
                raise errors.InvalidInput(f"`params` has the key {key!r}, which is reserved.")
        _refuse_unsupported(batch_axis=batch_axis, warm_start_from=warm_start_from)
        self._model_fn = model_fn
        self._config = _with_model_dir(config, model_dir)
        self._params = copy.deepcopy(dict(params or {}))
        self._use_tpu = use_tpu
        self._eval_on_tpu = eval_on_tpu
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._embedding_config_spec = embedding_config_spec
        self._quirks = None if quirks is None else checked_quirks(quirks)
        self._engine = engine
        self._told: set[str] = set()
        if use_tpu:
            self._check_tpu_settings()
        elif embedding_config_spec is not None:
            self._check_host_settings()

    def __repr__(self) -> str:
        engine = self._engine if isinstance(self._engine, str) else repr(self._engine)
        where = f"{engine} engine, {self._cores.count} cores" if self._use_tpu else "no engine"
        return f"<TPUEstimator {self.model_dir!r}, {where}>"

    @property
    def model_dir(self) -> str:
        """Where checkpoints and events go."""
        return str(self._config.model_dir)

    @property
    def config(self) -> Any:
        """A copy of the RunConfig."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn, bound to this estimator's params: takes features, labels, mode, config."""

        def public(features: Any, labels: Any, mode: str, config: Any) -> Any:
            return call_model_fn(self._model_fn, features, labels, mode, config, self.params)

        return public

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> TPUEstimator:
        """Trains; continues from the latest checkpoint of the model_dir.

        Args:
            input_fn: takes params, and config and mode if it likes.
            hooks: SessionRunHooks; with use_tpu=True they are called once per loop of
                `TPUConfig.iterations_per_loop` steps, and fetch from its last step.
            steps: steps to add; None is until the input ends.
            max_steps: the global step to stop at; not together with `steps`.
            saving_listeners: CheckpointSaverListeners.

        Returns:
            This estimator.

        Raises:
            InvalidInput: `steps` or `max_steps` is not possible.
        """
        if steps is not None and max_steps is not None:
            raise errors.InvalidInput("Give `steps` or `max_steps`, not both.")
        _check_positive("steps", steps)
        _check_positive("max_steps", max_steps)
        if self._use_tpu and steps is None and max_steps is None:
            raise errors.InvalidInput(
                "With use_tpu=True one of `steps` or `max_steps` must be set for training."
            )
        if max_steps is not None and max_steps <= self._saved_step():
            tf.logging.info("Skipping training since max_steps has already saved.")
            return self
        stop, loop = [], None
        if self._use_tpu:
            tpu_config = self._config.tpu_config
            loop = DeviceLoop(
                parse_iterations_per_loop(tpu_config.iterations_per_loop),
                steps,
                max_steps,
                tpu_config.experimental_host_call_every_n_steps,
            )
        elif steps is not None or max_steps is not None:
            stop = [tf.train.StopAtStepHook(num_steps=steps, last_step=max_steps)]
        loss = graph_loop.train(
            lambda: self._build(ModeKeys.TRAIN, input_fn),
            self._config,
            [*_checked_hooks(hooks), *stop],
            list(saving_listeners or ()),
            self._batch_sizes[ModeKeys.TRAIN],
            loop,
        )
        tf.logging.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint.

        Args:
            input_fn: as for `train`.
            steps: batches to evaluate; None is until the input ends.
            hooks: SessionRunHooks.
            checkpoint_path: None takes the latest of the model_dir; without any, the variables
                are initialised.
            name: of the evaluation, for several on different data.

        Returns:
            The metrics by name, with "loss" and "global_step".

        Raises:
            InvalidInput: `steps` is not positive.
        """
        _check_positive("steps", steps)
        return graph_loop.evaluate(
            lambda: self._build(ModeKeys.EVAL, input_fn),
            self._config,
            steps,
            _checked_hooks(hooks),
            self._checkpoint(checkpoint_path, "evaluate"),
            self.eval_dir(name),
        )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions, in the order of the input; the last batch may be smaller.

        Args:
            input_fn: as for `train`.
            predict_keys: which of the predictions; None is all.
            hooks: SessionRunHooks.
            checkpoint_path: as for `evaluate`.
            yield_single_examples: False yields whole batches.

        Raises:
            InvalidInput: `predict_keys` fits no prediction, or the predictions of a batch differ in
                length.
        """
        yield from graph_loop.predict(
            lambda: self._build(ModeKeys.PREDICT, input_fn),
            self._config,
            predict_keys,
            _checked_hooks(hooks),
            self._checkpoint(checkpoint_path, "predict"),
            yield_single_examples,
        )

    def eval_dir(self, name: str | None = None) -> str:
        """Returns where the events of an evaluation go."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint, or None."""
        path = tf.train.latest_checkpoint(self.model_dir)
        return None if path is None else str(path)

    def get_variable_names(self) -> list[str]:
        """Returns the names in the latest checkpoint.

        Raises:
            NotTrained: there is none.
        """
        return [name for name, _ in tf.train.list_variables(self._trained())]

    def get_variable_value(self, name: str) -> Any:
        """Returns a value of the latest checkpoint as a numpy array.

        Raises:
            NotTrained: there is none.
        """
        return tf.train.load_variable(self._trained(), name)

    @property
    def _cores(self) -> Cores:
        tpu_config = self._config.tpu_config
        return Cores(tpu_config.num_shards or 1, tpu_config.per_host_input_for_training)

    def _build(self, mode: str, input_fn: Callable[..., Any]) -> Step:
        on_engine = self._use_tpu and (mode != ModeKeys.EVAL or self._eval_on_tpu)
        batch_size = self._batch_sizes[mode]
        cores = self._cores
        sizes: tuple[int | None, int | None] = (batch_size, batch_size)
        if on_engine:
            if batch_size is None:
                raise errors.InvalidInput(
                    f"`{_BATCH_SIZE_ARGUMENT[mode]}` must be given to run {mode!r} with "
                    "use_tpu=True."
                )
            _check_divisible(_BATCH_SIZE_ARGUMENT[mode], batch_size, cores)
            sizes = (cores.input_batch_size(batch_size), cores.model_batch_size(batch_size))

        def read() -> Any:
            return call_input_fn(input_fn, mode, self._config, self._with_size(sizes[0]))

        def model(features: Any, labels: Any) -> Any:
            params = {**self._with_size(sizes[1]), USE_TPU: on_engine}
            return call_model_fn(self._model_fn, features, labels, mode, self._config, params)

        self._announce(on_engine)
        spec = self._embedding_config_spec
        if not on_engine:
            look_up = None
            if spec is not None and not spec.feature_columns:  # Columns look up by themselves.
                dicts = read_spec(spec, self._quirks)
                look_up = functools.partial(look_up_dicts, mode, legacy=dicts, notify=self._tell)
            return build_plain_step(mode, read, model, look_up)
        legacy = None if spec is None else read_spec(spec, self._quirks)
        settings = EngineSettings(legacy, cores, self._engine, self._tell)
        return build_engine_step(mode, read, model, settings)

    def _with_size(self, size: int | None) -> dict[str, Any]:
        return {**self.params, **({} if size is None else {BATCH_SIZE: size})}

    def _announce(self, on_engine: bool) -> None:
        devices = ", ".join(sorted({d.device_type for d in tf.config.list_physical_devices()}))
        if on_engine:
            self._tell(
                f"use_tpu=True: the TF2 embedding engine holds the tables; {self._engine} driver "
                f"on {devices}, TensorFlow {tf.__version__}, {self._cores.count} TPU core(s) "
                "emulated."
            )
        else:
            self._tell(
                f"use_tpu=False: no embedding engine; the model runs as it is on {devices}, "
                f"TensorFlow {tf.__version__}, and its own optimizer trains the tables."
            )

    def _tell(self, line: str) -> None:
        """Logs a warning, each once for this estimator."""
        if line not in self._told:
            self._told.add(line)
            tf.logging.warning("%s", line)

    def _checkpoint(self, path: str | None, what: str) -> str | None:
        path = path or self.latest_checkpoint()
        if path is None:
            tf.logging.info(
                "Could not find trained model in model_dir: %s, running initialization to %s.",
                self.model_dir,
                what,
            )
        return path

    def _trained(self) -> str:
        path = self.latest_checkpoint()
        if path is None:
            raise errors.NotTrained(
                f"There is no checkpoint in the model_dir {self.model_dir!r}; `train` comes first."
            )
        return path

    def _saved_step(self) -> int:
        path = self.latest_checkpoint()
        if path is None:
            return 0
        return int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))

    def _check_tpu_settings(self) -> None:
        if self._batch_sizes[ModeKeys.TRAIN] is None:
            raise errors.InvalidInput("`train_batch_size` cannot be None with use_tpu=True.")
        for mode, size in self._batch_sizes.items():
            _check_positive(_BATCH_SIZE_ARGUMENT[mode], size)
        tpu_config = self._config.tpu_config
        if tpu_config.num_cores_per_replica not in (None, 1):
            raise errors.InvalidInput(
                f"TPUConfig.num_cores_per_replica={tpu_config.num_cores_per_replica}: model "
                "parallelism is not supported; leave it None."
            )
        modes = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.PER_HOST_V2)
        if self._embedding_config_spec and tpu_config.per_host_input_for_training not in modes:
            raise errors.InvalidInput(
                "Only PER_HOST_V1 and PER_HOST_V2 are possible with an embedding config, got "
                f"TPUConfig.per_host_input_for_training={tpu_config.per_host_input_for_training}."
            )

    def _check_host_settings(self) -> None:
        spec = self._embedding_config_spec
        # Of config dicts the lookup tells, with all else that has no effect.
        if spec.partition_strategy == "mod" and spec.feature_columns:
            self._tell(
                "partition_strategy='mod' has no effect with use_tpu=False: tables are ordinary "
                "variables and are saved row by row in their own order."
            )


_BATCH_SIZE_ARGUMENT = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


def _refuse_unsupported(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise errors.InvalidInput(f"`{name}`={value!r} is not supported; leave it out.")


def _with_model_dir(config: Any, model_dir: str | None) -> Any:
    if model_dir is not None and config.model_dir not in (None, model_dir):
        raise errors.InvalidInput(
            f"`model_dir` is {model_dir!r}, but the RunConfig has {config.model_dir!r}. Give one "
            "of them, or the same."
        )
    chosen = model_dir or config.model_dir
    if chosen is None:
        chosen = tempfile.mkdtemp()
        tf.logging.warning("Using temporary folder as model directory: %s", chosen)
    return config.replace(model_dir=os.fspath(chosen))


def _checked_hooks(hooks: Sequence[Any] | None) -> list[Any]:
    for hook in hooks or ():
        if not isinstance(hook, tf.train.SessionRunHook):
            raise errors.WrongType(f"Hooks must be SessionRunHooks, got {hook!r}.")
    return list(hooks or ())


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise errors.InvalidInput(f"`{name}` must be positive, got {value}.")


def _check_divisible(name: str, batch_size: int, cores: Cores) -> None:
    if batch_size % cores.count and cores.input_mode != InputPipelineConfig.BROADCAST:
        raise errors.InvalidInput(
            f"`{name}`={batch_size} must be divisible by the number of cores, TPUConfig.num_shards="
            f"{cores.count}."
        )

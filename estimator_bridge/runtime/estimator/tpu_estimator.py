"""`TPUEstimator`: train, evaluate and predict with legacy model_fns on the TF2 engine."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.convert.variable_names import shapes_of_spec
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig, parse_iterations_per_loop
from estimator_bridge.legacy.spec import checked_quirks
from estimator_bridge.runtime.estimator.arguments import check_positive
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from estimator_bridge.runtime.estimator.calls import (
    call_input_fn,
    call_model_fn,
    check_takes_params,
    with_items,
)
from estimator_bridge.runtime.estimator.strategies import core_devices
from estimator_bridge.runtime.estimator.tpu_context import Invocation, TPUContext
from estimator_bridge.runtime.input.feeding import Cores
from estimator_bridge.runtime.loop import graph_loop
from estimator_bridge.runtime.loop.device_loop import DeviceLoop, reports_of
from estimator_bridge.runtime.loop.termination import StopHook
from estimator_bridge.runtime.saving.job_saver import TableVariables
from estimator_bridge.runtime.step import devices
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from estimator_bridge.runtime.step.engine_step import EngineSettings, build_engine_step
from estimator_bridge.runtime.step.model_step import Step
from estimator_bridge.runtime.step.plain_tables import look_up_dicts
from estimator_bridge.runtime.step.receiver_features import cut_sequences
from estimator_bridge.runtime.step.table_variables import TABLES
from estimator_bridge.translation.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine import soft_tpu

BATCH_SIZE = "batch_size"
CONTEXT = "context"
USE_TPU = "use_tpu"
_RESERVED = (BATCH_SIZE, CONTEXT)


class TPUEstimator(Estimator):
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
        params: handed to model_fn and input_fn, a dict or an HParams; "batch_size", "use_tpu" and
            with use_tpu=True a `TPUContext` as "context" are added.
        use_tpu: see above.
        train_batch_size, eval_batch_size, predict_batch_size: samples of a global batch.
        batch_axis: along which axis each tensor of a batch is split over the cores, for PER_HOST_V1
            batches of training and evaluation; None is the first.
        eval_on_tpu: whether evaluation uses the engine too.
        export_to_tpu, export_to_cpu: at least one; either way what is exported is the graph for
            CPUs, of TensorFlow's own ops.
        warm_start_from: as for `Estimator`; the engine's tables are warm-started too.
        embedding_config_spec: tables, features and their optimizer; stock's or ours.
        export_saved_model_api_version: 1 or 2; they differ in graphs for TPUs alone.
        quirks: "stock" or "documented"; overrides the spec's.
        engine: what holds the tables with use_tpu=True: "host"; "software_tpu", a TPU in software
            of that many cores; or a driver for hosts. None is "host", and under `run
            --software-tpu` that.

    Raises:
        InvalidSpec, InvalidInput: a setting is outside its range or not supported; the message
            names it.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
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
        engine: Any = None,
    ) -> None:
        if not hasattr(config, "tpu_config"):
            raise errors.InvalidInput(
                f"`config` must be a tpu.RunConfig, got {type(config).__name__}."
            )
        for key in _RESERVED:
            if params is not None and key in params:
                raise errors.InvalidInput(f"`params` has the key {key!r}, which is reserved.")
        version = getattr(export_saved_model_api_version, "value", export_saved_model_api_version)
        if version not in (1, 2):
            raise errors.InvalidInput(
                "`export_saved_model_api_version` must be 1 or 2, got "
                f"{export_saved_model_api_version!r}."
            )
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self._use_tpu = use_tpu
        self._eval_on_tpu = eval_on_tpu
        self._export_to_tpu = export_to_tpu
        self._export_to_cpu = export_to_cpu
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._batch_axis = None if batch_axis is None else tuple(batch_axis)
        self._embedding_config_spec = embedding_config_spec
        self._quirks = None if quirks is None else checked_quirks(quirks)
        self._engine = (
            devices.default_engine() if engine is None else devices.checked_engine(engine)
        )
        self._told: set[str] = set()
        if use_tpu:
            self._check_tpu_settings()
        elif embedding_config_spec is not None:
            self._check_host_settings()

    def __repr__(self) -> str:
        engine = self._engine if isinstance(self._engine, str) else repr(self._engine)
        where = f"{engine} engine, {self._cores().count} cores" if self._use_tpu else "no engine"
        return f"<TPUEstimator {self.model_dir!r}, {where}>"

    def _train(
        self,
        build: Callable[[], Step],
        hooks: Sequence[Any],
        saving_listeners: Sequence[Any],
        steps: int | None,
        max_steps: int | None,
        batch_size: int | None = None,
        reports: Mapping[str, int] | None = None,
    ) -> Any:
        if self._use_tpu and steps is None and max_steps is None:
            raise errors.InvalidInput(
                "With use_tpu=True one of `steps` or `max_steps` must be set for training."
            )
        batch_size = self._batch_sizes[ModeKeys.TRAIN]
        tpu_config = self._config.tpu_config
        iterations = parse_iterations_per_loop(tpu_config.iterations_per_loop)
        if self._config.log_step_count_steps:
            reports = reports_of(iterations, self._config.log_step_count_steps)
        if not self._use_tpu:
            return super()._train(
                build, hooks, saving_listeners, steps, max_steps, batch_size, reports
            )
        loop = DeviceLoop(
            iterations,
            steps,
            max_steps,
            tpu_config.experimental_host_call_every_n_steps,
            interrupted=lambda: any(hook.told for hook in hooks if isinstance(hook, StopHook)),
        )
        return graph_loop.train(
            build, self._config, hooks, saving_listeners, batch_size, loop, reports
        )

    @property
    def _evaluates_in_one_call(self) -> bool:
        return self._runs_on_engine(ModeKeys.EVAL)

    def _cores(self, mode: str = ModeKeys.TRAIN) -> Cores:
        tpu_config, strategy = self._config.tpu_config, self._strategies[mode]
        count = tpu_config.num_shards or 1
        if strategy is not None:
            count = strategy.num_replicas_in_sync
            if tpu_config.num_shards not in (None, count):
                raise errors.InvalidInput(
                    f"TPUConfig.num_shards={tpu_config.num_shards}, but the strategy of mode "
                    f"{mode!r} has {count} replica(s): {strategy!r}. Leave num_shards out."
                )
        cores = Cores(
            count,
            tpu_config.per_host_input_for_training,
            self._batch_axis,
            core_devices(strategy),
        )
        return cores if mode == ModeKeys.TRAIN else _cores_of_inference(cores)

    def _scope_of(self, mode: str) -> Any:
        # An engine has the tables once, and its model is that of a TPU's cores, not of replicas.
        return None if self._runs_on_engine(mode) else super()._scope_of(mode)

    def _runs_on_engine(self, mode: str) -> bool:
        return self._use_tpu and (mode != ModeKeys.EVAL or self._eval_on_tpu)

    def _engine_of(self, mode: str) -> Any:
        if isinstance(self._strategies[mode], soft_tpu.SoftTPUStrategy):
            return devices.SOFTWARE_TPU
        return self._engine

    def _build(self, mode: str, input_fn: Callable[..., Any]) -> Step:
        on_engine = self._runs_on_engine(mode)
        batch_size = self._batch_sizes[mode]
        cores = self._cores(mode)
        input_size = model_size = batch_size
        if on_engine:
            if batch_size is None:
                raise errors.InvalidInput(
                    f"`{_BATCH_SIZE_ARGUMENT[mode]}` must be given to run {mode!r} with "
                    "use_tpu=True."
                )
            _check_divisible(_BATCH_SIZE_ARGUMENT[mode], batch_size, cores)
            input_size = cores.input_batch_size(batch_size)
            # One core makes the predictions of all.
            model_size = (
                input_size if mode == ModeKeys.PREDICT else cores.model_batch_size(batch_size)
            )
        check_takes_params(input_fn)
        calls = itertools.count()

        def read() -> Any:
            items = _sized(input_size)
            if on_engine:
                items[CONTEXT] = TPUContext(cores, Invocation(next(calls)))
            return call_input_fn(input_fn, mode, self._config, with_items(self._params, items))

        def model(features: Any, labels: Any) -> Any:
            items = {**_sized(model_size), USE_TPU: on_engine}
            if on_engine:
                items[CONTEXT] = TPUContext(cores)
            params = with_items(self._params, items)
            return call_model_fn(self._model_fn, features, labels, mode, self._config, params)

        self._announce(mode, on_engine)
        spec = self._embedding_config_spec
        if not on_engine:
            look_up = None
            if _of_dicts(spec):  # Columns look up by themselves.
                dicts = read_spec(spec, self._quirks)
                look_up = functools.partial(look_up_dicts, mode, legacy=dicts, notify=self._tell)
            return self._build_without_engine(mode, read, model, look_up)
        legacy = None if spec is None else read_spec(spec, self._quirks)
        settings = EngineSettings(
            legacy, cores, self._engine_of(mode), self._tell, input_size, model_size
        )
        return build_engine_step(mode, read, model, settings)

    def _table_shards(self) -> list[tf.Variable]:
        return list(tf.get_collection(TABLES))

    def _tables(self) -> TableVariables:
        spec = self._embedding_config_spec
        if spec is None:
            return TableVariables()
        shapes: dict[str, tuple[int, ...]] = {**shapes_of_spec(spec)}
        # The model's optimizer has slots for what stands for tables with use_tpu=True.
        legacy = read_spec(spec, self._quirks)
        shapes.update((DUMMY_NAME.format(table.name), (1,)) for table in legacy.tables)
        return TableVariables(shapes, spec.partition_strategy)

    def _call_for_export(self, features: Any, labels: Any, mode: str) -> Any:
        if not self._export_to_cpu and not self._export_to_tpu:
            raise errors.InvalidInput("One of `export_to_cpu` and `export_to_tpu` must be True.")
        if self._export_to_tpu:
            self._tell(
                "export_to_tpu=True: no graph for TPUs (tags serve, tpu) is exported; the graph "
                'with the tag "serve" is of TensorFlow\'s own ops, for CPUs and GPUs.'
            )
        spec = self._embedding_config_spec
        if spec is not None and (self._use_tpu or _of_dicts(spec)):
            legacy = read_spec(spec, self._quirks)
            features = self._features_for_export(features, legacy, mode)
        params = with_items(self._params, {USE_TPU: False})
        return call_model_fn(self._model_fn, features, labels, mode, self._config, params)

    def _features_for_export(self, features: Any, legacy: LegacySpec, mode: str) -> Any:
        """Makes ordinary columns, or lookups, of a receiver's features see what the engine saw."""
        if legacy.form == "dict":
            return look_up_dicts(mode, features, legacy, self._tell)
        for table in legacy.tables:
            if table.combiner is None:
                self._tell(
                    f"Table {table.name!r}: combiner=None; the exported model takes the mean of a "
                    "sample's embeddings, as stock's does, where training added them."
                )
        return cut_sequences(features, legacy)

    def _announce(self, mode: str, on_engine: bool) -> None:
        kinds = ", ".join(sorted({d.device_type for d in tf.config.list_physical_devices()}))
        if on_engine:
            engine = self._engine_of(mode)
            where = f"{engine} driver on {kinds}"
            if engine == devices.SOFTWARE_TPU:
                where = f"tpu driver on a software TPU on {kinds}"
            self._tell(
                f"use_tpu=True: the TF2 embedding engine holds the tables; {where}, TensorFlow "
                f"{tf.__version__}, {self._cores(mode).count} TPU core(s) emulated."
            )
        else:
            self._tell(
                f"use_tpu=False: no embedding engine; the model runs as it is on {kinds}, "
                f"TensorFlow {tf.__version__}, and its own optimizer trains the tables."
            )

    def _tell(self, line: str) -> None:
        """Logs a warning, each once for this estimator."""
        if line not in self._told:
            self._told.add(line)
            tf.logging.warning("%s", line)

    def _check_tpu_settings(self) -> None:
        if self._batch_sizes[ModeKeys.TRAIN] is None:
            raise errors.InvalidInput("`train_batch_size` cannot be None with use_tpu=True.")
        for mode, size in self._batch_sizes.items():
            check_positive(_BATCH_SIZE_ARGUMENT[mode], size)
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
        if spec.partition_strategy == "mod" and not _of_dicts(spec):
            self._tell(
                "partition_strategy='mod' has no effect with use_tpu=False: tables are ordinary "
                "variables and are saved row by row in their own order."
            )


_BATCH_SIZE_ARGUMENT = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


def _of_dicts(spec: Any) -> bool:
    """Returns whether a spec, if there is one, has config dicts and no columns."""
    return spec is not None and bool(spec.table_to_config_dict)


def _sized(size: int | None) -> dict[str, Any]:
    return {} if size is None else {BATCH_SIZE: size}


def _cores_of_inference(cores: Cores) -> Cores:
    """Stock calls the input_fn core by core in training alone."""
    if cores.input_mode != InputPipelineConfig.PER_SHARD_V1:
        return cores
    return dataclasses.replace(cores, input_mode=InputPipelineConfig.PER_HOST_V1)


def _check_divisible(name: str, batch_size: int, cores: Cores) -> None:
    if batch_size % cores.count and cores.input_mode != InputPipelineConfig.BROADCAST:
        raise errors.InvalidInput(
            f"`{name}`={batch_size} must be divisible by the number of cores, TPUConfig.num_shards="
            f"{cores.count}."
        )

"""`TPUEstimator`: trains, evaluates and predicts with legacy model_fns on the TF2 engine."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.variable_names import variables_of_spec
from estimator_bridge.defaults import default_input_hosts
from estimator_bridge.legacy import run_config
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.requirements import POSITIVE_INT, check
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.cluster import task_software
from estimator_bridge.runtime.cluster.tasks import Cluster
from estimator_bridge.runtime.estimator import cores_and_hosts, estimator_arguments
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.estimator.cores_and_hosts import TPUContext
from estimator_bridge.runtime.input.feeding import THIS_PROCESS, CoreLayout, read_per_core
from estimator_bridge.runtime.loop.training_session import Schedule, report_interval
from estimator_bridge.runtime.program_types import Hook, InputBatch, InputFn, ModelFn, ModelSpec
from estimator_bridge.runtime.step import devices, plain_step
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from estimator_bridge.runtime.step.clients import core_devices
from estimator_bridge.runtime.step.engine_step import EngineSettings, build_engine_step
from estimator_bridge.runtime.step.model_step import ModelStep
from estimator_bridge.runtime.step.table_variables import TableVariables
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import notes_of_settings
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec
from estimator_bridge.settings.quirks import checked_quirks
from estimator_bridge.settings.row import EXPORT, OFF_TPU
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine import log, soft_tpu
from tf2_engine.arguments import typed
from tf2_engine.backends import PsDriver
from tf2_engine.backends.interface import Arithmetic
from tf2_engine.backends.ps.messages import Wire
from tf2_engine.placement import Layout, workers_of_cores
from tf2_engine.types import Nest, Object

_BATCH_SIZE_ARGUMENT = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


@typed
class TPUEstimator(Estimator):
    """Runs a model_fn and input_fns as stock's TPUEstimator does.

    With `use_tpu=False`, the model's own optimizer trains the tables. With `use_tpu=True`, the
    TF2 engine contains the tables, emulates `TPUConfig.num_shards` cores, and computes with a TPU's
    arithmetic. Options of `run` change the defaults of `engine`, `arithmetic`, `layout` and `wire`.

    Args:
        params: a dict or an HParams for model_fn and input_fn. The estimator adds "batch_size" and
            "use_tpu", and with use_tpu=True also "context", a `TPUContext`.
        train_batch_size, eval_batch_size, predict_batch_size: how many samples a global batch has.
        batch_axis: the axis along which each tensor of a PER_HOST_V1 batch is split over the cores
            in training and evaluation. None means the first axis.
        eval_on_tpu: whether evaluation also uses the engine.
        export_to_tpu, export_to_cpu: at least one must be true. Either one exports a graph that has
            only TensorFlow's own ops, for CPUs.
        warm_start_from: as for `Estimator`; also initializes the engine's tables.
        embedding_config_spec: the tables, features and optimizer, as an EmbeddingConfigSpec of
            stock or of the bridge.
        export_saved_model_api_version: 1 or 2; has no effect here.
        quirks: "stock" or "documented"; overrides the spec's `quirks`.
        engine: the device of the tables: "host" (the default), "software_tpu", or a host driver.
        arithmetic: how the host computes: "tpu" (the default) as the first TPU generations do, or
            "sparsecore" as TPU v5p, v6e and TPU7x do; see docs/sparsecore.md.
        layout: how rows of large tables are spread over parameter servers: "div" (the default) in
            contiguous parts, or "octaves", which balances the load even if the first rows are the
            frequent ones. The layout affects no results except initial values.
        wire: how gradients are sent to parameter servers: "occurrences", "cells", "smallest" (the
            default: the smaller of these two), or "summed", which rounds differently; see
            docs/clusters.md.

    Raises:
        InvalidSpec, InvalidInput: a setting is invalid or not supported; the message names it.
        Untranslatable: SparseCores lack some of the settings; the message lists these settings.
    """

    _config: run_config.RunConfig

    _resource_step = True  # as in stock, even with use_tpu=False; see `new_graph`

    def __init__(
        self,
        model_fn: ModelFn | None = None,
        model_dir: PathLike | None = None,
        config: run_config.RunConfig | None = None,
        params: Object = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Object = None,
        embedding_config_spec: Object = None,
        export_saved_model_api_version: Object = 1,
        *,
        quirks: str | None = None,
        engine: devices.Engine | None = None,
        arithmetic: Arithmetic | None = None,
        layout: Layout | None = None,
        wire: Wire | None = None,
    ) -> None:
        _check_arguments(config, params, export_saved_model_api_version, embedding_config_spec)
        self._use_tpu = use_tpu
        self._layout = devices.layout_of(
            layout, getattr(embedding_config_spec, "partition_strategy", "div")
        )
        self._wire = devices.wire_of(wire)
        self._engine = devices.engine_of(engine, arithmetic)
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self._eval_on_tpu = eval_on_tpu
        self._export_to_tpu = export_to_tpu
        self._export_to_cpu = export_to_cpu
        sizes = (train_batch_size, eval_batch_size, predict_batch_size)
        self._batch_sizes = dict(zip(_BATCH_SIZE_ARGUMENT, sizes, strict=True))
        self._batch_axis = None if batch_axis is None else tuple(batch_axis)
        self._embedding_config_spec = embedding_config_spec
        quirks = quirks or getattr(embedding_config_spec, "quirks", None)
        self._quirks = None if quirks is None else checked_quirks(quirks)
        self._logged: set[str] = set()
        if use_tpu:
            self._check_tpu_settings()
        elif embedding_config_spec is not None and not embedding_config_spec.table_to_config_dict:
            # For config dicts, a later warning lists all settings without effect at once.
            notes = notes_of_settings("EmbeddingConfigSpec", embedding_config_spec._asdict(), SPEC)
            for line in render.warnings(notes, OFF_TPU):
                self._tell(line)

    def __repr__(self) -> str:
        engine = self._engine if isinstance(self._engine, str) else repr(self._engine)
        where = f"{engine} engine, {self._cores().count} cores" if self._use_tpu else "no engine"
        return f"<TPUEstimator {self.model_dir!r}, {where}>"

    def _check_steps(self, mode: str, name: str, value: int | None) -> None:
        if self._runs_on_engine(mode):
            # Stock has a different message for a number of training steps that is not positive.
            rules = POSITIVE_INT if mode == ModeKeys.EVAL else POSITIVE_INT[:1]
            check("TPUEstimator", name, value, *rules)
        super()._check_steps(mode, name, value)

    def _schedule(self, steps: int | None, max_steps: int | None) -> Schedule:
        if self._use_tpu and steps is None and max_steps is None:
            raise errors.InvalidInput(
                "With use_tpu=True one of `steps` or `max_steps` must be set for training."
            )
        tpu_config, every_n_steps = self._config.tpu_config, self._config.log_step_count_steps
        iterations = run_config.parse_iterations_per_loop(tpu_config.iterations_per_loop)
        return Schedule(
            steps,
            max_steps,
            self._batch_sizes[ModeKeys.TRAIN],
            report_interval(iterations, every_n_steps) if every_n_steps else None,
            iterations if self._use_tpu else None,
            tpu_config.experimental_host_call_every_n_steps,
        )

    def _cores(self, mode: str = ModeKeys.TRAIN) -> CoreLayout:
        tpu_config, strategy = self._config.tpu_config, self._strategies[mode]
        count = cores_and_hosts.num_replicas(tpu_config)
        if strategy is not None:
            count = strategy.num_replicas_in_sync
            if self._runs_on_engine(mode) and tpu_config.num_shards not in (None, count):
                raise errors.InvalidInput(
                    f"TPUConfig.num_shards={tpu_config.num_shards}, but the strategy of mode "
                    f"{mode!r} has {count} replica(s): {strategy!r}. Leave num_shards out."
                )
        elif self._cluster is not None and count == 1 and tpu_config.num_shards is None:
            count = len(self._cluster.workers)
        input_mode = tpu_config.per_host_input_for_training
        if mode != ModeKeys.TRAIN and input_mode == InputPipelineConfig.PER_SHARD_V1:
            # Stock calls the input_fn once per core only in training.
            input_mode = InputPipelineConfig.PER_HOST_V1
        hosts: tuple[str, ...] = (THIS_PROCESS,)
        if self._runs_on_engine(mode):
            workers = () if self._cluster is None else self._cluster.other_workers
            hosts = cores_and_hosts.input_hosts(workers, mode, input_mode, count)
        devices_of_cores = estimator_arguments.core_devices(strategy)
        return CoreLayout(count, input_mode, self._batch_axis, devices_of_cores, hosts)

    def _runs_on_engine(self, mode: str) -> bool:
        return self._use_tpu and (mode != ModeKeys.EVAL or self._eval_on_tpu)

    def _engine_of(self, mode: str) -> devices.Engine:
        if isinstance(self._strategies[mode], soft_tpu.SoftTPUStrategy):
            return devices.SOFTWARE_TPU
        if self._cluster is not None:
            workers = self._core_workers(self._cluster, mode)
            # With "mod" each server saves its own part, so checkpoints have the spec's row order.
            native = functools.partial(task_software.native_devices, self._cluster)
            return PsDriver(
                workers, self._cluster.servers, layout=self._layout, wire=self._wire, native=native
            )
        return self._engine

    def _core_workers(self, cluster: Cluster, mode: str) -> list[str]:
        cores = self._cores(mode)
        workers = workers_of_cores(cores.count, len(cluster.workers))
        of_cores = [cluster.workers[worker] for worker in workers]
        return of_cores[: cores.for_predictions().count] if mode == ModeKeys.PREDICT else of_cores

    def _is_in_graph(self) -> bool:
        return self._use_tpu

    def _check_cluster(self, cluster: Cluster) -> None:
        if self._use_tpu and self._engine != devices.HOST:
            raise errors.InvalidInput(
                f"TF_CONFIG: the cluster has {cluster}, so parameter servers hold the tables, and "
                f"`engine`={self._engine!r} cannot be used. Leave `engine` and `arithmetic` out, "
                "or run without TF_CONFIG."
            )
        super()._check_cluster(cluster)

    def _build(self, mode: str, input_fn: InputFn) -> ModelStep:
        on_engine = self._runs_on_engine(mode)
        # As in stock, a wrong batch size is reported before a wrong input_fn.
        self._call_sizes(mode, self._cores(mode))
        estimator_arguments.check_takes_params(input_fn)
        cores = self._cores_of_step(input_fn, mode)
        input_size, model_size = self._call_sizes(mode, cores)
        calls = itertools.count()

        tpu_config = self._config.tpu_config
        assignment = None
        if tpu_config.num_cores_per_replica is not None:
            assignment = functools.partial(
                cores_and_hosts.device_assignment, cores.count, tpu_config.num_cores_per_replica
            )

        def items(size: int | None, input_fn_call: int | None = None) -> dict[str, Object]:
            sizes: dict[str, Object] = {} if size is None else {"batch_size": size}
            context = TPUContext(cores, input_fn_call, assignment)
            return sizes | ({"context": context} if on_engine else {})

        def read() -> Object:
            arguments = items(input_size, next(calls))
            batch = self._call(input_fn, mode, arguments)
            is_asked = not on_engine or arguments["context"].host_was_asked_for
            if len(cores.hosts) > 1 and not is_asked:
                self._tell(cores_and_hosts.all_read_the_same(input_fn, len(cores.hosts)))
            return batch

        def model(features: Nest, labels: Nest) -> ModelSpec:
            if legacy is not None and not on_engine:
                features = plain_step.look_up_dicts(mode, features, legacy, self._tell)
            params = items(model_size) | {"use_tpu": on_engine}
            return self._call_model(features, labels, mode, params)

        self._announce(mode, on_engine)
        legacy = self._read_spec(on_engine)
        if not on_engine:
            return plain_step.build_plain_step(mode, read, model, self._strategies[mode])
        assert input_size is not None and model_size is not None
        settings = EngineSettings(
            *(legacy, cores, self._engine_of(mode), self._tell, input_size, model_size),
            functools.partial(self._warn_of_python, input_fn, len(cores.hosts)),
        )
        partitioned = cores_and_hosts.with_checked_partition(model, tpu_config)
        return build_engine_step(mode, read, partitioned, settings)

    def _cores_of_step(self, input_fn: InputFn, mode: str) -> CoreLayout:
        cores = self._cores(mode)
        if not self._shards(input_fn, mode, cores):
            self._note(cores_and_hosts.chief_reads_unsharded(input_fn, len(cores.hosts)))
            cores = dataclasses.replace(cores, hosts=(THIS_PROCESS,))
        if self._cluster is None or not self._runs_on_engine(mode):
            return cores
        workers = self._core_workers(self._cluster, mode)
        return dataclasses.replace(cores, devices=core_devices(self._cluster, workers))

    def _shards(self, input_fn: InputFn, mode: str, cores: CoreLayout) -> bool:
        """Whether every host calls the input_fn for its own part of the cores.

        If the number of hosts is not set, this depends on whether the input_fn asks which host
        calls it. To find out, this method calls the input_fn once in a separate graph.
        """
        if len(cores.hosts) == 1 or default_input_hosts() is not None:
            return True
        context = TPUContext(cores, 0)
        size, _ = self._call_sizes(mode, cores)
        with tf.Graph().as_default():
            self._call(input_fn, mode, {"batch_size": size, "context": context})
        return context.host_was_asked_for

    def _warn_of_python(
        self, input_fn: InputFn, num_hosts: int, names: Sequence[str], num_bytes: int
    ) -> None:
        line = cores_and_hosts.chief_reads(input_fn, num_hosts, names)
        self._log(log.warning, line, f" The chief sends the workers {num_bytes:,} bytes per step.")

    def _read_cores(self, input_fn: InputFn, count: int) -> tuple[list[InputBatch], list[Hook]]:
        mode = ModeKeys.TRAIN
        cores = dataclasses.replace(self._cores(), count=count, hosts=(THIS_PROCESS,))
        size = self._batch_sizes[mode]
        if size is None:
            raise errors.InvalidInput(
                "train_batch_size is not set, but the input depends on it. Set train_batch_size."
            )
        calls = itertools.count()

        def read() -> Object:
            context = TPUContext(cores, next(calls), None)
            items = {"batch_size": cores.input_batch_size(size), "context": context}
            return self._call(input_fn, mode, items)

        return read_per_core(read, cores, self._read_spec(on_engine=True))

    def _call_sizes(self, mode: str, cores: CoreLayout) -> tuple[int | None, int | None]:
        name, size = _BATCH_SIZE_ARGUMENT[mode], self._batch_sizes[mode]
        if not self._runs_on_engine(mode):
            return size, size
        if size is None:
            raise errors.InvalidInput(
                f"{name} in TPUEstimator constructor cannot be `None` to run {mode!r} with "
                f"use_tpu=True. Set {name}."
            )
        if size % cores.count and not cores.is_broadcast:
            raise errors.InvalidInput(
                f"{name.replace('_', ' ')} {size} must be divisible by number of replicas "
                f"{cores.count}, which is TPUConfig.num_shards. Change one of them."
            )
        return cores.input_batch_size(size), cores.model_batch_size(size)

    def _read_spec(self, on_engine: bool) -> LegacySpec | None:
        spec = self._embedding_config_spec
        if spec is None or not (on_engine or spec.table_to_config_dict):
            return None
        return read_spec(spec, self._quirks)

    def _tables(self) -> TableVariables:
        spec = self._embedding_config_spec
        if spec is None:
            return TableVariables()
        variables = variables_of_spec(spec)
        shapes = dict(variables.values())
        # With use_tpu=True the model's optimizer has slots for the dummy variables of tables.
        dummies = {DUMMY_NAME.format(table): (1,) for table in variables}
        names = {table: name for table, (name, _) in variables.items()}
        return TableVariables({**shapes, **dummies}, spec.partition_strategy, names)

    def _call_for_export(self, features: Nest, labels: Nest, mode: str) -> ModelSpec:
        if not self._export_to_cpu and not self._export_to_tpu:
            raise errors.InvalidInput("One of `export_to_cpu` and `export_to_tpu` must be True.")
        if self._export_to_tpu:
            self._note(render.warning("export_to_tpu", EXPORT))
        legacy = self._read_spec(self._use_tpu)
        if legacy is not None:
            features = plain_step.features_for_export(mode, features, legacy, self._tell)
        return self._call_model(features, labels, mode, {"use_tpu": False})

    def _announce(self, mode: str, on_engine: bool) -> None:
        kinds = ", ".join(sorted({d.device_type for d in tf.config.list_physical_devices()}))
        has_tables, version = self._embedding_config_spec is not None, tf.__version__
        cores = self._cores(mode)
        if not on_engine:
            line = (
                f"use_tpu=False: no embedding engine; the model runs unchanged on {kinds} with "
                f"TensorFlow {version}"
                f"{'; its own optimizer trains the tables' if has_tables else ''}."
            )
        elif not has_tables:
            line = (
                f"use_tpu=True: {cores.count} TPU core(s) emulated on {kinds}, TensorFlow "
                f"{version}; the model has no embedding_config_spec, and so no engine."
            )
        elif self._cluster is not None:
            reader = "each worker reads the input of its cores"
            if cores.hosts == (THIS_PROCESS,):
                reader = "the chief reads the input for all cores"
            line = (
                f"use_tpu=True: a cluster of {self._cluster}. {cores.count} TPU core(s) are "
                f"emulated on {len(self._cluster.workers)} task(s), {len(self._cluster.servers)} "
                f"parameter server(s) hold the tables, and {reader}. TensorFlow {version}."
            )
        else:
            engine = self._engine_of(mode)
            on_software = engine == devices.SOFTWARE_TPU
            driver = "tpu driver on a software TPU" if on_software else f"{engine} driver"
            if devices.arithmetic_of(engine) == "sparsecore":
                driver = "host driver, with the arithmetic of SparseCores,"
            line = (
                f"use_tpu=True: the TF2 embedding engine holds the tables; {driver} on {kinds}, "
                f"TensorFlow {version}, {cores.count} TPU core(s) emulated."
            )
        self._note(line)

    def _tell(self, line: str) -> None:
        self._log(log.warning, line)

    def _note(self, line: str) -> None:
        self._log(log.fact, line)

    def _log(self, write: Callable[..., None], line: str, rest: str = "") -> None:
        if line not in self._logged:
            self._logged.add(line)
            write("%s%s", line, rest)

    def _check_tpu_settings(self) -> None:
        if self._cluster is not None:
            # raises if the workers cannot run the cores
            self._core_workers(self._cluster, ModeKeys.TRAIN)
        if self._batch_sizes[ModeKeys.TRAIN] is None:
            raise errors.InvalidInput("`train_batch_size` cannot be `None` with use_tpu=True.")
        for mode, size in self._batch_sizes.items():
            check("TPUEstimator", _BATCH_SIZE_ARGUMENT[mode], size, *POSITIVE_INT)
        tpu_config = self._config.tpu_config
        if tpu_config.num_cores_per_replica is not None:
            note = cores_and_hosts.check_model_parallelism(tpu_config)
            if tpu_config.num_cores_per_replica > 1:
                self._note(note)
        modes = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.PER_HOST_V2)
        if self._embedding_config_spec and tpu_config.per_host_input_for_training not in modes:
            raise errors.InvalidInput(
                "Only PER_HOST_V1 and PER_HOST_V2 are possible with an embedding config, got "
                f"TPUConfig.per_host_input_for_training={tpu_config.per_host_input_for_training}."
            )


def _check_arguments(config: Object, params: Object, api_version: Object, spec: Object) -> None:
    if not hasattr(config, "tpu_config"):
        raise errors.InvalidInput(f"`config` must be a tpu.RunConfig, got {type(config).__name__}.")
    if params is not None and (
        isinstance(params, (str, bytes)) or not hasattr(params, "__contains__")
    ):
        raise errors.WrongSetting(
            f"`TPUEstimator`: `params` must be a dict or an HParams, got {params!r}."
        )
    for key in ("batch_size", "context"):
        if params is not None and key in params:
            raise errors.InvalidInput(
                f"batch_size and context are reserved keys, but `params` has {key!r}. Rename this "
                "key."
            )
    if getattr(api_version, "value", api_version) not in (1, 2):
        raise errors.InvalidInput(
            f"`export_saved_model_api_version` must be 1 or 2, got {api_version!r}."
        )
    if spec is not None and not hasattr(spec, "table_to_config_dict"):
        raise errors.WrongSetting(
            "`TPUEstimator`: `embedding_config_spec` must be an EmbeddingConfigSpec or None, "
            f"got {spec!r}."
        )

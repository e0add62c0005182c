"""Defines `ModelStep`, the ops and hooks of one step, and opens the graph that contains them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.host_calls import HostCallHook, call_host_fn
from estimator_bridge.runtime.program_types import Hook, ModelSpec
from estimator_bridge.runtime.step.clients import Client, DeviceFunction
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import forks, tf_compat
from tf2_engine.types import Graph, Nest, Object, Op, Session, Strategy, Tensor

EvalMetricOp = tuple[Nest, Op]  # the value of a metric, and the op that updates it

_MODE_HOOKS = {
    ModeKeys.TRAIN: "training_hooks",
    ModeKeys.EVAL: "evaluation_hooks",
    ModeKeys.PREDICT: "prediction_hooks",
}
_NEEDED_FIELDS = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """One step of training, evaluation or prediction."""

    loss: Tensor | None = None
    train_op: Op = None
    predictions: Nest = None
    # (value, update op) of each metric, or a Keras metric. Only for evaluations.
    eval_metric_ops: dict[str, Object] = dataclasses.field(default_factory=dict)
    mean_loss: EvalMetricOp | None = None  # None takes the mean of `loss` over the steps
    scaffold: tf.train.Scaffold | None = None
    input_hooks: tuple[Hook, ...] = ()  # hooks that feed the input; they run first
    hooks: tuple[Hook, ...] = ()  # the program's hooks for this mode
    chief_hooks: tuple[Hook, ...] = ()
    host_call: Nest = None  # ops of the host call, which a loop runs if no hook does
    before_save: Callable[[Session], None] | None = None  # updates the table variables
    end_of_loop: Op = None  # runs in the last step of a loop: trains and updates table variables
    tables: TableVariables = dataclasses.field(default_factory=TableVariables)


def step_of_specs(mode: str, specs: Sequence[ModelSpec], *, on_engine: bool = False) -> ModelStep:
    """Combines the specs of all cores into a step. The specs may be stock's or the bridge's."""
    spec = specs[0]
    hooks = list(getattr(spec, _MODE_HOOKS[mode]) or ())
    metrics = getattr(spec, "eval_metric_ops", None) or {}
    if getattr(spec, "eval_metrics", None):
        metrics = call_on_host("eval_metrics", specs, on_engine)
    host_call = None
    if getattr(spec, "host_call", None):
        host_call = call_on_host("host_call", specs, on_engine)
        in_loop = on_engine and mode != ModeKeys.PREDICT
        hooks.append(HostCallHook(None if in_loop else host_call))
        host_call = host_call if in_loop else None
    scaffold_fn = getattr(spec, "scaffold_fn", None)
    return ModelStep(
        loss=spec.loss,
        train_op=spec.train_op,
        predictions=spec.predictions,
        eval_metric_ops=metrics,
        scaffold=scaffold_fn() if scaffold_fn else getattr(spec, "scaffold", None),
        hooks=tuple(hooks),
        host_call=host_call,
    )


_V1_SUMMARIES = {
    *("AudioSummary", "AudioSummaryV2", "HistogramSummary", "ImageSummary"),
    *("MergeSummary", "ScalarSummary", "TensorSummary", "TensorSummaryV2"),
}


def call_on_host(field: str, specs: Sequence[ModelSpec], on_engine: bool) -> Nest:
    """Calls the host function of core 0's spec with the tensors of all cores."""
    function, tensors = getattr(specs[0], field)
    if len(specs) > 1:
        where = f"TPUEstimatorSpec.{field}[1]"
        tensors = join_cores(where, [getattr(spec, field)[1] for spec in specs])
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    result = call_host_fn((function, tensors))
    for op in graph.get_operations()[before:]:
        if on_engine and op.type in _V1_SUMMARIES:  # nothing would write them
            raise errors.InvalidInput(
                f"{field}: tf.compat.v1.summary has no effect in this function (op {op.name!r}). "
                "Use tf.compat.v2.summary, with a writer that the function creates."
            )
    return result


def join_cores(where: str, per_core: Sequence[Nest]) -> Nest:
    first = per_core[0]
    if isinstance(first, Mapping):
        return {
            key: _joined(f"{where}[{key!r}]", [core[key] for core in per_core]) for key in first
        }
    if isinstance(first, (list, tuple)):
        columns = enumerate(zip(*per_core, strict=True))
        return [_joined(f"{where}[{position}]", column) for position, column in columns]
    return _joined(where, per_core)


def _joined(where: str, tensors: Sequence[Tensor]) -> Tensor:
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if values[0].shape.rank == 0:
        raise errors.InvalidInput(
            f"{where} is a scalar; the tensors of {len(values)} cores are concatenated along their "
            "first axis. Give the tensor an axis: tf.reshape(value, [1])."
        )
    return tf.concat(values, 0)


def check_spec(mode: str, spec: Object) -> None:
    if not hasattr(spec, "loss") or not hasattr(spec, "train_op"):
        raise errors.InvalidInput(
            f"model_fn should return an EstimatorSpec or TPUEstimatorSpec, got {spec!r}."
        )
    for field in _NEEDED_FIELDS[mode]:
        if getattr(spec, field) is None:
            raise errors.InvalidInput(f"model_fn returned no {field} for mode {mode!r}.")


def metrics_of(step: ModelStep) -> dict[str, EvalMetricOp]:
    return {
        name: each if isinstance(each, tuple) else (each.result(), tf.group(*each.updates))
        for name, each in step.eval_metric_ops.items()
    }


@dataclasses.dataclass(frozen=True)
class EstimatorJob:
    """The model, config and hooks of one call to train, evaluate or predict."""

    build: Callable[[], ModelStep]  # called in the default graph and the strategy's scope
    config: RunConfig
    hooks: Sequence[Hook]  # hooks from the caller
    checkpoint: str | None  # None starts from the initial values
    strategy: Strategy | None
    client: Client
    resource_step: bool | None = None  # kind of the global step; see `new_graph`

    def session_config(self) -> tf.ConfigProto:
        if self.config.session_config is not None:
            return self.config.session_config
        config = default_session_config(self.strategy)
        self.client.configure(config)
        return config

    def master(self, address: str) -> str:
        if self.client.cluster is not None:
            return self.client.cluster.target()
        return "" if self.config.num_ps_replicas else address

    def device_fn(self) -> DeviceFunction | None:
        return self.client.device_fn(self.config.device_fn)


@contextlib.contextmanager
def new_graph(
    seed: int | None,
    device_fn: DeviceFunction | None = None,
    strategy: Strategy | None = None,
    resource_step: bool | None = True,
) -> Iterator[Graph]:
    """Opens a graph with a seed and a global step, in the scope of a strategy.

    If `resource_step` is None, TensorFlow's default decides whether the global step is a resource.
    Raises OutOfOrder if this process is a fork of a process that had opened a graph; see `forks`.
    """
    forks.check()
    with (
        tf.Graph().as_default() as graph,
        graph.device(device_fn),
        contextlib.nullcontext() if strategy is None else tf_compat.estimator_scope(strategy),
    ):
        # Models with a CrossShardOptimizer also run with use_tpu=False, and can be exported.
        tf_compat.trace_on_one_replica(graph)
        tf.set_random_seed(seed)
        tf.get_variable(
            tf.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=tf.zeros_initializer(),
            trainable=False,
            use_resource=resource_step,
            collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP],
        )
        yield graph


def default_session_config(strategy: Strategy | None = None) -> tf.ConfigProto:
    config = tf.ConfigProto(allow_soft_placement=True)
    if strategy is not None:
        # The strategy has already named its devices. A session has one CPU by default.
        config.device_count["CPU"] = len(tf.config.list_logical_devices("CPU"))
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return config

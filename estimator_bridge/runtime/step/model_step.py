"""`ModelStep`: the ops and hooks of one step of a mode, and the graph that it is built in."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.host_calls import HostCallHook
from estimator_bridge.runtime.program_types import Hook, ModelSpec
from estimator_bridge.runtime.step.clients import Client
from estimator_bridge.runtime.step.host_functions import call_on_host
from estimator_bridge.runtime.step.placing import DeviceFunction
from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import forks, tf_compat
from tf2_engine.types import Graph, Nest, Object, Op, Session, Strategy, Tensor

MetricOps = tuple[Nest, Op]  # the value of a metric, and the op that updates it

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
    """One step of training, evaluation or prediction.

    The train_op of the last step of a loop, `end_of_loop`, also brings the table variables up to
    date: stock retrieves the tables then, and applies pending updates. None is the `train_op`.
    """

    loss: Tensor | None = None
    train_op: Op = None
    predictions: Nest = None
    # For each metric (value, update op), or a Keras metric; in an evaluation only.
    eval_metric_ops: dict[str, Object] = dataclasses.field(default_factory=dict)
    mean_loss: MetricOps | None = None  # None is the mean of `loss` over the steps
    scaffold: tf.train.Scaffold | None = None
    input_hooks: tuple[Hook, ...] = ()  # what the input needs; they come first
    hooks: tuple[Hook, ...] = ()  # of the program, in this mode
    chief_hooks: tuple[Hook, ...] = ()
    host_call: Nest = None  # the ops of the host call for a loop to run, if no hook does
    before_save: Callable[[Session], None] | None = None  # brings the table variables up to date
    end_of_loop: Op = None
    tables: TableVariables = dataclasses.field(default_factory=TableVariables)


def step_of_specs(mode: str, specs: Sequence[ModelSpec], *, on_engine: bool = False) -> ModelStep:
    """Returns the step that the specs of all cores describe, stock's classes or ours, TPU or not.

    Host functions get the tensors of all cores, concatenated along axis 0: InvalidInput if one is
    a scalar. Those of the host call are of the global step before a training step, not after it. On
    the engine they may make no summaries that nothing would write, as beside a TPU,
    and loops of training and evaluation run the ops of the host call: its hook cares for summary
    writers alone.
    """
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


def check_spec(mode: str, spec: Object) -> None:
    """Raises InvalidInput if a model_fn returned no spec, or one that lacks a field."""
    if not hasattr(spec, "loss") or not hasattr(spec, "train_op"):
        raise errors.InvalidInput(
            f"model_fn should return an EstimatorSpec or TPUEstimatorSpec, got {spec!r}."
        )
    for field in _NEEDED_FIELDS[mode]:
        if getattr(spec, field) is None:
            raise errors.InvalidInput(f"model_fn returned no {field} for mode {mode!r}.")


def metrics_of(step: ModelStep) -> dict[str, MetricOps]:
    """Returns the value of each metric and the op that updates it; Keras's metrics are objects."""
    return {
        name: each if isinstance(each, tuple) else (each.result(), tf.group(*each.updates))
        for name, each in step.eval_metric_ops.items()
    }


@dataclasses.dataclass(frozen=True)
class EstimatorJob:
    """The model, the config and the hooks of one call that trains, evaluates or predicts."""

    build: Callable[[], ModelStep]  # in the default graph, in the scope of the strategy
    config: RunConfig
    hooks: Sequence[Hook]  # those that the caller gives
    checkpoint: str | None  # None leaves variables at their initial values
    strategy: Strategy | None
    client: Client
    resource_step: bool | None = None  # of the global step; see `new_graph`

    def session_config(self) -> tf.ConfigProto:
        """Returns the session config of the RunConfig, or the default one."""
        if self.config.session_config is not None:
            return self.config.session_config
        config = default_session_config(self.strategy)
        self.client.configure(config)
        return config

    def master(self, address: str) -> str:
        """Returns the address of the session: that of the config, or of this task of a cluster."""
        if self.client.cluster is not None:
            return self.client.cluster.target()
        return "" if self.config.num_ps_replicas else address

    def device_fn(self) -> DeviceFunction | None:
        """Returns the device function of the graph."""
        return self.client.device_fn(self.config.device_fn)


@contextlib.contextmanager
def new_graph(
    seed: int | None,
    device_fn: DeviceFunction | None = None,
    strategy: Strategy | None = None,
    resource_step: bool | None = True,
) -> Iterator[Graph]:
    """Opens a graph, and the scope of a strategy in it, with its seed set and a global step.

    With `resource_step` None the step is of the kind of the program's variables. In a program with
    reference variables, what is fetched as the step is then its value after the training step.

    Raises OutOfOrder in a fork of a process that has opened one: it will be run in a session.
    """
    forks.check()
    with (
        tf.Graph().as_default() as graph,
        graph.device(device_fn),
        contextlib.nullcontext() if strategy is None else tf_compat.estimator_scope(strategy),
    ):
        # Models with a CrossShardOptimizer run with use_tpu=False too, and are exported.
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
    """Returns the session config of an Estimator whose RunConfig has none."""
    config = tf.ConfigProto(allow_soft_placement=True)
    if strategy is not None:
        # Its devices are named already; by default a session has one CPU.
        config.device_count["CPU"] = len(tf.config.list_logical_devices("CPU"))
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return config

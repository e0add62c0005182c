"""Sessions around a step: train, evaluate, predict. Knows nothing of embeddings."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.hooks.input_pipeline import CheckpointInputPipelineHook
from estimator_bridge.runtime.loop.device_loop import DeviceLoop, DeviceLoopHook
from estimator_bridge.runtime.loop.evaluation_events import write_metrics
from estimator_bridge.runtime.loop.progress import StepRateHook
from estimator_bridge.runtime.saving.checkpoint_state import latest_checkpoint
from estimator_bridge.runtime.saving.job_saver import JobSaver, keep_slots, stored_variables
from estimator_bridge.runtime.step.model_step import Step
from estimator_bridge.runtime.step.plain_step import metric_ops
from tf2_engine import tf_compat

LOSS = "loss"


class UpdateTablesListener(tf.train.CheckpointSaverListener):
    """Brings the variables of tables up to date before a checkpoint is written."""

    def __init__(self, update: Callable[[Any], None]) -> None:
        self._update = update

    def before_save(self, session: Any, global_step_value: Any) -> None:
        """Does it."""
        self._update(session)


class StopAfterHook(tf.train.SessionRunHook):
    """Stops an evaluation after a number of steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts."""
        self._left -= 1
        if self._left <= 0:
            run_context.request_stop()


class AllStepsHook(tf.train.SessionRunHook):
    """Makes all steps of an evaluation but the last, which is that of the session call itself.

    It must be the last hook: the others are called once then, as where a TPU makes all steps.
    """

    def __init__(self, steps: int, update: Any) -> None:
        self._steps, self._update = steps, update

    def before_run(self, run_context: Any) -> None:
        """Makes them."""
        for _ in range(self._steps - 1):
            run_context.session.run(self._update)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops."""
        run_context.request_stop()


@contextlib.contextmanager
def new_graph(
    seed: int | None, device_fn: Callable[[Any], str] | None = None, strategy: Any = None
) -> Iterator[tf.Graph]:
    """Opens a graph with its seed set and a global step, as Estimators have it.

    Args:
        device_fn: gives the device of each op; None leaves it to the session.
        strategy: in whose scope everything is; None is none.
    """
    with (
        tf.Graph().as_default() as graph,
        graph.device(device_fn),
        contextlib.nullcontext() if strategy is None else tf_compat.estimator_scope(strategy),
    ):
        tf.set_random_seed(seed)
        tf.get_variable(
            tf.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=tf.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP],
        )
        yield graph


def default_session_config(strategy: Any = None) -> tf.ConfigProto:
    """Returns the session config of an Estimator whose RunConfig has none."""
    config = tf.ConfigProto(allow_soft_placement=True)
    if strategy is not None:
        # Its devices are named already; a session has one CPU unless it is told.
        config.device_count["CPU"] = len(tf.config.list_logical_devices("CPU"))
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return config


def train(
    build: Callable[[], Step],
    config: Any,
    hooks: Sequence[Any],
    saving_listeners: Sequence[Any],
    batch_size: int | None,
    device_loop: DeviceLoop | None = None,
    reports: Mapping[str, int] | None = None,
    strategy: Any = None,
) -> Any:
    """Trains until a hook stops it or the input ends.

    Where the input ends inside a device loop, the steps made by then are counted and saved. (Stock
    raises the OutOfRangeError of the input and leaves the last checkpoint as it was.)

    Args:
        build: builds the step in the default graph.
        config: a RunConfig.
        hooks: of the caller.
        saving_listeners: called around every checkpoint.
        batch_size: samples of the global batch, for reports.
        device_loop: when to stop, and how many steps hooks see as one; None is one step, and no
            end of its own.
        reports: how often progress is reported, as a hook that counts its calls takes it; None is
            as often as the config says.
        strategy: what the step is built under; None is none.

    Returns:
        The loss of the last step, or None if there was none.

    Raises:
        InvalidInput: there are listeners, but no checkpoint is ever written.
    """
    with new_graph(config.tf_random_seed, config.device_fn, strategy) as graph:
        tf_compat.read_global_step(graph)
        step = build()
        scaffold = step.scaffold or tf.train.Scaffold()
        _add_loss_summary(step.loss)
        all_hooks = [
            *hooks,
            tf.train.NanTensorHook(step.loss),
            *_progress(config, step, batch_size, reports, in_loops=device_loop is not None),
            *step.hooks,
        ]
        looping = None if device_loop is None else DeviceLoopHook(device_loop, step)
        if looping is not None:
            all_hooks.append(looping)
        _ensure_saver(scaffold, config, step, latest_checkpoint(config.model_dir))
        chief_hooks = list(step.chief_hooks)
        savers = [
            hook
            for hook in [*all_hooks, *chief_hooks]
            if isinstance(hook, tf.train.CheckpointSaverHook)
        ]
        if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
            savers = [
                tf.train.CheckpointSaverHook(
                    config.model_dir,
                    save_secs=config.save_checkpoints_secs,
                    save_steps=config.save_checkpoints_steps,
                    scaffold=scaffold,
                    save_graph_def=config.checkpoint_save_graph_def,
                )
            ]
            chief_hooks = [*savers, *chief_hooks]
        pipelines = [hook for hook in all_hooks if isinstance(hook, CheckpointInputPipelineHook)]
        saving_listeners = [*(hook.listener for hook in pipelines), *saving_listeners]
        if saving_listeners and not savers:
            raise errors.InvalidInput(
                "saving_listeners and CheckpointInputPipelineHook need a CheckpointSaverHook. Set "
                "save_checkpoints_steps or save_checkpoints_secs in the RunConfig."
            )
        if step.before_save is not None:
            for saver in savers:
                tf_compat.add_saving_listener(saver, UpdateTablesListener(step.before_save))
        for listener in saving_listeners:
            tf_compat.add_saving_listener(savers[0], listener)
        # Savers save when a session begins: by then the input has started, and is where it was.
        first = [*step.input_hooks, *pipelines, *(chief_hooks if config.is_chief else [])]
        loss = None
        with tf.train.MonitoredTrainingSession(
            master=config.master,
            is_chief=config.is_chief,
            checkpoint_dir=config.model_dir,
            scaffold=scaffold,
            hooks=[*first, *(hook for hook in all_hooks if hook not in pipelines)],
            save_checkpoint_secs=0,  # saving is the hook's
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config or default_session_config(strategy),
            max_wait_secs=config.session_creation_timeout_secs,
            log_step_count_steps=0,  # reports are the progress hooks'
            save_graph_def=config.checkpoint_save_graph_def,
        ) as session:
            while not session.should_stop():
                _, loss = session.run([step.train_op, step.loss])
        if looping is not None:
            loss = looping.loss
    if loss is None:
        tf.logging.warning("Training made no steps. Perhaps the input is empty.")
    return loss


def evaluate(
    build: Callable[[], Step],
    config: Any,
    steps: int | None,
    hooks: Sequence[Any],
    checkpoint_path: str | None,
    output_dir: str,
    strategy: Any = None,
    *,
    in_one_call: bool = False,
) -> dict[str, Any]:
    """Evaluates a checkpoint, or freshly initialised variables if there is none.

    Args:
        in_one_call: whether hooks see all `steps` as one.

    Returns:
        The value of each metric, the mean loss under "loss" and the step under "global_step".
    """
    with new_graph(config.tf_random_seed, strategy=strategy):
        step = build()
        metrics = {name: metric_ops(metric) for name, metric in step.eval_metric_ops.items()}
        _check_names(metrics)
        metrics[LOSS] = step.mean_loss or tf.metrics.mean(step.loss)
        update = tf.group(*[update for _, update in metrics.values()])
        values = {name: value for name, (value, _) in metrics.items()}
        values[tf.GraphKeys.GLOBAL_STEP] = tf.train.get_global_step()
        final = tf.train.FinalOpsHook(values)
        stop: list[Any] = []
        if steps is not None:
            stop = [AllStepsHook(steps, update) if in_one_call else StopAfterHook(steps)]
        tf.logging.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        with _checkpoint_session(
            _with_metrics_initialized(step),
            config,
            [*step.input_hooks, *hooks, *step.hooks, final, *stop],
            checkpoint_path,
            config.evaluation_master,
            strategy,
        ) as session:
            while not session.should_stop():
                session.run(update)
        results = final.final_ops_values
        tf.logging.info("Finished evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        write_metrics(output_dir, results, checkpoint_path)
        return dict(results)


def predict(
    build: Callable[[], Step],
    config: Any,
    predict_keys: Sequence[str] | None,
    hooks: Sequence[Any],
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator[Any]:
    """Yields predictions until the input ends, one sample or one batch at a time."""
    with new_graph(config.tf_random_seed):
        step = build()
        wanted = _select(step.predictions, predict_keys)
        all_hooks = [*step.input_hooks, *hooks, *step.hooks]
        with _checkpoint_session(
            step, config, all_hooks, checkpoint_path, config.master
        ) as session:
            while not session.should_stop():
                batch = session.run(wanted)
                if not yield_single_examples:
                    yield batch
                elif isinstance(batch, Mapping):
                    for i in range(_length(batch)):
                        yield {key: value[i] for key, value in batch.items()}
                else:
                    yield from batch


def _checkpoint_session(
    step: Step,
    config: Any,
    hooks: Sequence[Any],
    checkpoint_path: str | None,
    master: str,
    strategy: Any = None,
) -> Any:
    _ensure_saver(step.scaffold, config, step, checkpoint_path)
    creator = tf.train.ChiefSessionCreator(
        checkpoint_filename_with_path=checkpoint_path,
        master=master,
        scaffold=step.scaffold,
        config=config.session_config or default_session_config(strategy),
    )
    return tf.train.MonitoredSession(session_creator=creator, hooks=list(hooks))


def _progress(
    config: Any,
    step: Step,
    batch_size: int | None,
    reports: Mapping[str, int] | None,
    *,
    in_loops: bool,
) -> list[Any]:
    if not config.log_step_count_steps:
        return []
    reports = reports or {"every_n_iter": config.log_step_count_steps}
    directory = config.model_dir if config.save_summary_steps else None
    with tf.control_dependencies([step.train_op] if in_loops else []):
        number = tf.train.get_global_step()
        named = {LOSS: step.loss, "step": number.read_value() if in_loops else number}
    return [
        tf.train.LoggingTensorHook(named, **reports),
        StepRateHook(
            batch_size,
            directory,
            every_n_secs=reports.get("every_n_secs"),
            every_n_steps=reports.get("every_n_iter"),
        ),
    ]


def _add_loss_summary(loss: Any) -> None:
    tags = [summary.op.name for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    if LOSS not in tags:
        tf.summary.scalar(LOSS, loss)
    tf.add_to_collection(tf.GraphKeys.LOSSES, loss)


def _ensure_saver(scaffold: Any, config: Any, step: Step, checkpoint: str | None) -> None:
    if (scaffold and scaffold.saver) or tf.get_collection(tf.GraphKeys.SAVERS):
        return
    stored = stored_variables(checkpoint)
    if step.train_op is not None:
        keep_slots(stored, step.tables)
    saver = JobSaver(
        stored,
        step.tables,
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        allow_empty=True,
        save_relative_paths=True,
    )
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)


def _check_names(metrics: Mapping[str, Any]) -> None:
    for name in (LOSS, tf.GraphKeys.GLOBAL_STEP):
        if name in metrics:
            raise errors.InvalidInput(
                f"The metric {name!r} needs another name: every evaluation has one of that name."
            )


def _with_metrics_initialized(step: Step) -> Step:
    """A scaffold's own local_init_op does not know of the variables of metrics."""
    own = step.scaffold and step.scaffold.local_init_op
    if own is None:
        return step
    both = tf.group(own, tf.train.Scaffold.default_local_init_op())
    scaffold = tf.train.Scaffold(local_init_op=both, copy_from_scaffold=step.scaffold)
    return dataclasses.replace(step, scaffold=scaffold)


def _select(predictions: Any, keys: Sequence[str] | None) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise errors.InvalidInput(
            f"predict_keys={list(keys)} needs predictions to be a dict, got {predictions!r}."
        )
    chosen = {key: value for key, value in predictions.items() if key in keys}
    if not chosen:
        raise errors.InvalidInput(
            f"predict_keys={list(keys)}: expected some of {sorted(predictions)}."
        )
    return chosen


def _length(batch: Mapping[str, Any]) -> int:
    lengths = {key: np.shape(value)[0] if np.ndim(value) else None for key, value in batch.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise errors.InvalidInput(
            f"The predictions of a batch have different lengths: {lengths}. Use "
            "yield_single_examples=False to get whole batches."
        )
    return int(next(iter(lengths.values())) or 0)

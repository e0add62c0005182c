"""Trains: makes the session around a step, with its hooks and savers, and runs it to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.runtime.loop.device_loop import DeviceLoop, DeviceLoopHook
from estimator_bridge.runtime.loop.progress import StepRateHook
from estimator_bridge.runtime.program_types import Hook
from estimator_bridge.runtime.saving.checkpoint_state import latest_checkpoint
from estimator_bridge.runtime.saving.job_saver import add_job_saver
from estimator_bridge.runtime.saving.saving_hook import SavingHook
from estimator_bridge.runtime.step.graphs import default_session_config, new_graph
from estimator_bridge.runtime.step.model_step import ModelStep
from tf2_engine import tf_compat
from tf2_engine.types import Session, Strategy, Tensor

_LOSS = "loss"


class UpdateTablesListener(tf.train.CheckpointSaverListener):
    """Brings the variables of tables up to date before a checkpoint is written."""

    def __init__(self, update: Callable[[Session], None]) -> None:
        self._update = update

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Updates the variables."""
        self._update(session)


def train(
    build: Callable[[], ModelStep],
    config: RunConfig,
    hooks: Sequence[Hook],
    saving_listeners: Sequence[tf.train.CheckpointSaverListener],
    batch_size: int | None,
    device_loop: DeviceLoop | None = None,
    reports: Mapping[str, int] | None = None,
    strategy: Strategy | None = None,
) -> np.floating | None:
    """Trains until a hook stops it or the input ends.

    Where the input ends inside a device loop, the steps made by then are counted and saved. (Stock
    raises the OutOfRangeError of the input and leaves the last checkpoint as it was.)

    Args:
        build: builds the step in the default graph.
        hooks: those of the caller.
        saving_listeners: called around every checkpoint.
        batch_size: samples of the global batch, for reports.
        device_loop: when to stop, and how many steps hooks see as one; None shows them every step,
            and does not stop.
        reports: the interval of progress reports, `every_n_iter` or `every_n_secs`, for a hook that
            counts its calls; None is that of the config.
        strategy: the strategy under which the step is built; None is none.

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
        loop_hook = None if device_loop is None else DeviceLoopHook(device_loop, step)
        if loop_hook is not None:
            all_hooks.append(loop_hook)
        add_job_saver(scaffold, config, step, latest_checkpoint(config.model_dir))
        loss = None
        with tf.train.MonitoredTrainingSession(
            master=config.master,
            is_chief=config.is_chief,
            checkpoint_dir=config.model_dir,
            scaffold=scaffold,
            hooks=_with_savers(config, scaffold, step, all_hooks, saving_listeners),
            save_checkpoint_secs=0,  # the hook of `_with_savers` saves
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config or default_session_config(strategy),
            max_wait_secs=config.session_creation_timeout_secs,
            log_step_count_steps=0,  # the hooks of `_progress` report
            save_graph_def=config.checkpoint_save_graph_def,
        ) as session:
            while not session.should_stop():
                _, loss = session.run([step.train_op, step.loss])
        if loop_hook is not None:
            loss = loop_hook.loss
    if loss is None:
        tf.logging.warning("Training made no steps. Perhaps the input is empty.")
    return loss


def _with_savers(
    config: RunConfig,
    scaffold: tf.train.Scaffold,
    step: ModelStep,
    hooks: Sequence[Hook],
    saving_listeners: Sequence[tf.train.CheckpointSaverListener],
) -> list[Hook]:
    """Returns all hooks in the order of their calls, and adds the listeners to those that save."""
    savers = [
        hook
        for hook in (*hooks, *step.chief_hooks)
        if isinstance(hook, tf.train.CheckpointSaverHook)
    ]
    added_savers = [] if savers else _savers_of_config(config, scaffold)
    savers += added_savers
    saving_hooks = [hook for hook in hooks if isinstance(hook, SavingHook)]
    saving_listeners = [*(hook.listener for hook in saving_hooks), *saving_listeners]
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
    chief_hooks = [*added_savers, *step.chief_hooks] if config.is_chief else []
    others = [hook for hook in hooks if hook not in saving_hooks]
    # Savers save when a session begins: by then the input has started, and its state is restored.
    return [*step.input_hooks, *saving_hooks, *chief_hooks, *others]


def _savers_of_config(
    config: RunConfig, scaffold: tf.train.Scaffold
) -> list[tf.train.CheckpointSaverHook]:
    if not (config.save_checkpoints_secs or config.save_checkpoints_steps):
        return []
    return [
        tf.train.CheckpointSaverHook(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=scaffold,
            save_graph_def=config.checkpoint_save_graph_def,
        )
    ]


def _progress(
    config: RunConfig,
    step: ModelStep,
    batch_size: int | None,
    reports: Mapping[str, int] | None,
    *,
    in_loops: bool,
) -> list[Hook]:
    if not config.log_step_count_steps:
        return []
    reports = reports or {"every_n_iter": config.log_step_count_steps}
    directory = config.model_dir if config.save_summary_steps else None
    with tf.control_dependencies([step.train_op] if in_loops else []):
        number = tf.train.get_global_step()
        shown = {_LOSS: step.loss, "step": number.read_value() if in_loops else number}
    return [
        tf.train.LoggingTensorHook(shown, **reports),
        StepRateHook(
            batch_size,
            directory,
            every_n_secs=reports.get("every_n_secs"),
            every_n_steps=reports.get("every_n_iter"),
        ),
    ]


def _add_loss_summary(loss: Tensor | None) -> None:
    tags = [summary.op.name for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    if _LOSS not in tags:
        tf.summary.scalar(_LOSS, loss)
    tf.add_to_collection(tf.GraphKeys.LOSSES, loss)

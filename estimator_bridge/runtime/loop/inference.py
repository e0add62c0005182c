"""Evaluates and predicts: runs steps in a session that starts from a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.cluster.watchdog import watching
from estimator_bridge.runtime.input.feeding import NewSessionHook
from estimator_bridge.runtime.program_types import Hook, RunContext, RunValues
from estimator_bridge.runtime.saving.job_saver import add_job_saver
from estimator_bridge.runtime.step import model_step
from estimator_bridge.runtime.step.model_step import EstimatorJob, ModelStep
from tf2_engine import interruptions, log, tf_compat
from tf2_engine.types import Message, Nest, Object, Op, Session

_LOSS = "loss"  # name of the mean loss among the metrics
_TAG = "checkpoint_path"  # tag of the event that names the checkpoint


def evaluate(
    job: EstimatorJob, steps: int | None, output_dir: str, *, in_one_call: bool = False
) -> dict[str, Object]:
    """Evaluates a checkpoint. With `in_one_call`, hooks run only once, around all steps."""
    with _new_graph(job, "evaluation") as reading:
        step = job.build()
        metrics = model_step.metrics_of(step)
        for name in (_LOSS, tf.GraphKeys.GLOBAL_STEP):
            if name in metrics:
                raise errors.InvalidInput(
                    f"Metric with name `{name}` is not allowed, because every evaluation has a "
                    "metric with that name. Rename your metric."
                )
        metrics[_LOSS] = step.mean_loss or tf.metrics.mean(step.loss)
        # In a loop, hooks run once, but the host call has to run in every step.
        host_call = [] if step.host_call is None else tf.nest.flatten(step.host_call)
        updates = [*(update for _, update in metrics.values()), *host_call]
        update = tf.group(*updates, tf_compat.count_evaluation_step())
        values = {name: value for name, (value, _) in metrics.items()}
        values[tf.GraphKeys.GLOBAL_STEP] = tf.train.get_global_step()
        final = tf.train.FinalOpsHook(values)
        at_once = update if in_one_call else None
        stop = [_StopAfterHook(steps, reading, at_once)] if steps else []
        # Scripts search logs for stock's wording of these lines.
        log.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
        started = time.monotonic()
        step = _with_metrics_initialized(step)
        with _session(job, step, job.config.evaluation_master, reading, [final, *stop]) as session:
            while not session.should_stop():
                with reading.step():
                    session.run(update)
        if not reading.num_ended:
            log.warning(
                "Evaluation ran no steps. Perhaps the input is empty. The metrics and the loss "
                "have their initial values."
            )
        results = final.final_ops_values
        log.info("Inference Time : %0.5fs", time.monotonic() - started)
        log.info("Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S"))
        _write_metrics(output_dir, results, job.checkpoint)
        return dict(results)


def predict(
    job: EstimatorJob, predict_keys: Sequence[str] | None, yield_single_examples: bool
) -> Iterator[Nest]:
    with _new_graph(job, "prediction") as reading:
        step = job.build()
        fetches = _select(step.predictions, predict_keys)
        with _session(job, step, job.config.master, reading) as session:
            while not session.should_stop():
                with reading.step():
                    batch = session.run(fetches)
                if not yield_single_examples:
                    yield batch
                elif isinstance(batch, Mapping):
                    for i in range(_length(batch)):
                        yield {key: value[i] for key, value in batch.items()}
                else:
                    yield from batch


@contextlib.contextmanager
def _new_graph(job: EstimatorJob, what: str) -> Iterator[interruptions.ReadingSteps]:
    # As in stock, the config's device function is only for training. In a cluster, ops always need
    # a device function.
    device_fn = None if job.client.cluster is None else job.device_fn()
    steps = interruptions.ReadingSteps(f"the {what} of {job.checkpoint or 'initial values'}")
    seed, resource_step = job.config.tf_random_seed, job.resource_step
    with steps as reading, model_step.new_graph(seed, device_fn, job.strategy, resource_step):
        yield reading


@contextlib.contextmanager
def _session(
    job: EstimatorJob,
    step: ModelStep,
    master: str,
    reading: interruptions.ReadingSteps,
    last_hooks: Sequence[Hook] = (),
) -> Iterator[tf.train.MonitoredSession]:
    def note(session: Session) -> None:
        reading.canceller = session.close

    add_job_saver(step, job)
    creator = tf.train.ChiefSessionCreator(
        checkpoint_filename_with_path=job.checkpoint,
        master=job.master(master),
        scaffold=step.scaffold,
        config=job.session_config(),
    )
    remembering = NewSessionHook(tf_compat.remember_fetches)
    hooks = [*step.input_hooks, remembering, *job.hooks, *step.hooks, NewSessionHook(note)]
    with (
        watching(job.client.watched),
        tf.train.MonitoredSession(session_creator=creator, hooks=[*hooks, *last_hooks]) as session,
    ):
        yield session


def _with_metrics_initialized(step: ModelStep) -> ModelStep:
    own_init_op = step.scaffold and step.scaffold.local_init_op
    if own_init_op is None:
        return step
    both = tf.group(own_init_op, tf.train.Scaffold.default_local_init_op())
    scaffold = tf.train.Scaffold(local_init_op=both, copy_from_scaffold=step.scaffold)
    return dataclasses.replace(step, scaffold=scaffold)


def _select(predictions: Nest, keys: Sequence[str] | None) -> Nest:
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise errors.InvalidInput(
            "predict_keys argument is not valid in case of non-dict predictions: it is "
            f"{list(keys)}, but the model_fn returns {predictions!r}. Leave predict_keys out."
        )
    chosen = {key: value for key, value in predictions.items() if key in keys}
    if not chosen:
        raise errors.InvalidInput(
            f"Expected to run at least one output from {sorted(predictions)}, got "
            f"predict_keys={list(keys)}."
        )
    return chosen


def _length(batch: Mapping[str, Nest]) -> int:
    lengths = {key: np.shape(value)[0] if np.ndim(value) else None for key, value in batch.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise errors.InvalidInput(
            f"Batch length of predictions should be same, got {lengths}. Use "
            "yield_single_examples=False to get whole batches."
        )
    return int(next(iter(lengths.values())) or 0)


class _StopAfterHook(tf.train.SessionRunHook):
    """Stops an evaluation after a number of steps; must be the last hook in the list.

    If an op `update` is given, all steps run in the first session call, so other hooks run once.
    """

    def __init__(self, steps: int, reading: interruptions.ReadingSteps, update: Op = None) -> None:
        self._steps, self._reading, self._update = steps, reading, update
        self._num_ended = 0

    def before_run(self, run_context: RunContext) -> None:
        while self._update is not None and self._num_ended + 1 < self._steps:
            with self._reading.step():
                run_context.session.run(self._update)
            self._num_ended += 1

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        self._num_ended += 1
        shown_every = self._steps // 10 if self._steps >= 20 else 1
        if self._num_ended % shown_every == 0 or self._num_ended == self._steps:
            log.info("Evaluation [%d/%d]", self._num_ended, self._steps)
        if self._num_ended >= self._steps:
            run_context.request_stop()


def _write_metrics(directory: str, results: Mapping[str, Object], checkpoint: str | None) -> None:
    step = int(results[tf.GraphKeys.GLOBAL_STEP])
    pairs = sorted(results.items())
    shown = ", ".join(f"{name} = {v!s}" for name, v in pairs if not isinstance(v, bytes))
    log.info("Saving dict for global step %d: %s", step, shown)
    summary = tf.Summary()
    for name, value in results.items():
        if name != tf.GraphKeys.GLOBAL_STEP and value is not None:
            _add_metric(summary, name, value)
    writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    if checkpoint:
        path = tf.Summary()
        path.value.add(tag=_TAG, tensor=tf.make_tensor_proto(checkpoint, tf.string))
        log.info("Saving '%s' summary for global step %d: %s", _TAG, step, checkpoint)
        writer.add_summary(path, step)
    try:
        writer.flush()
    except Exception as error:  # TensorFlow's writer raises IndexError on a full disk
        raise errors.CannotWrite(
            f"{directory}: the events of the evaluation cannot be written: {error}. The "
            "checkpoints are unchanged."
        ) from error


def _add_metric(summary: Message, name: str, value: Object) -> None:
    if isinstance(value, bytes):
        try:
            serialized = tf.Summary.FromString(value)
        except Exception:  # TensorFlow has no public name for protobuf's error
            log.warning("Skipped the metric %s: its bytes are not a serialized summary.", name)
            return
        for number, part in enumerate(serialized.value):
            part.tag = f"{name}/{number}"
            summary.value.append(part)
    elif isinstance(value, (int, float, np.number)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
    else:
        log.warning("Skipped the metric %s: %r cannot be written as a summary.", name, value)

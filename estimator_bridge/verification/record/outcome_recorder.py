"""Records what follows training, such as evaluations, their batches and their metrics' inputs."""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.checkpoint_files import Reader
from estimator_bridge.legacy.host_calls import call_host_fn
from estimator_bridge.recording.array_files import (
    Values,
    as_array,
    digest,
    is_list,
    listed,
    unlisted,
)
from estimator_bridge.recording.files import (
    EVALUATION,
    EXPORT,
    EXPORTED,
    LOSS,
    METRIC_VARIABLE,
    OTHER,
    OWN,
    PREDICTION,
    RECOMPUTED,
    SEEN,
    About,
    OutcomeWriter,
    Recording,
)
from estimator_bridge.verification.record.capture import (
    CallArguments,
    Capture,
    name_of_core,
    replaced,
    with_signature_of,
)
from estimator_bridge.verification.record.replay import InputRecord, names_of, recorded_input_fn
from tf2_engine import tf_compat
from tf2_engine.types import Array, Function, Graph, Nest, Object, Op, Session, Tensor

_METRICS = "metrics"
_ARGUMENT = "argument"
_MAX_ERROR = 300
Variables = Callable[[Object, CallArguments], Iterable[tuple[str, Array]]]
"""A function that yields names and values of the variables that a call to a model's method read."""
Exported = Callable[[str], Iterable[tuple[str, Array]]]
"""A function that yields names and values of the variables in an exported model's directory."""
SAMPLES_OF_CHUNK = 1000
"""The number of samples in a file, and the largest number that is kept in memory."""
_SINGLE_OUTPUT = "prediction"


class CapturedMetrics(abc.ABC):
    """Captures the losses of one evaluation and the inputs of its metrics, batch by batch."""

    def __init__(self) -> None:
        self._capture = Capture()
        self._structure: Nest = None
        # Names of the arguments, once they are captured.
        self._names: list[str] | None = None

    def begin(self) -> None:
        self._capture.flush()

    def batches(self) -> list[Values]:
        return [step.get(_METRICS, {}) for step in self._capture.flush()]

    def recomputed(self, batches: Sequence[Values]) -> Values:
        names = self._names
        if (
            names is None
            or not batches
            or any(name not in one for one in batches for name in names)
        ):
            return {}
        return self._computed(names, batches)

    @abc.abstractmethod
    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values: ...

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        return self._capture.tensor(_METRICS, name, tensor)

    def _keep_arguments(self, arguments: Nest, keep: Function) -> Nest:
        self._structure = tf.nest.map_structure(lambda _: None, arguments)
        self._names = names_of(_ARGUMENT, arguments)
        pairs = zip(self._names, tf.nest.flatten(arguments), strict=True)
        return tf.nest.pack_sequence_as(arguments, [keep(name, each) for name, each in pairs])


class MetricValues(CapturedMetrics):
    """Captures the losses of one evaluation, and the arguments of its `eval_metrics`."""

    def __init__(self) -> None:
        super().__init__()
        self._cores: weakref.WeakKeyDictionary[Graph, int] = weakref.WeakKeyDictionary()
        self._metric_fn: Function | None = None

    def capturing(self, model_fn: Function, is_evaluating: Callable[[], bool]) -> Function:
        """Wraps a model_fn to capture metrics' inputs, and to seed ops equally on both sides."""

        @functools.wraps(model_fn)
        def call(*args: Object, **kwargs: Object) -> Object:
            with tf_compat.numbered_seeds():
                spec = model_fn(*args, **kwargs)
            return self._captured(spec) if is_evaluating() else spec

        return with_signature_of(model_fn, call)

    def _captured(self, spec: Object) -> Object:
        core = 0
        if not tf.executing_eagerly():
            core = self._cores.get(tf.get_default_graph(), -1) + 1
            self._cores[tf.get_default_graph()] = core
        changes = {}
        if spec.loss is not None:
            changes[LOSS] = self._keep_of_core(core, LOSS, spec.loss)
        if getattr(spec, "eval_metrics", None):
            self._metric_fn, tensors = spec.eval_metrics
            keep = functools.partial(self._keep_of_core, core)
            changes["eval_metrics"] = self._metric_fn, self._keep_arguments(tensors, keep)
        # Stock's constructor keeps eval_metrics in an attribute of the class; `_replace` does not.
        return type(spec)(**{**spec._asdict(), **changes})

    def _keep_of_core(self, core: int, name: str, tensor: Object) -> Object:
        is_tensor = isinstance(tensor, tf.Tensor)
        return self._keep(name_of_core(name, core), tensor) if is_tensor else tensor

    def batches(self) -> list[Values]:
        return [*map(_joined, super().batches())]

    def _computed(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        try:
            return self._run(names, batches)
        except (ValueError, TypeError, RuntimeError, tf.errors.OpError):
            return {}

    def _run(self, names: Sequence[str], batches: Sequence[Values]) -> Values:
        assert self._metric_fn is not None
        with tf.Graph().as_default(), tf.Session() as session:
            feeds = [_placeholder([batch[name] for batch in batches]) for name in names]
            tensors = tf.nest.pack_sequence_as(self._structure, feeds)
            with tf_compat.numbered_seeds():
                metrics = call_host_fn((self._metric_fn, tensors))
            ops = {str(name): _ops_of(metric) for name, metric in metrics.items()}
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(tf.tables_initializer())
            updates = [update for _, update in ops.values()]
            for batch in batches:
                values = [batch[name] for name in names]
                session.run(updates, dict(zip(feeds, values, strict=True)))
            return dict(session.run({name: value for name, (value, _) in ops.items()}))


class MetricVariablesHook(tf.train.SessionRunHook):
    """Reads the variables in which an evaluation sums its metrics, at the end of the evaluation."""

    def __init__(self) -> None:
        self.values: Values = {}

    def begin(self) -> None:
        variables = tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)
        self._variables = {f"{METRIC_VARIABLE}{one.op.name}": one for one in variables}

    def end(self, session: Session) -> None:
        self.values = session.run(self._variables)


def _ops_of(metric: Object) -> tuple[Nest, Op]:
    return metric if isinstance(metric, tuple) else (metric.result(), tf.group(*metric.updates))


def _joined(step: Values) -> Values:
    joined: dict[str, list[Array]] = {}
    for name in sorted(step, key=lambda name: (name.partition(" (core ")[0], len(name), name)):
        joined.setdefault(name.partition(" (core ")[0], []).append(step[name])
    return {
        name: parts[0] if len(parts) == 1 else _concatenated(parts)
        for name, parts in joined.items()
    }


def _concatenated(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)


def _placeholder(values: Sequence[Array]) -> Object:
    first = values[0]
    shape: list[int | None] | None = None
    if len({value.ndim for value in values}) == 1:
        sizes = zip(*(value.shape for value in values), strict=True)
        shape = [one[0] if len({*one}) == 1 else None for one in sizes]
    return tf.placeholder(tf.as_dtype(first.dtype), shape)


class OutcomeRecorder:
    """Records the results of `evaluate`, `predict` and `export_saved_model`."""

    def __init__(self, recorder: Object) -> None:
        self._recorder = recorder
        self._writer = recorder.writer.outcomes
        self._metrics = MetricValues()
        self._evaluating = False

    def capturing(self, model_fn: Function) -> Function:
        return self._metrics.capturing(model_fn, lambda: self._evaluating)

    def evaluate(
        self,
        original: Function,
        model: Object,
        arguments: CallArguments,
        variables: Variables | None = None,
        metrics_of: CapturedMetrics | None = None,
    ) -> Object:
        most = self._recorder.max_steps
        asked = arguments.get("steps")
        arguments["steps"] = min(asked or most, most)
        if not self._is_recorded(model, "evaluations"):
            return original(model, **arguments)
        hook = MetricVariablesHook()
        if variables is None:
            arguments["hooks"] = [*(arguments.get("hooks") or ()), hook]
        seen = metrics_of or self._metrics
        seen.begin()
        with self._recorded(EVALUATION, model, arguments, variables) as (name, about):
            with self._not_training(evaluating=True):
                metrics = original(model, **arguments)
            batches = seen.batches()
            about["batches"] = len(batches)
            self._writer.write(name, metrics)
            self._writer.write(name, {**listed(batches), **hook.values}, SEEN)
            self._writer.write(name, self._recomputed(seen, name, batches), RECOMPUTED)
        if len(batches) >= most and asked != most:
            wanted = "the whole input" if asked is None else f"{asked} batches"
            self._writer.left_out(
                f"{name}: the program evaluates {wanted}, but only the first {most} batches are "
                "compared, as many as there are training steps (--steps)."
            )
        return metrics

    def _recomputed(self, metrics: CapturedMetrics, name: str, batches: Sequence[Values]) -> Values:
        values = {f"{OWN}{key}": each for key, each in metrics.recomputed(batches).items()}
        if self._recorder.replayed is not None:
            seen = self._recorder.replayed.outcomes.part(name, SEEN)
            arrays = {
                key: each
                for key, each in seen.items()
                if not key.startswith(METRIC_VARIABLE) and key != LOSS
            }
            other = metrics.recomputed(unlisted(arrays)) if batches else {}
            values.update({f"{OTHER}{key}": each for key, each in other.items()})
        return values

    def predict(
        self,
        original: Function,
        model: Object,
        arguments: CallArguments,
        variables: Variables | None = None,
    ) -> Iterator[Object]:
        if not self._is_recorded(model, "predictions"):
            yield from original(model, **arguments)
            return
        with self._recorded(PREDICTION, model, arguments, variables) as (name, about):
            writer = PredictionWriter(self._writer, name)
            predictions = iter(original(model, **arguments))
            try:
                while True:
                    with self._not_training():
                        prediction = next(predictions, writer)
                    if prediction is writer:
                        if self._recorder.predicts_first_batch_twice(model):
                            self._writer.drop_batch(name)
                        break
                    writer.add(prediction)
                    yield prediction
            finally:  # the program may stop before the end
                writer.close()
                about["samples"] = writer.count

    def export(
        self,
        original: Function,
        model: Object,
        arguments: CallArguments,
        variables: Variables | None = None,
        read: Exported | None = None,
    ) -> Object:
        if not self._is_recorded(model, "exports"):
            return original(model, **arguments)
        with self._recorded(EXPORT, model, arguments, variables) as (name, _):
            with self._not_training():
                path = original(model, **arguments)
            exported = os.fsdecode(path)
            self._writer.write(name, dict((read or _exported)(exported)))
            number = name.rpartition("-")[2]
            shutil.copytree(exported, self._recorder.writer.directory / f"{EXPORTED}-{number}")
        return path

    def _is_recorded(self, model: Object, what: str) -> bool:
        if self._recorder.is_recorded(model):
            return True
        self._writer.left_out(
            f"The program's {what} before training, or of models that are not the first one "
            "to train."
        )
        return False

    @contextlib.contextmanager
    def _recorded(
        self, kind: str, model: Object, arguments: CallArguments, variables: Variables | None
    ) -> Iterator[tuple[str, About]]:
        name = self._writer.begin(kind)
        about: About = {}
        if "input_fn" in arguments:
            inputs = _inputs(self._writer, name, self._recorder.replayed, about)
            arguments["input_fn"] = recorded_input_fn(arguments["input_fn"], inputs)
        try:
            yield name, about
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            about["failed"] = ": ".join([type(error).__name__, *lines[:1]])[:_MAX_ERROR]
            raise
        finally:
            if "failed" not in about:
                read = (variables or variables_of_checkpoint)(model, arguments)
                about["variables"] = {key: digest({"": value}) for key, value in read}
            self._writer.about(name, about)

    @contextlib.contextmanager
    def _not_training(self, *, evaluating: bool = False) -> Iterator[None]:
        # Training may evaluate while it runs.
        with replaced(self._recorder, "training", False), replaced(self, "_evaluating", evaluating):
            yield


def _inputs(
    writer: OutcomeWriter, name: str, replayed: Recording | None, about: About
) -> InputRecord:
    def files(number: int) -> Sequence[pathlib.Path]:
        if replayed is None:
            return []
        recorded = replayed.outcomes.batches(name, number)
        about["replayed"] = bool(recorded) and about.get("replayed", True)
        return recorded

    def write(number: int, values: Mapping[str, Object]) -> None:
        about["replayed"] = False
        writer.batch(name, number, values)

    def unlike(reasons: Sequence[str]) -> None:
        about.setdefault("unlike", []).extend(reasons)

    return InputRecord(itertools.count().__next__, files, write, unlike)


def variables_of_checkpoint(model: Object, arguments: CallArguments) -> Iterator[tuple[str, Array]]:
    path = arguments.get("checkpoint_path") or tf.train.latest_checkpoint(model.model_dir)
    yield from _checkpoint(path) if path else ()


def _exported(directory: str) -> Iterator[tuple[str, Array]]:
    return _checkpoint(os.path.join(directory, "variables/variables"))


def _checkpoint(path: str) -> Iterator[tuple[str, Array]]:
    # A canned estimator stores the slots of each part of a variable under a separate name, and
    # TensorFlow reads only whole tensors.
    with Reader(path) as stored:
        whole = sorted(name for name, tensor in stored.tensors.items() if tensor.is_whole)
    reader = tf.train.load_checkpoint(path)
    for name in whole:
        yield name, reader.get_tensor(name)


class PredictionWriter:
    """Writes predictions sample by sample."""

    def __init__(self, writer: OutcomeWriter, name: str) -> None:
        self._writer, self._name = writer, name
        self._samples: list[dict[str, Array]] = []
        self._chunks = 0
        self.count = 0

    def add(self, prediction: Object) -> None:
        self._samples.append(dict(flat(prediction)))
        self.count += 1
        if len(self._samples) == SAMPLES_OF_CHUNK:
            self._flush()

    def close(self) -> None:
        if self._samples:
            self._flush()

    def _flush(self) -> None:
        samples, self._samples = self._samples, []
        self._writer.chunk(self._name, self._chunks, listed(samples))
        self._chunks += 1


def flat(value: Object, name: str = "") -> Iterator[tuple[str, Array]]:
    if isinstance(value, Mapping):
        parts = {str(key): part for key, part in value.items()}
    elif hasattr(value, "_asdict"):  # for instance a SparseTensorValue
        parts = value._asdict()
    elif hasattr(value, "nested_row_splits"):
        splits = {f"row_splits_{i}": each for i, each in enumerate(value.nested_row_splits)}
        parts = {"values": value.flat_values, **splits}
    elif is_list(array := as_array(value)):
        parts = {str(i): part for i, part in enumerate(array)}
    else:
        yield name or _SINGLE_OUTPUT, array
        return
    for key, part in parts.items():
        yield from flat(part, f"{name}/{key}" if name else key)

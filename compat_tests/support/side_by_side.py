"""Runs one program with stock's TPUEstimator and with ours, and records calls and results.

Stock must be installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from typing import Any

import tensorflow.compat.v1 as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import stock
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu

LOOP = 2
"""The number of steps in a device loop, with use_tpu=True."""
STEPS, LAST = 5, 8
"""The steps that the first call of train adds to step 1, and `max_steps` of the last call."""
EVALUATED = 3
"""The number of batches of an evaluation."""


@dataclasses.dataclass
class Side:
    """The records of one side's job.

    Attributes:
        job: the TPUEstimator.
        calls: the calls of hooks and listeners in training, in order: caller, method, global step.
        eval_calls: the calls of hooks in evaluation.
        calls_of_functions: the arguments of the calls of input_fn and model_fn.
        collections: maps each collection to the names in it when training began.
        slices: maps each part of a partitioned variable to the whole's name and shape, and its
            offset.
        results: maps names of methods to results.
    """

    job: Any
    calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    eval_calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    calls_of_functions: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    collections: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    slices: dict[str, Any] = dataclasses.field(default_factory=dict)
    results: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """The names of the files in the model_dir, except event files."""
        return sorted(n for n in os.listdir(self.job.model_dir) if not n.startswith("events"))


class Recording(tf.train.SessionRunHook):
    """Records its calls, each with the global step."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self._name, self._calls = name, calls

    def _add(self, method: str, session: Any = None) -> None:
        step = () if session is None else (int(session.run(self._step)),)
        self._calls.append((self._name, method, *step))

    def begin(self) -> None:
        self._step = tf.train.get_global_step().read_value()
        self._add("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._add("after_create_session", session)

    def before_run(self, run_context: Any) -> None:
        self._add("before_run", run_context.session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._add("after_run", run_context.session)

    def end(self, session: Any) -> None:
        self._add("end", session)


class Looking(tf.train.SessionRunHook):
    """Records the names in the collections of a graph."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def begin(self) -> None:
        graph = tf.get_default_graph()
        self._side.collections = {
            key: [each.name for each in graph.get_collection(key) if hasattr(each, "name")]
            for key in graph.get_all_collection_keys()
            if isinstance(key, str)
        }
        for variable in tf.global_variables():
            info = variable._get_save_slice_info()
            if info is not None:
                self._side.slices[variable.name] = (
                    info.full_name,
                    list(info.full_shape),
                    list(info.var_offset),
                )


class Listening(tf.train.CheckpointSaverListener):
    """Records its calls."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    def begin(self) -> None:
        self._calls.append(("listener", "begin"))

    def before_save(self, session: Any, global_step_value: Any) -> None:
        self._calls.append(("listener", "before_save", int(global_step_value)))

    def after_save(self, session: Any, global_step_value: Any) -> None:
        self._calls.append(("listener", "after_save", int(global_step_value)))

    def end(self, session: Any, global_step_value: Any) -> None:
        self._calls.append(("listener", "end", int(global_step_value)))


def make(
    namespace: Any, model_dir: pathlib.Path | str, *, use_tpu: bool, side: Side | None = None
) -> Any:
    """Creates a TPUEstimator for the click program.

    Args:
        side: records the arguments of functions; None records nothing.
    """
    columns = clicks.columns()
    inner = clicks.make_model_fn(namespace, columns, cross_shard=use_tpu)

    def model_fn(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        spec = inner(features, labels, mode, params)
        if side is None:
            return spec
        side.calls_of_functions.append(
            ("model", mode, _public(params), _shapes(features), _shapes(labels), config.model_dir)
        )
        return spec._replace(
            training_hooks=(Recording("training", side.calls),),
            evaluation_hooks=(Recording("evaluation", side.eval_calls),),
        )

    def input_fn(params: Any, config: Any, mode: str) -> Any:
        if side is not None:
            deployed = None
            if "context" in params:
                deployed = params["context"].current_input_fn_deployment()[1:]
            side.calls_of_functions.append(("input", mode, _public(params), deployed))
        return clicks.input_fn(params)

    config = clicks.run_config(
        namespace, str(model_dir), save_graph=side is not None, iterations_per_loop=LOOP
    ).replace(
        save_checkpoints_steps=2,
        save_summary_steps=LOOP,
        log_step_count_steps=LOOP,
        keep_checkpoint_max=3,
    )
    job = namespace.tpu.TPUEstimator(
        model_fn,
        use_tpu=use_tpu,
        config=config,
        params={"own": 1},
        train_batch_size=jobs.BATCH,
        eval_batch_size=jobs.BATCH,
        predict_batch_size=jobs.BATCH,
        export_to_tpu=False,
        embedding_config_spec=namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
        ),
    )
    job.input_fn = input_fn
    return job


def both(folder: pathlib.Path, *, use_tpu: bool) -> tuple[Side, Side]:
    """Runs the program on stock and on the bridge from the same checkpoint; returns both sides."""
    with _on_stock(use_tpu):
        start = make(stock.ESTIMATOR, folder / "start", use_tpu=use_tpu)
        start.train(start.input_fn, max_steps=1)
    sides = []
    for name, namespace, where in (
        ("stock", stock.ESTIMATOR, _on_stock(use_tpu)),
        ("bridge", estimator, contextlib.nullcontext()),
    ):
        # Both have the same name, because functions see it in their config.
        model_dir = folder / name / "job"
        shutil.copytree(folder / "start", model_dir)
        for events in model_dir.glob("events*"):
            events.unlink()
        with where:
            sides.append(_run(namespace, model_dir, use_tpu))
    return sides[0], sides[1]


def _run(namespace: Any, model_dir: pathlib.Path, use_tpu: bool) -> Side:
    side = Side(None)
    job = side.job = make(namespace, model_dir, use_tpu=use_tpu, side=side)
    results = side.results
    hooks = [Recording("caller", side.calls), Looking(side)]
    results["train"] = job.train(
        job.input_fn, hooks=hooks, steps=STEPS, saving_listeners=[Listening(side.calls)]
    )
    before = len(side.calls_of_functions)
    job.train(job.input_fn, max_steps=STEPS)
    results["calls of a training that has been done"] = len(side.calls_of_functions) - before
    job.train(job.input_fn, max_steps=LAST)
    results["evaluate"] = job.evaluate(
        job.input_fn, steps=EVALUATED, hooks=[Recording("caller", side.eval_calls)]
    )
    earlier = os.path.join(job.model_dir, f"model.ckpt-{STEPS + 1}")
    results["evaluate earlier"] = job.evaluate(
        job.input_fn, steps=1, checkpoint_path=earlier, name="earlier"
    )
    if not use_tpu:
        _without_a_tpu(side)
    return side


def _without_a_tpu(side: Side) -> None:
    """Runs the methods that stock does not support with embeddings on a (software) TPU."""
    job, results = side.job, side.results

    def few(params: Any) -> Any:
        return clicks.short_input_fn(params).take(2).map(lambda features, labels: features)

    samples = list(job.predict(few, predict_keys=["p", "a key without a prediction"]))
    results["predict"] = [sample["p"].tolist() for sample in samples]
    results["predict keys"] = [sorted(sample) for sample in samples]
    batches = job.predict(few, yield_single_examples=False)
    results["predict batches"] = [batch["p"].shape for batch in batches]


def _on_stock(use_tpu: bool) -> contextlib.AbstractContextManager[None]:
    return software_tpu.stock_on_software_tpu() if use_tpu else contextlib.nullcontext()


def _public(params: Any) -> dict[str, Any]:
    return {key: True if key == "context" else value for key, value in sorted(params.items())}


def _shapes(nest: Any) -> Any:
    def shown(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return "sparse", leaf.dtype.name
        return leaf.shape.as_list(), leaf.dtype.name

    if isinstance(nest, dict):
        return sorted((key, shown(value)) for key, value in nest.items())
    return None if nest is None else shown(nest)

"""Runs the engine on the host, in a process that receives commands.

    python -m benchmarks.engine_child <workload> <mode> <native: 0|1> [threads]

In the modes "function", "nest" and "packed", a step is a tf.function. Its arguments are tensors of
ids and gradients ("function"), a nest of ids ("nest") or a packed batch ("packed"). In the mode
"graph", a step is a session call, and a pipeline provides the batches. In all modes but "function",
the step itself creates the gradients and waits for the activations. The modes "packed-on-gpu" and
"graph-on-gpu" are "packed" and "graph" with batches on a GPU.

If there is a GPU, tables and steps are on it in all modes. The batches for TensorFlow's ops are
also on the GPU, except in the mode "graph"; the batches for native ops are on the host, except in
the modes "packed-on-gpu" and "graph-on-gpu". A step ends when the host has received a number that
is computed after the step.

Answers each line "train N" or "infer N" with the times of N steps, in ms. Answers "memory 1" with
the resident memory, minus TensorFlow's own, divided by the size of the tables and slots, and
"gpu-bandwidth 1" with the GB/s that the GPU reads and writes at most.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.child import THREADS, Step, resident, serve
from benchmarks.workloads import BATCHES, Workload, batches, find
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver
from tf2_engine.native import gpu_ops


def main() -> None:
    workload, mode, native = find(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
    gpus = tf.config.list_physical_devices("GPU")  # other contenders use it too
    default = (os.cpu_count() or 1) if gpus else THREADS
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else default
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))  # allocates TensorFlow's own memory
    before = resident()
    steps = _MODES[mode](workload, native, threads)
    tables = 2 * 4 * workload.tables * workload.rows * workload.dim  # Adagrad has one slot
    serve(
        steps,
        {"memory": lambda: (resident() - before) / tables, "gpu-bandwidth": _gpu_bandwidth},
    )


def _gpu_bandwidth(count: int = 2**27, repeats: int = 50) -> float:
    """Measures the GB/s that the first GPU reads and writes when it adds 1 to `count` floats."""
    with tf.device("GPU:0"):
        values = tf.Variable(tf.zeros([count]))

        @tf.function(autograph=False)
        def add() -> Any:
            for _ in range(repeats):
                values.assign(values + 1.0)
            return values[0]

        add().numpy()
        started = time.perf_counter()
        add().numpy()
    return 2 * 4 * count * repeats / (time.perf_counter() - started) / 1e9


def _engine(workload: Workload, native: bool) -> TPUEmbedding:
    optimizer = Adagrad(0.1)
    initializer = tf.random_uniform_initializer(-0.5, 0.5)
    spec = EngineSpec(
        tuple(
            TableSpec(f"t{i}", workload.rows, workload.dim, "sum", optimizer, initializer)
            for i in range(workload.tables)
        ),
        tuple(FeatureSpec(f"f{i}", f"t{i}") for i in range(workload.tables)),
    )
    embedding = TPUEmbedding(spec, driver=HostDriver(native=native))
    embedding.build_for([(workload.batch,)] * workload.tables)
    return embedding


def inputs_of(workload: Workload) -> list[list[Any]]:
    """Lists, per batch, each table's ids, followed by row splits if samples have several ids."""
    of_tables = batches(workload)
    per_batch: list[list[Any]] = []
    for number in range(BATCHES):
        arrays = []
        for table in of_tables:
            arrays += [table[number].ids]
            arrays += [table[number].splits] if workload.most_ids > 1 else []
        per_batch.append(arrays)
    return per_batch


def features_of(workload: Workload, arrays: Any) -> dict[str, Any]:
    """Maps each feature to its ids. `arrays` are the arrays or tensors of one batch."""
    if workload.most_ids == 1:
        return {f"f{i}": ids for i, ids in enumerate(arrays)}
    return {
        f"f{i}": tf.RaggedTensor.from_row_splits(arrays[2 * i], arrays[2 * i + 1], validate=False)
        for i in range(workload.tables)
    }


def gradients_of(workload: Workload) -> dict[str, Any]:
    """Creates the gradients of each feature's activations, [batch, dim] float32."""
    # All differ, because TensorFlow would merge equal ones into one tensor that stays in the cache.
    shape = (workload.batch, workload.dim)
    return {f"f{i}": np.full(shape, 0.01 + 1e-4 * i, np.float32) for i in range(workload.tables)}


def _function(workload: Workload, native: bool, threads: int) -> dict[str, Step]:
    embedding = _engine(workload, native)
    inputs = [[tf.constant(array) for array in arrays] for arrays in inputs_of(workload)]
    gradients = {name: tf.constant(value) for name, value in gradients_of(workload).items()}

    @tf.function(autograph=False)
    def train(arrays: Any, sent: Any) -> None:
        embedding.enqueue(features_of(workload, arrays))
        embedding.dequeue()
        embedding.apply_gradients(sent)

    @tf.function(autograph=False)
    def infer(arrays: Any) -> Any:
        embedding.enqueue(features_of(workload, arrays), training=False)
        return embedding.dequeue()

    return {"train": lambda i: train(inputs[i], gradients), "infer": lambda i: infer(inputs[i])}


def _nest(
    workload: Workload, native: bool, threads: int, *, packs: bool = False, to_gpu: bool = False
) -> dict[str, Step]:
    embedding = _engine(workload, native)
    with gpu_ops.where_ids_are():
        inputs = [
            features_of(workload, list(map(tf.constant, arrays))) for arrays in inputs_of(workload)
        ]
        if packs:
            inputs = [embedding.pack(features) for features in inputs]
    if to_gpu:
        with tf.device("GPU:0"):
            inputs = [type(packed)(*map(tf.identity, packed)) for packed in inputs]

    @tf.function(autograph=False, reduce_retracing=True)
    def train(features: Any) -> Any:
        embedding.enqueue(features)
        activations = embedding.dequeue()
        sent = {name: tf.constant(value) for name, value in gradients_of(workload).items()}
        return _after(embedding.apply_gradients(sent), number_after(activations))

    @tf.function(autograph=False, reduce_retracing=True)
    def infer(features: Any) -> Any:
        embedding.enqueue(features, training=False)
        return number_after(embedding.dequeue())

    return {
        "train": lambda i: train(inputs[i]).numpy(),
        "infer": lambda i: infer(inputs[i]).numpy(),
    }


def _packed(workload: Workload, native: bool, threads: int) -> dict[str, Step]:
    return _nest(workload, native, threads, packs=True)


def _packed_on_gpu(workload: Workload, native: bool, threads: int) -> dict[str, Step]:
    return _nest(workload, native, threads, packs=True, to_gpu=True)


def _graph(
    workload: Workload, native: bool, threads: int, *, on_gpu: bool = False
) -> dict[str, Step]:
    with tf.Graph().as_default():
        embedding = _engine(workload, native)
        gradients = {name: tf.constant(value) for name, value in gradients_of(workload).items()}
        if on_gpu:
            with tf.device("GPU:0"):
                inputs = [list(map(tf.constant, arrays)) for arrays in inputs_of(workload)]
            start = tf.no_op()
        else:
            of_pipeline, start = _pipeline([tuple(arrays) for arrays in inputs_of(workload)])
            inputs = [of_pipeline]
        ends: dict[str, list[Any]] = {"train": [], "infer": []}
        for arrays in inputs:
            features = features_of(workload, arrays)
            embedding.enqueue(features)
            activations = embedding.dequeue()
            update = embedding.apply_gradients(gradients)
            ends["train"].append(_after(update, number_after(activations)))
            embedding.enqueue(features, training=False)
            ends["infer"].append(number_after(embedding.dequeue()))
        # The native ops run one after another, and use several threads internally. So the thread
        # that calls the session can run them, and no other thread has to be woken.
        session = tf.compat.v1.Session(
            config=tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=threads,
                inter_op_parallelism_threads=-1 if native else threads,
            )
        )
        # Only once, because TensorFlow would keep the memory of tables that are initialized again.
        session.run([tf.compat.v1.global_variables_initializer(), start])
        run = {what: list(map(session.make_callable, numbers)) for what, numbers in ends.items()}
    return {
        what: lambda i, calls=calls: calls[i % len(calls)]()  # type: ignore[misc]
        for what, calls in run.items()
    }


def _graph_on_gpu(workload: Workload, native: bool, threads: int) -> dict[str, Step]:
    return _graph(workload, native, threads, on_gpu=True)


def _pipeline(batches: list[Any]) -> tuple[Any, Any]:
    """Returns the tensors of the next batch, and an op that starts the pipeline.

    Batches come from memory, as in a training loop whose pipeline is fast enough; feeding them
    would cost time in Python. No other thread is involved: there is no prefetching, and unlike
    `get_next`, the synchronous op reads the batch in its own thread.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    data = tf.data.experimental.from_list(batches).repeat().with_options(options)
    elements = tf.nest.flatten(data.element_spec)
    layout = {
        "output_types": [spec.dtype for spec in elements],
        "output_shapes": [spec.shape for spec in elements],
    }
    iterator = tf.raw_ops.IteratorV2(shared_name="batches", container="", **layout)
    start = tf.raw_ops.MakeIterator(
        dataset=tf.data.experimental.to_variant(data), iterator=iterator
    )
    return tf.raw_ops.IteratorGetNextSync(iterator=iterator, **layout), start


def _after(update: Any, number: Any) -> Any:
    with tf.control_dependencies([] if update is None else [update]):
        return number + 0.0


def number_after(activations: Any) -> Any:
    """Sums one element of the activations from each op that computes activations.

    Otherwise TensorFlow would skip the lookups as unused. The activations are not copied to the
    host. One native op computes all of them.
    """
    of_op = {_computed_by(value): value for value in activations.values()}
    return tf.add_n([value[0, 0] for value in of_op.values()])


def _computed_by(tensor: Any) -> Any:
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


_MODES = {
    "function": _function,
    "nest": _nest,
    "packed": _packed,
    "packed-on-gpu": _packed_on_gpu,
    "graph": _graph,
    "graph-on-gpu": _graph_on_gpu,
}


if __name__ == "__main__":
    main()

"""Measures the TPUEmbedding layer of tensorflow-recommenders on the CPU, with a Keras optimizer.

python -m benchmarks.peers.recommenders_child <workload> <sparse|ragged>
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from benchmarks.child import THREADS, serve
from benchmarks.workloads import BATCHES, Ids, batches, find


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    workload, kind = find(sys.argv[1]), sys.argv[2]
    print(f"tensorflow-recommenders {tfrs.__version__}, {kind} inputs", file=sys.stderr)
    config = {
        f"f{i}": tf.tpu.experimental.embedding.FeatureConfig(
            tf.tpu.experimental.embedding.TableConfig(
                workload.rows,
                workload.dim,
                initializer=tf.random_uniform_initializer(-0.5, 0.5),
                combiner="sum",
                name=f"t{i}",
            )
        )
        for i in range(workload.tables)
    }
    optimizer = tf.keras.optimizers.legacy.Adagrad(0.1)
    layer = tfrs.layers.embedding.TPUEmbedding(config, optimizer)
    of_tables = batches(workload)
    convert = {"sparse": as_sparse, "ragged": as_ragged}[kind]
    inputs = [
        {f"f{i}": convert(table[number]) for i, table in enumerate(of_tables)}
        for number in range(BATCHES)
    ]
    gradients = {
        f"f{i}": tf.fill([workload.batch, workload.dim], 0.01) for i in range(workload.tables)
    }

    @tf.function(autograph=False, reduce_retracing=True)
    def train(features: Any) -> None:
        with tf.GradientTape() as tape:
            outputs = layer(features)
        variables = layer.trainable_variables
        of_variables = tape.gradient(outputs, variables, output_gradients=gradients)
        optimizer.apply_gradients(zip(of_variables, variables))

    @tf.function(autograph=False, reduce_retracing=True)
    def infer(features: Any) -> Any:
        return layer(features)

    serve({"train": lambda i: train(inputs[i]), "infer": lambda i: infer(inputs[i])})


def as_sparse(batch: Ids) -> tf.SparseTensor:
    """Converts ids to a SparseTensor, [batch, size of the largest sample]."""
    return as_ragged(batch).to_sparse()


def as_ragged(batch: Ids) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(batch.ids, batch.splits, validate=False)


if __name__ == "__main__":
    main()

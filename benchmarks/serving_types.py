"""Compares exports with tables in small types and float32: `python -m benchmarks.serving_types`.

Prints the size of each export on disk, the largest error of its activations, and the CPU time of a
lookup in ms after TensorFlow has loaded the export. `--calls 0` skips the time.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

import tf2_engine
from benchmarks.workloads import Workload, batches
from tf2_engine import small_types
from tf2_engine.types import Array, Object, Tensor


def export(rows: Array, table_dtype: str, combiner: str, path: str) -> None:
    """Writes a SavedModel that looks up ragged ids in a table."""
    count, dim = rows.shape
    table = tf.tpu.experimental.embedding.TableConfig(count, dim, combiner=combiner, name="table")
    config = {"ids": tf.tpu.experimental.embedding.FeatureConfig(table)}
    module = tf.Module()
    module.table = tf2_engine.serving_table(rows, table_dtype, "table")
    ids = [tf.TensorSpec([None], tf.int64, "values"), tf.TensorSpec([None], tf.int64, "splits")]

    @tf.function(input_signature=ids)
    def serve(values: Tensor, splits: Tensor) -> dict[str, Tensor]:
        ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        tables = {"table": module.table}
        activations: dict[str, Tensor] = tf2_engine.cpu_embedding_lookup(
            {"ids": ragged}, None, tables, config
        )
        return activations

    tf.saved_model.save(module, path, signatures=serve)


def size_of(path: str) -> float:
    """Returns the size of all files of an export in megabytes."""
    return (
        sum(each.stat().st_size for each in pathlib.Path(path).rglob("*") if each.is_file()) / 1e6
    )


def time_calls(served: dict[str, Object], ids: dict[str, Tensor], calls: int) -> dict[str, float]:
    """Calls all exports in turn, and returns each one's median CPU time in ms."""
    taken: dict[str, list[float]] = {name: [] for name in served}
    for _ in range(calls):
        for name, signature in served.items():
            began = time.process_time()
            signature(**ids)
            taken[name].append(1e3 * (time.process_time() - began))
    return {name: statistics.median(times[len(times) // 10 :]) for name, times in taken.items()}


def main() -> None:
    """Prints one row for each type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--most_ids", type=int, default=39)
    parser.add_argument("--combiner", default="mean")
    parser.add_argument("--calls", type=int, default=100)
    args = parser.parse_args()
    # Initial and trained tables are roughly normal with standard deviation 1 / sqrt(dim).
    random = np.random.default_rng(0)
    rows = (random.standard_normal((args.rows, args.dim)) / args.dim**0.5).astype(np.float32)
    workload = Workload("serving", 1, args.rows, args.dim, args.batch, args.most_ids)
    batch = batches(workload)[0][0]
    ids = {"values": tf.constant(batch.ids), "splits": tf.constant(batch.splits)}
    served, sizes, results = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in small_types.TABLE_DTYPES:
            path = f"{folder}/{dtype}"
            export(rows, dtype, args.combiner, path)
            loaded = tf.saved_model.load(path)
            served[dtype] = loaded.signatures["serving_default"]
            sizes[dtype], results[dtype] = size_of(path), served[dtype](**ids)["ids"].numpy()
        times = time_calls(served, ids, args.calls) if args.calls else {}
    largest = np.abs(results["float32"]).max()
    print(
        f"activations up to {largest:.3f}, {args.combiner} of {len(batch.ids) / args.batch:.1f} ids"
    )
    for dtype in served:
        error = np.abs(results[dtype] - results["float32"]).max()
        line = f"{dtype:9s}{sizes[dtype]:9.1f} MB {sizes[dtype] / sizes['float32']:6.2f} x"
        line += f"   error {error:.1e} ({error / largest:.1e} of the largest)"
        if times:
            line += f"   {times[dtype]:7.2f} ms {times[dtype] / times['float32']:6.2f} x"
        print(line)


if __name__ == "__main__":
    main()

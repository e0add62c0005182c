"""Measures FBGEMM's split-table batched embedding bags with exact Adagrad, as used by TorchRec.

python -m benchmarks.peers.fbgemm_child <workload> [device: cpu|cuda]
"""

from __future__ import annotations

import sys

import fbgemm_gpu
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks.child import THREADS, serve
from benchmarks.peers.torch_child import device_name, finished
from benchmarks.workloads import BATCHES, batches, find


def main() -> None:
    torch.set_num_threads(THREADS)
    workload = find(sys.argv[1])
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    versions = f"fbgemm_gpu {fbgemm_gpu.__version__}, torch {torch.__version__}"
    print(f"{versions} on {device_name(device)}", file=sys.stderr)
    location, compute = {
        "cpu": (EmbeddingLocation.HOST, ComputeDevice.CPU),
        "cuda": (EmbeddingLocation.DEVICE, ComputeDevice.CUDA),
    }[device]
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(workload.rows, workload.dim, location, compute)] * workload.tables,
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=0.1,
    )
    tables.init_embedding_weights_uniform(-0.5, 0.5)
    of_tables = batches(workload)
    inputs = []
    for number in range(BATCHES):
        ids = [table[number].ids for table in of_tables]
        starts = np.cumsum([0, *(len(one) for one in ids)])
        splits = [table[number].splits[:-1] + start for table, start in zip(of_tables, starts)]
        offsets = np.concatenate([*splits, starts[-1:]])
        inputs.append(
            (
                torch.tensor(np.concatenate(ids), device=device),
                torch.tensor(offsets, device=device),
            )
        )
    gradient = torch.full((workload.batch, workload.tables * workload.dim), 0.01, device=device)

    def train(number: int) -> None:
        tables(*inputs[number]).backward(gradient)

    outputs = None  # kept until the next step, as in a program that uses them

    def infer(number: int) -> None:
        nonlocal outputs
        with torch.no_grad():
            outputs = tables(*inputs[number])

    serve({"train": finished(train, device), "infer": finished(infer, device)})


if __name__ == "__main__":
    main()

"""Measures torch's EmbeddingBag with sparse gradients and torch's Adagrad.

python -m benchmarks.peers.torch_child <workload> <outputs: kept|dropped> [device: cpu|cuda]

"kept" keeps the outputs of a lookup until the next step has its own, as in a program that uses
them. "dropped" drops each table's outputs before the next table is looked up. With a GPU, batches
are on it too, and a step ends when the GPU has finished.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.child import THREADS, Step, serve
from benchmarks.workloads import BATCHES, Workload, batches, find


def main() -> None:
    torch.set_num_threads(THREADS)
    workload = find(sys.argv[1])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    torch.set_default_device(device)
    print(f"torch {torch.__version__} on {device_name(device)}", file=sys.stderr)
    bags = [bag(workload) for _ in range(workload.tables)]
    optimizer = torch.optim.Adagrad([each.weight for each in bags], lr=0.1)
    of_tables = batches(workload)
    inputs = [
        [
            (torch.tensor(table[number].ids), torch.tensor(table[number].splits[:-1]))
            for table in of_tables
        ]
        for number in range(BATCHES)
    ]
    gradients = [torch.full((workload.batch, workload.dim), 0.01) for _ in bags]

    def train(number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        outputs = [each(*arguments) for each, arguments in zip(bags, inputs[number])]
        torch.autograd.backward(outputs, gradients)
        optimizer.step()

    outputs: list[torch.Tensor] = []

    def keep(number: int) -> None:
        nonlocal outputs
        with torch.no_grad():
            outputs = [each(*arguments) for each, arguments in zip(bags, inputs[number])]

    def drop(number: int) -> None:
        with torch.no_grad():
            for each, arguments in zip(bags, inputs[number]):
                each(*arguments)

    infer = {"kept": keep, "dropped": drop}[sys.argv[2]]
    serve({"train": finished(train, device), "infer": finished(infer, device)})


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def finished(step: Step, device: str) -> Step:
    """Makes a step on a GPU return only when the GPU has finished."""

    def run(number: int) -> None:
        step(number)
        torch.cuda.synchronize()

    return run if device == "cuda" else step


def bag(workload: Workload) -> torch.nn.EmbeddingBag:
    table = torch.nn.EmbeddingBag(workload.rows, workload.dim, mode="sum", sparse=True)
    torch.nn.init.uniform_(table.weight, -0.5, 0.5)
    return table


if __name__ == "__main__":
    main()

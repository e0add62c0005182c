"""torch: EmbeddingBag with sparse gradients, and its Adagrad.

python -m benchmarks.peers.torch_child <workload> <outputs: kept|dropped>

A lookup's outputs are kept until those of the next step have come, as a program keeps them which
looks at them; or each table's are dropped before the next table is looked up.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.child import THREADS, serve
from benchmarks.workloads import BATCHES, Workload, batches, find


def main() -> None:
    """Serves its standard input."""
    torch.set_num_threads(THREADS)
    workload = find(sys.argv[1])
    print(f"torch {torch.__version__}", file=sys.stderr)
    bags = [bag(workload) for _ in range(workload.tables)]
    optimizer = torch.optim.Adagrad([each.weight for each in bags], lr=0.1)
    of_tables = batches(workload)
    inputs = [
        [
            (torch.from_numpy(table[number].ids), torch.from_numpy(table[number].splits[:-1]))
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

    serve({"train": train, "infer": {"kept": keep, "dropped": drop}[sys.argv[2]]})


def bag(workload: Workload) -> torch.nn.EmbeddingBag:
    """Returns one table."""
    table = torch.nn.EmbeddingBag(workload.rows, workload.dim, mode="sum", sparse=True)
    torch.nn.init.uniform_(table.weight, -0.5, 0.5)
    return table


if __name__ == "__main__":
    main()

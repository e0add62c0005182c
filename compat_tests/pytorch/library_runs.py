"""Trains a table of a few rows with an optimizer of torch.optim, FBGEMM or optax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from estimator_bridge.settings.torch_rules import TorchRule, value_of

Array = Any


class Step(NamedTuple):
    """One step: the rows of the batch, their gradients, [rows, dim] float32, and the rate."""

    rows: Array
    gradients: Array
    rate: float


def run(
    library: str,
    rule: TorchRule,
    settings: Mapping[str, Any],
    w: Array,
    steps: Sequence[Step],
    *,
    sparse: bool = False,
) -> Array:
    """Returns the table after the steps, [rows, dim] float32; `w` is the table before them."""
    settings = {**settings, "learning_rate": steps[0].rate}
    arguments = {name: value_of(each, settings) for name, each in rule.arguments.items()}
    state = {name: value_of(each, settings) for name, each in rule.state.items()}
    return _RUNS[library](rule.name, arguments, state, w, steps, sparse)


def _of_torch(
    name: str,
    arguments: Mapping[str, Any],
    state: Mapping[str, Any],
    w: Array,
    steps: Sequence[Step],
    sparse: bool,
) -> Array:
    arguments = dict(arguments)
    betas = tuple(arguments.pop(f"betas[{number}]", None) for number in (0, 1))
    if betas[0] is not None:
        arguments["betas"] = betas
    table = torch.nn.Parameter(torch.tensor(w))
    optimizer = getattr(torch.optim, name)([table], **arguments)
    for key, value in state.items():
        zeros = {slot: torch.zeros_like(table) for slot in ("exp_avg", "exp_avg_sq")}
        optimizer.state[table].update({key: torch.tensor(float(value)), **zeros})
    for rows, gradients, rate in steps:
        optimizer.param_groups[0]["lr"] = rate
        # Every row occurs twice, with half of its gradient each time.
        twice = torch.tensor(np.concatenate([rows, rows]))
        halves = torch.tensor(np.concatenate([gradients, gradients]) / 2)
        table.grad = torch.sparse_coo_tensor(twice[None], halves, table.shape)
        if not sparse:
            table.grad = table.grad.to_dense()
        optimizer.step()
    return table.detach().numpy()


def _of_fbgemm(
    name: str,
    arguments: Mapping[str, Any],
    state: Mapping[str, Any],
    w: Array,
    steps: Sequence[Step],
    sparse: bool,
) -> Array:
    on_gpu = torch.cuda.is_available()
    place = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    device = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(*w.shape, place, device)],
        optimizer=EmbOptimType[name],
        pooling_mode=PoolingMode.SUM,
        **arguments,
    )
    where = tables.current_device
    tables.split_embedding_weights()[0].copy_(torch.tensor(w))
    for key, value in state.items():
        if key == "iter":
            tables.set_optimizer_step(int(value))
        else:
            tables.split_optimizer_states()[0][0].fill_(value)
    for rows, gradients, rate in steps:
        tables.set_learning_rate(rate)
        twice = np.concatenate([rows, rows])
        out = tables(
            indices=torch.tensor(twice, device=where),
            offsets=torch.arange(len(twice) + 1, device=where),
        )
        halves = np.concatenate([gradients, gradients]) / 2
        out.backward(torch.tensor(halves, device=where))
    return tables.split_embedding_weights()[0].detach().cpu().numpy()


def _of_optax(
    name: str,
    arguments: Mapping[str, Any],
    state: Mapping[str, Any],
    w: Array,
    steps: Sequence[Step],
    sparse: bool,
) -> Array:
    rates = jnp.asarray([step.rate for step in steps], jnp.float32)
    transformation = _transformation(name, {**arguments, "learning_rate": lambda n: rates[n]})
    table = jnp.asarray(w)
    held = transformation.init(table)
    averages = next((each for each in held if hasattr(each, "mu")), None)
    if state:
        new = {key: jnp.full_like(getattr(averages, key), value) for key, value in state.items()}
        held = tuple(each._replace(**new) if each is averages else each for each in held)
    for rows, gradients, _ in steps:
        dense = jnp.zeros_like(table).at[rows].add(gradients)
        updates, held = transformation.update(dense, held, table)
        table = optax.apply_updates(table, updates)
    return np.asarray(table)


def _transformation(name: str, arguments: Mapping[str, Any]) -> Any:
    names = name.split(" + ")
    if len(names) == 1:
        return getattr(optax, name)(**arguments)
    parts = []
    for each in (*names, "scale_by_learning_rate"):
        function = getattr(optax, each)
        known = inspect.signature(function).parameters
        parts.append(function(**{key: arguments[key] for key in arguments if key in known}))
    return optax.chain(*parts)


_RUNS: Mapping[str, Callable[..., Array]] = {
    "torch.optim": _of_torch,
    "FBGEMM": _of_fbgemm,
    "optax": _of_optax,
}


def steps_of(rows: int, dim: int, count: int, *, whole: bool, constant: bool) -> list[Step]:
    """Makes steps with gradients of 0.5 to 1.5, of either sign.

    Args:
        whole: whether every batch has every row; otherwise it has about half of them, and the last
            row is in the first two batches alone.
        constant: whether the rate stays the same.
    """
    random = np.random.default_rng(5)
    steps = []
    for number in range(count):
        of_batch = np.arange(rows)
        if not whole:
            others = np.flatnonzero(random.random(rows - 1) < 0.5)
            of_batch = np.array([*others, rows - 1] if number < 2 else [0, *others[others > 0]])
        shape = len(of_batch), dim
        gradients = random.uniform(0.5, 1.5, shape) * random.choice((-1.0, 1.0), shape)
        rate = 0.1 if constant else 0.1 / (1 + 0.05 * number)
        steps.append(Step(of_batch, gradients.astype(np.float32), rate))
    return steps

"""The statements in docs/torch.md about lookups, limits and decay in torch, FBGEMM and TorchRec."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType

pytestmark = pytest.mark.full

ROWS = np.array([[1.0] * 4, [2.0] * 4, [4.0] * 4], np.float32)


def _tables(mode: Any = PoolingMode.SUM, dim: int = 4, **options: Any) -> Any:
    made = SplitTableBatchedEmbeddingBagsCodegen(
        [(3, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=options.pop("optimizer", EmbOptimType.EXACT_SGD),
        pooling_mode=mode,
        **options,
    )
    made.split_embedding_weights()[0].copy_(torch.tensor(ROWS))
    return made


def _looked_up(tables: Any, ids: list[int], weights: list[float] | None = None) -> Any:
    return tables(
        indices=torch.tensor(ids),
        offsets=torch.tensor([0, len(ids)]),
        per_sample_weights=None if weights is None else torch.tensor(weights),
    )


def test_defaults_of_combiners() -> None:
    """nn.EmbeddingBag takes the mean and TorchRec the sum; neither knows sqrtn."""
    assert torch.nn.EmbeddingBag(3, 4).mode == "mean"
    assert EmbeddingBagConfig(num_embeddings=3, embedding_dim=4).pooling == PoolingType.SUM
    assert {each.name for each in PoolingType} == {"SUM", "MEAN", "NONE"}
    with pytest.raises(ValueError, match="mode has to be one of sum, mean or max"):
        torch.nn.EmbeddingBag(3, 4, mode="sqrtn")(torch.tensor([[0]]))


def test_weights_need_a_sum() -> None:
    """nn.EmbeddingBag refuses weights of a mean; FBGEMM divides by the number of ids."""
    with pytest.raises(NotImplementedError, match="only supported for mode='sum'"):
        torch.nn.EmbeddingBag(3, 4, mode="mean")(
            torch.tensor([[0]]), per_sample_weights=torch.ones(1, 1)
        )
    mean = _looked_up(_tables(PoolingMode.MEAN), [0, 2], [0.5, 2.0])
    np.testing.assert_array_equal(mean.detach(), [[(0.5 * 1 + 2.0 * 4) / 2] * 4])


def test_ids_out_of_range() -> None:
    """nn.EmbeddingBag raises an error; FBGEMM looks up row 0."""
    with pytest.raises(RuntimeError, match="not in the valid range"):
        torch.nn.EmbeddingBag(3, 4)(torch.tensor([[7]]))
    np.testing.assert_array_equal(_looked_up(_tables(), [99]).detach(), ROWS[:1])


def test_a_dimension_is_a_multiple_of_four() -> None:
    """FBGEMM refuses other dimensions."""
    with pytest.raises(AssertionError, match="multiple of 4"):
        _tables(dim=6)


def test_limits_of_gradients_come_before_the_sum() -> None:
    """Two gradients of 4 with a limit of 3 are 6, where a TPU limits their sum to 3."""
    tables = _tables(gradient_clipping=True, max_gradient=3.0, learning_rate=1.0)
    out = tables(indices=torch.tensor([1, 1]), offsets=torch.tensor([0, 1, 2]))
    out.backward(torch.full([2, 4], 4.0))

    np.testing.assert_array_equal(tables.split_embedding_weights()[0][1], ROWS[1] - 6.0)


def test_torch_adds_decay_to_the_gradient() -> None:
    """With decay 0.5, the accumulator of a row 2 with gradient 1 is 0 + (1 + 0.5 * 2)^2."""
    table = torch.nn.Parameter(torch.tensor(ROWS))
    optimizer = torch.optim.Adagrad([table], lr=1.0, weight_decay=0.5)
    table.grad = torch.ones_like(table)
    optimizer.step()

    np.testing.assert_array_equal(optimizer.state[table]["sum"][1], [4.0] * 4)


@pytest.mark.parametrize("mode", ["NONE", "L2", "DECOUPLE"])
@pytest.mark.parametrize("name", ["EXACT_SGD", "EXACT_ADAGRAD"])
def test_fbgemm_ignores_decay(name: str, mode: str) -> None:
    """A row 2 with gradient 1 and rate 0.25 becomes 1.75, with and without decay."""
    tables = _tables(
        optimizer=EmbOptimType[name],
        weight_decay=0.5,
        weight_decay_mode=WeightDecayMode[mode],
        learning_rate=0.25,
        eps=0.0,
    )
    _looked_up(tables, [1]).backward(torch.ones(1, 4))

    np.testing.assert_array_equal(tables.split_embedding_weights()[0][1], [1.75] * 4)


def test_adamw_multiplies_the_decay_by_the_rate_and_lets_all_rows_decay() -> None:
    """A row without a gradient becomes w * (1 - lr * decay)."""
    table = torch.nn.Parameter(torch.tensor(ROWS))
    optimizer = torch.optim.AdamW([table], lr=0.5, weight_decay=0.5)
    table.grad = torch.zeros_like(table)
    optimizer.step()

    np.testing.assert_array_equal(table.detach(), ROWS * 0.75)


def test_bounds_are_checked_with_a_warning() -> None:
    """The default mode of the check of bounds is that which warns."""
    default = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen).parameters
    assert default["bounds_check_mode"].default.name == "WARNING"

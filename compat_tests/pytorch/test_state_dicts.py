"""Converted checkpoints in TorchRec and back have TorchRec's own keys and numbers."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as distributed
import torch.distributed.checkpoint as distributed_checkpoint
from safetensors.numpy import load_file, save_file
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compat_tests.support.conversions import (
    OTHERS,
    assert_same,
    convert_and_read,
    old_checkpoint,
    spec_of,
)
from estimator_bridge import convert

pytestmark = pytest.mark.full

ROWS = {"users": 13, "few": 3}


def _converted(tmp_path: pathlib.Path, optimizer: str = "Adagrad", **options: Any) -> Any:
    """Converts a checkpoint of mod on five hosts; returns its tables and the new directory."""
    old, values = old_checkpoint(tmp_path, optimizer, hosts=5, strategy="mod")
    new = tmp_path / "new"
    spec = spec_of(optimizer, "dict", "mod")
    convert.convert(old, str(new), spec=spec, to="torch", **options)
    return values, new


def _load(path: pathlib.Path) -> Any:
    return torch.load(path, mmap=True, weights_only=True)


def _configs() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=rows, feature_names=[name])
        for name, rows in ROWS.items()
    ]


def _fused() -> Any:
    return FusedEmbeddingBagCollection(
        tables=_configs(),
        optimizer_type=torch.optim.Adagrad,
        optimizer_kwargs={"lr": 0.1, "eps": 0.0},
    )


@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "Ftrl"])
def test_the_state_dict_holds_what_the_safetensors_files_hold(
    optimizer: str, tmp_path: pathlib.Path
) -> None:
    """The library safetensors and torch.load read the same numbers, and both go back."""
    values, new = _converted(tmp_path, optimizer)

    saved = _load(new / "checkpoint.pt")
    files = {
        name: load_file(new / f"{name}.safetensors") for name in ("model", "optimizer", "variables")
    }
    states = {
        f"state.{parameter}.{name}": value
        for parameter, of_parameter in saved["optimizer"]["state"].items()
        for name, value in of_parameter.items()
    }
    for name, held in (("model", saved["model"]), ("variables", saved["variables"])):
        assert_same(files[name], {key: value.numpy() for key, value in held.items()})
    assert_same(files["optimizer"], {key: value.numpy() for key, value in states.items()})

    spec = spec_of(optimizer, "dict", "mod")
    for name, source in (("files", new), ("pt", new / "checkpoint.pt")):
        back = tmp_path / f"back from {name}"
        stored = convert_and_read(source, back, spec=spec, from_form="torch")
        assert_same({**values, **OTHERS}, stored)


def test_torchrec_goes_on_from_a_converted_checkpoint(tmp_path: pathlib.Path) -> None:
    """An unsharded module loads the tables and slots, trains a step and goes back."""
    values, new = _converted(tmp_path)
    saved, module = _load(new / "checkpoint.pt"), _fused()
    module.load_state_dict(saved["model"])
    slots = module.fused_optimizer().state_dict()["state"]
    for name in ROWS:
        state = saved["optimizer"]["state"][f"embedding_bags.{name}.weight"]
        slots[f"{name}.weight"][f"{name}.weight.momentum_1"].copy_(state[f"{name}.momentum1"])

    features = KeyedJaggedTensor.from_lengths_sync(
        keys=list(ROWS), values=torch.tensor([1, 5, 2, 0]), lengths=torch.tensor([1, 1, 2, 0])
    )
    module(features).values().backward(torch.ones(2, 8))

    want = copy.deepcopy(values)
    for name, rows in (("users", [1, 5]), ("few", [2, 0])):
        # All gradients are 1: ids 2 and 0 of "few" are one sample, whose rows are added.
        accumulator = want[f"{name}/Adagrad"]
        accumulator[rows] += np.float32(1.0)
        want[name][rows] -= np.float32(0.1) / np.sqrt(accumulator[rows])
    torch.save(
        {"model": module.state_dict(), "optimizer": {"state": slots}}, tmp_path / "trained.pt"
    )
    got = convert_and_read(
        tmp_path / "trained.pt", tmp_path / "back", spec=spec_of(), global_step=78
    )
    assert got.pop("global_step") == 78
    assert set(got) == set(want)
    for name, value in want.items():
        # A root, a division, a product and a difference, which round by 2^-24 each.
        np.testing.assert_allclose(got[name], value, rtol=4 * 2.0**-24, err_msg=name)


@pytest.fixture
def one_process(tmp_path: pathlib.Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class _RowWise(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused"]


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=_configs(), device=torch.device("meta"))
        apply_optimizer_in_backward(
            torch.optim.Adagrad, self.bags.parameters(), {"lr": 0.1, "eps": 0.0}
        )


def test_a_sharded_model_loads_a_converted_checkpoint(
    one_process: None, tmp_path: pathlib.Path
) -> None:
    """The keys are those of DistributedModelParallel, which loads tables and slots by them."""
    values, new = _converted(tmp_path, root="bags")
    plan = EmbeddingShardingPlanner(
        topology=Topology(world_size=1, compute_device="cpu")
    ).collective_plan(_Model(), [_RowWise()], distributed.GroupMember.WORLD)
    model = DistributedModelParallel(
        _Model(), device=torch.device("cpu"), plan=plan, sharders=[_RowWise()]
    )
    state = {"model": model.state_dict(), "optimizer": model.fused_optimizer.state_dict()}
    saved = _load(new / "checkpoint.pt")
    assert saved["model"].keys() == state["model"].keys()
    assert {key: set(value) for key, value in saved["optimizer"]["state"].items()} == {
        key: set(value) for key, value in state["optimizer"]["state"].items()
    }

    torch_save_to_dcp(str(new / "checkpoint.pt"), str(tmp_path / "dcp"))
    distributed_checkpoint.load(state, checkpoint_id=str(tmp_path / "dcp"))
    model.load_state_dict(state["model"])
    model.fused_optimizer.load_state_dict(state["optimizer"])

    for name in ROWS:
        key = f"bags.embedding_bags.{name}.weight"
        weight = model.state_dict()[key].local_shards()[0].tensor
        of_key = model.fused_optimizer.state_dict()["state"][key]
        slot = of_key[f"{name}.momentum1"].local_shards()[0].tensor
        np.testing.assert_array_equal(weight.detach().numpy(), values[name])
        np.testing.assert_array_equal(slot.numpy(), values[f"{name}/Adagrad"])


def test_files_of_the_library_are_read(tmp_path: pathlib.Path) -> None:
    """A model that `safetensors` saved becomes a checkpoint."""
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = str(tmp_path / "model.safetensors")
    save_file({"embedding_bags.few.weight": table, "kernel": table.T.copy()}, path)

    stored = convert_and_read(path, tmp_path / "back", global_step=1, tables={"few": "few"})
    assert_same({"few": table, "kernel": table.T, "global_step": np.int64(1)}, stored)

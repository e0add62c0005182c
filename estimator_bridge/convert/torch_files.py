"""Reads and writes the files of PyTorch programs: safetensors, and state dicts of `torch.save`.

A state dict has "model", "optimizer" and "variables". A tensor named `state.<parameter>.<name>` is
the state that the optimizer keeps for a parameter.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, StoredTensor, bundle_protos
from estimator_bridge.checkpoint_files.bundle import naming
from estimator_bridge.checkpoint_files.safetensors_files import SafetensorsReader
from estimator_bridge.checkpoint_files.stored_tensor import StoredSlice
from tf2_engine.types import Object

MODEL, OPTIMIZER, VARIABLES = FILES = tuple(
    f"{name}.safetensors" for name in ("model", "optimizer", "variables")
)
"""The names of the three files in a directory: tables, their slots, and everything else."""

STATE_DICT = "checkpoint.pt"
STATE = "state."
"""The prefix of the names of optimizer states."""

_ENDS = (".pt", ".pth", ".bin")


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def is_of_torch(path: str) -> bool:
    if os.path.isdir(path):
        names = set(os.listdir(path))
        return "checkpoint" not in names and not names.isdisjoint((*FILES, STATE_DICT))
    return path.endswith((".safetensors", *_ENDS))


def open_files(path: str) -> SafetensorsReader | StateDictReader:
    paths = [path]
    if os.path.isdir(path):
        names = [name for name in (*FILES, STATE_DICT) if os.path.exists(os.path.join(path, name))]
        if not names:
            raise errors.UnreadableCheckpoint(
                f"{path}: the directory has neither {STATE_DICT} nor one of {', '.join(FILES)}. "
                "Give the path of a file."
            )
        paths = [os.path.join(path, name) for name in names if name in FILES or len(names) == 1]
    if paths[0].endswith(_ENDS):
        return StateDictReader(paths[0])
    return SafetensorsReader(path, paths)


class StateDictReader(Reader):
    """Maps a file of `torch.save` into memory and reads it like a checkpoint. Executes nothing.

    The file contains a dict with "model" and optionally "optimizer" and "variables", or the state
    dict of a model.
    """

    def __init__(self, path: str) -> None:
        self.prefix, self._files = path, {}
        self.metadata: dict[str, str] = {}
        if not has_torch():
            raise errors.InvalidInput(
                f"{path} was written by `torch.save`, and PyTorch is not installed. Install torch, "
                "or save the tensors with safetensors.torch.save_file."
            )
        import torch

        try:
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch raises many types, from OSError to UnpicklingError
            raise errors.UnreadableCheckpoint(f"{path}: torch cannot load it: {error}") from error
        if not isinstance(content, dict):
            raise errors.UnreadableCheckpoint(f"{path}: it contains {type(content)}, not a dict.")
        self._bytes: dict[str, Object] = {}
        self.tensors = {}
        for name, value in flat(content).items():
            if isinstance(value, torch.Tensor):
                whole = value.detach().contiguous().reshape(-1)
                self._bytes[name] = whole.view(torch.uint8).numpy()
                self.tensors[name] = self._described(name, value)

    @property
    def files(self) -> list[str]:
        return [self.prefix]

    def verify(self, tensor: StoredTensor) -> None:
        """Does nothing, because torch has already checked the file."""

    def _described(self, name: str, value: Object) -> StoredTensor:
        dtype = str(value.dtype).removeprefix("torch.")
        known = next((each for each in bundle_protos.TYPES.values() if each.name == dtype), None)
        if known is None:
            raise errors.InvalidInput(
                f"{self.prefix}: {name!r} has the type {dtype}, which TensorFlow lacks. Save it as "
                "another type, or leave it out."
            )
        shape = tuple(value.shape)
        extents = tuple((0, length) for length in shape)
        piece = StoredSlice(extents, name, 0, len(self._bytes[name]), None)
        return StoredTensor(name, known, shape, (piece,), False)

    def _read(self, path: str, offset: int, size: int) -> bytes:
        data: bytes = self._bytes[path][offset : offset + size].tobytes()
        return data


def flat(content: Mapping[str, Object]) -> dict[str, Object]:
    if not isinstance(content.get("model"), dict):
        return dict(content)
    optimizer = content.get("optimizer", {})
    states = {
        f"{STATE}{parameter}.{name}": value
        for parameter, of_parameter in optimizer.get("state", {}).items()
        for name, value in of_parameter.items()
    }
    return {**content["model"], **states, **content.get("variables", {})}


def save_state_dict(folder: str, parameters: Mapping[str, str]) -> None:
    """Writes the safetensors files of a directory as one state dict, and compares the two.

    `parameters` maps the name of each state to its parameter.
    """
    import torch

    path = os.path.join(folder, STATE_DICT)
    with open_files(folder) as reader:
        model, states, variables = (
            {
                name: _mapped(tensor)
                for name, tensor in reader.tensors.items()
                if tensor.slices[0].file.endswith(file)
            }
            for file in FILES
        )
        state: dict[str, dict[str, Object]] = {}
        for name, value in states.items():
            parameter = parameters[name]
            short = name.removeprefix(f"{STATE}{parameter}.")
            state.setdefault(parameter, {})[short] = value
        with naming(path):
            torch.save(
                {"model": model, "optimizer": {"state": state}, "variables": variables}, path
            )
        _compare(reader, path)


def _mapped(tensor: StoredTensor) -> Object:
    import torch

    piece, dtype = tensor.slices[0], getattr(torch, tensor.dtype.name)
    if not piece.size:
        return torch.empty(tensor.shape, dtype=dtype)
    # Mode "c" is copy-on-write: torch has no read-only tensors.
    memory = np.memmap(piece.file, np.uint8, "c", piece.offset, (piece.size,))
    return torch.from_numpy(memory).view(dtype).reshape(tensor.shape)


def _compare(reader: Reader, path: str) -> None:
    written = StateDictReader(path)
    for name, tensor in reader.tensors.items():
        copy = written.tensors[name]
        chunks = zip(reader.chunks(tensor.slices[0]), written.chunks(copy.slices[0]), strict=True)
        same = (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
        if not same or any(a != b for a, b in chunks):
            raise errors.CannotWrite(
                f"{path}: {name!r} differs from what was written. Check the disk."
            )

"""Files of PyTorch with the keys of TorchRec: `EmbeddingBagCollection` and its fused optimizer.

    embedding_bags.<table>.weight                          the parameters
    state.embedding_bags.<table>.weight.<table>.momentum1  the first slot
    state.embedding_bags.<table>.weight.<table>.exp_avg_sq the second slot of Adam

Reference: torchrec/modules/embedding_modules.py, `EmbeddingFusedOptimizer` in
torchrec/distributed/batched_embedding_kernel.py and `get_optimizer_state` in
fbgemm_gpu/split_table_batched_embeddings_ops_training.py, all of TorchRec 1.9 and FBGEMM 1.8.
The prefix `state.` and the dots are those of `flatten_optimizer_state_dict` in
torch/distributed/checkpoint/state_dict.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, StoredTensor, Writer, bundle, bundle_protos
from estimator_bridge.checkpoint_files.bundle import naming
from estimator_bridge.checkpoint_files.safetensors_files import (
    TYPES,
    Described,
    SafetensorsReader,
    SafetensorsWriter,
)
from estimator_bridge.checkpoint_files.stored_tensor import StoredSlice
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert.formats import checkpoint_format as common
from estimator_bridge.convert.formats import object_format
from estimator_bridge.convert.formats.checkpoint_format import Contents, Gap, Moves, StoredTable
from estimator_bridge.convert.moves import JoinedMove, TensorMove
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine.sharding import PARAMETERS
from tf2_engine.types import Object

MODEL, OPTIMIZER, VARIABLES = FILES = tuple(
    f"{name}.safetensors" for name in ("model", "optimizer", "variables")
)
"""The names of the three files in a directory: tables, their slots, and everything else."""

STATE_DICT = "checkpoint.pt"
STATE = "state."

_ENDS = (".pt", ".pth", ".bin")
STATES: Mapping[str, Mapping[str, str]] = {
    "AdagradParameters": {"accumulators": "momentum1"},
    "ProximalAdagradParameters": {"accumulators": "momentum1"},
    "AdamParameters": {"momenta": "momentum1", "velocities": "exp_avg_sq"},
}
"""TorchRec's names of slots. Slots of optimizers that FBGEMM lacks keep the engine's names."""
# Their names in an unsharded FusedEmbeddingBagCollection, in FBGEMM and in torch.optim.
_ALIASES = {
    **dict.fromkeys(("momentum_1", "sum", "exp_avg"), "momentum1"),
    **dict.fromkeys(("momentum_2", "momentum2"), "exp_avg_sq"),
}
_TABLE = re.compile(r"(?:^|\.)embedding_bags\.([^.]+)\.weight$")
_METADATA = "estimator_bridge.tables"
_AXES = (
    "variables keep TensorFlow's names and axes: a Dense kernel is [in, out], but the weight of "
    "torch.nn.Linear is [out, in], so load the transpose"
)
_NO_TORCH = (
    f"{STATE_DICT} is not written, because PyTorch is not installed here; the "
    "safetensors files hold the same tensors"
)


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
    """Reads a file that `torch.save` wrote like a checkpoint, mapped into memory.

    The file has a dict with "model", "optimizer" and "variables", or a model's state dict. No code
    from the file is executed.
    """

    def __init__(self, path: str) -> None:
        self.prefix, self._files = path, {}
        self.metadata: dict[str, str] = {}
        if not has_torch():
            raise errors.InvalidInput(
                f"{path} was written by `torch.save`, but PyTorch is not installed. Install torch, "
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
    """Writes the tensors of a directory's safetensors files as one state dict.

    `parameters` maps the key of each optimizer state to the key of the parameters.
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


class TorchFormat(common.Format):
    """The format of PyTorch programs."""

    form = "torch"
    converts_to = "names"
    rows_read = "in files of PyTorch rows are in the order of the ids"
    rows_written = (
        "for PyTorch, tables are written whole, and TorchRec shards them when it loads them"
    )

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        keys = {options.rename.get(key, key): key for key in reader.tensors}
        in_file = () if options.no_tables else _tables(reader, keys, options, strict)
        tables, gaps = common.split_gaps(in_file)
        parts = common.part_names(tables) | {gap.name for gap in gaps}
        others: dict[str, str | None] = {}
        for name, key in keys.items():
            if key not in parts and key.startswith(STATE):
                gaps.append(Gap(key, "it is the state of an optimizer, but not a slot of a table"))
            elif key not in parts:
                others[key] = name
        return Contents(reader, self.form, tables, others, gaps)

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> common.CheckpointTarget:
        if like is not None:
            raise errors.InvalidInput(
                f"`like`: {like.prefix} cannot be used, as files for PyTorch need no template. "
                "Give the path of the module with `root`, or other keys with `rename`."
            )
        return TorchTarget(options)


class TorchTarget(common.CheckpointTarget):
    """New files of PyTorch: tables, slots, variables, and a state dict of them all."""

    basename = "model"

    def __init__(self, options: ConversionOptions) -> None:
        self._options = options
        self._parameters: dict[str, str] = {}  # keyed by the key of a state
        self._tables: dict[str, dict[str, str | None]] = {}  # keyed by the key of the parameters
        self.notes: list[str] = [_AXES, *([] if has_torch() else [_NO_TORCH])]

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        for table in tables:
            name = table.known.name
            if "." in name:
                raise errors.InvalidInput(
                    f"Table {name!r}: TorchRec keeps tables in a ModuleDict, which allows no dot "
                    "in a name. Leave the spec out, and give the table another name with --table "
                    f"NAME={table.variable or name}."
                )
            key = _key(self._options, name)
            key = self._options.rename.get(key, key)
            states = STATES.get(table.kind, {})
            places = {slot: f"{STATE}{key}.{name}.{states.get(slot, slot)}" for slot in table.slots}
            if table.slots and not states:
                self.notes.append(_other_slots(table))
            self._parameters.update(dict.fromkeys(places.values(), key))
            self._tables[key] = {
                "name": name,
                "optimizer": table.kind,
                "variable": table.variable,
            }
            yield from common.row_moves(table, {PARAMETERS: key, **places})

    def variable(self, tensor: StoredTensor, name: str | None, full_name: str | None) -> Moves:
        name = name or full_name or tensor.name
        if name == common.GLOBAL_STEP and self._options.global_step is not None:
            return
        if tensor.dtype.name not in TYPES:
            yield Gap(tensor.name, f"safetensors files have no type {tensor.dtype.name}")
        elif tensor.shape and tensor.part_rows is None:
            reason = "its slices are not blocks of rows; save it without a partitioner"
            yield Gap(tensor.name, reason)
        else:
            target = self._options.rename.get(name, name)
            yield JoinedMove(target, "variable", tensor.shape, tensor)

    def writer(
        self, prefix: str, moves: Sequence[TensorMove], wrote: Callable[[int], None]
    ) -> Writer:
        files: dict[str, dict[str, Described]] = {name: {} for name in FILES}
        for move in moves:
            files[self._file_of(move.target)][move.target] = Described(move.dtype, move.shape)
        if self._options.global_step is not None:
            files[VARIABLES][common.GLOBAL_STEP] = Described(bundle_protos.type_of(np.int64), ())
        folder = os.path.dirname(prefix)
        paths = {os.path.join(folder, name): tensors for name, tensors in files.items()}
        return SafetensorsWriter(paths, {_METADATA: json.dumps(self._tables)}, wrote)

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        if self._options.global_step is not None:
            writer.value(common.GLOBAL_STEP, np.int64(self._options.global_step))

    def reader(self, prefix: str) -> Reader:
        return open_files(os.path.dirname(prefix))

    def complete(self, prefix: str, lines: Sequence[str]) -> None:
        folder = os.path.dirname(prefix)
        report = "\n".join([*lines, ""]).encode()
        bundle.write_durably(os.path.join(folder, "report.txt"), report)
        if has_torch():
            save_state_dict(folder, self._parameters)

    def _file_of(self, key: str) -> str:
        if key in self._tables:
            return MODEL
        return OPTIMIZER if key in self._parameters else VARIABLES


def _other_slots(table: StoredTable) -> str:
    kind = table.kind.removesuffix("Parameters")
    return (
        f"table {table.known.name!r}: FBGEMM has no {kind}, so the slots keep their names; "
        "docs/torch.md has the rule for PyTorch"
    )


def _key(options: ConversionOptions, table: str) -> str:
    return f"{options.root}." * bool(options.root) + f"embedding_bags.{table}.weight"


def _tables(
    reader: Reader, keys: Mapping[str, str], options: ConversionOptions, strict: bool
) -> Iterator[StoredTable | Gap]:
    assert isinstance(reader, (SafetensorsReader, StateDictReader))
    remembered = json.loads(reader.metadata.get(_METADATA, "{}"))
    found = _names_of_tables(keys, options.root)
    recognised = [
        KnownTable(table, own_name=remembered.get(keys[name], {}).get("variable"))
        for table, name in found.items()
    ]
    for known in common.known_tables(options) or recognised:
        name = found.get(known.name)
        if name is None:
            reason = f"table {known.name!r} has no such tensor; the tables are {sorted(found)}"
            yield Gap(_key(options, known.name), reason)
            continue
        key = keys[name]
        states, unusable = _states(reader, keys, known.name, name)
        yield from unusable
        of_writer = remembered.get(key, {})
        kind = common.known_kind(known, options) or of_writer.get("optimizer")
        kind = kind or _kind(known.name, set(states), strict)
        places = {}
        for slot in OPTIMIZERS[kind].slots:
            state = STATES.get(kind, {}).get(slot, slot)
            # A slot without a state gets the name of a tensor that does not exist.
            start = f"{STATE}{key}.{known.name}."
            missing = slot if start + state in reader.tensors else state
            places[slot] = states.pop(state, start + missing)
        for rest in states.values():
            yield Gap(
                rest,
                f"it belongs to table {known.name!r}, but is not a slot of the table's optimizer",
            )
        yield from common.stored_table(reader, known, kind, {PARAMETERS: key, **places})


def _names_of_tables(keys: Iterable[str], root: str | None) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in keys:
        match = _TABLE.search(name)
        path = name[: match.start()] if match else None
        if match is None or root not in (None, path) or name.startswith(STATE):
            continue
        if match[1] in names:
            raise errors.InvalidInput(
                f"Table {match[1]!r}: both {names[match[1]]!r} and {name!r} may hold the table. "
                "Give the path of the module that holds `embedding_bags` (`root`)."
            )
        names[match[1]] = name
    return names


def _states(
    reader: Reader, keys: Mapping[str, str], table: str, name: str
) -> tuple[dict[str, str], list[Gap]]:
    states, unusable = {}, []
    shape = reader.tensors[keys[name]].shape
    # The fused optimizer of an unsharded module has no path before the table.
    parameters = dict.fromkeys((name, keys[name], f"{table}.weight"))
    for start in (f"{STATE}{each}." for each in parameters):
        for each in keys:
            if not each.startswith(start):
                continue
            short = each.removeprefix(start).removeprefix(f"{table}.").removeprefix("weight.")
            key = keys[each]
            if reader.tensors[key].shape == shape:
                states[_ALIASES.get(short, short)] = key
            else:
                unusable.append(Gap(key, _why_unusable(table, reader.tensors[key], shape)))
    return states, unusable


def _why_unusable(table: str, tensor: StoredTensor, shape: tuple[int, ...]) -> str:
    if tensor.shape == shape[:1]:
        return (
            f"table {table!r}: it has one number per row, as row-wise optimizers of FBGEMM have; "
            "TensorFlow has no such optimizer"
        )
    return f"table {table!r}: it is {tensor}, but slots of this table are {list(shape)}"


def _kind(table: str, states: set[str], strict: bool) -> str:
    for kind in ("AdamParameters", "AdagradParameters"):
        if states == set(STATES[kind].values()):
            return kind
    return object_format.kind_with_slots(table, states, OPTIMIZERS, strict)

"""Untrusted files: no code in them is run, and none expands to more than it contains."""

from __future__ import annotations

import ast
import os
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import estimator_bridge
import tf2_engine
from compat_tests.support import legacy_checkpoints
from estimator_bridge import convert, errors
from estimator_bridge.checkpoint_files import (
    Reader,
    bundle_protos,
    index_file,
    object_graph,
)
from estimator_bridge.checkpoint_files.index_file import crc32c, mask
from estimator_bridge.cli import main
from estimator_bridge.recording.files import read_arrays
from estimator_bridge.runtime.saving import checkpoint_state

PACKAGES = [pathlib.Path(str(p.__file__)).parent for p in (estimator_bridge, tf2_engine)]
RUN_WHAT_THEY_READ = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "joblib"}


def test_no_module_reads_what_can_run() -> None:
    """The packages import no format whose files are programs, and evaluate no text."""
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            named: set[str] = set()
            if isinstance(node, ast.Import):
                named = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            elif isinstance(node, ast.keyword):
                assert node.arg != "allow_pickle", path
            assert not named & RUN_WHAT_THEY_READ, f"{path}:{node.lineno}"


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.path,)


def test_arrays_that_would_run_are_refused(tmp_path: pathlib.Path) -> None:
    """A recording of `verify` with a pickled object is refused, and the object is not made."""
    mark = tmp_path / "it ran"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()
    mark.unlink()
    np.savez(tmp_path / "step.npz", **{"=a": np.array([Bomb(mark)], object)})

    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(tmp_path / "step.npz")

    assert not mark.exists()


def entry(shape: list[int], size: int, **fields: Any) -> Any:
    proto = bundle_protos.BundleEntry(dtype=1, size=size, **fields)
    proto.shape.MergeFromString(tf.TensorShape(shape).as_proto().SerializeToString())
    return proto


def part_of(start: int, length: int) -> Any:
    """Returns the entry of a tensor of one slice, which has no entry of its own."""
    proto = entry([10], 0)
    proto.slices.add().extent.add(start=start, length=length)
    return proto


def shape_of(*sizes: int) -> Any:
    """Returns an entry with a shape that TensorFlow would not make."""
    proto = entry([1], 4)
    del proto.shape.dim[:]
    for size in sizes:
        proto.shape.dim.add(size=size)
    return proto


def overflowing() -> Any:
    """Returns an entry whose bytes are 2 ** 64, which are 0 of 64 bits."""
    proto = shape_of(1 << 60, 4)
    proto.size = 0
    return proto


HOSTILE: dict[str, Any] = {
    "more elements than bytes": entry([1 << 40, 1 << 20], 4),
    "more bytes than the file": entry([1 << 40], 1 << 42),
    "a negative size": entry([1], -4),
    "a negative offset": entry([1], 4, offset=-4),
    "a file that is none": entry([1], 4, shard_id=7),
    "a slice outside": part_of(1 << 40, 5),
    "a slice without an entry": part_of(0, 5),
    "a negative slice": part_of(-5, 5),
    "2 ** 60 bytes": entry([1 << 58], 1 << 60),
    "a product that overflows": overflowing(),
    "a negative dimension": shape_of(-1),
    "two negative dimensions": shape_of(-1, -1),
    "a hundred dimensions of two": shape_of(*[2] * 100),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_shapes_are_held_against_the_files_first(
    what: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index that claims what no file holds is refused, by commands without a traceback."""
    prefix = index(tmp_path, {b"a": HOSTILE[what]})

    with pytest.raises(errors.UnreadableCheckpoint, match=r"ckpt\.(index|data)"):
        Reader(prefix)
    for command in (["inspect", prefix], ["convert", prefix, str(tmp_path / "new")]):
        assert main.main(command) == 2
        assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def write_index(prefix: str, entries: dict[bytes, Any]) -> None:
    data = index_file.build({key: value.SerializeToString() for key, value in entries.items()})
    pathlib.Path(f"{prefix}.index").write_bytes(data)


def index(
    directory: pathlib.Path, entries: dict[bytes, Any], shards: int = 1, data: bytes = bytes(100)
) -> str:
    """Writes an index, and a data file; returns the path of the checkpoint."""
    prefix = str(directory / "ckpt")
    write_index(prefix, {b"": bundle_protos.BundleHeader(num_shards=shards), **entries})
    pathlib.Path(f"{prefix}.data-00000-of-{shards:05d}").write_bytes(data)
    return prefix


def test_strings_that_claim_too_much_are_refused(tmp_path: pathlib.Path) -> None:
    """Lengths of strings that their tensor cannot hold are refused."""
    proto = entry([2], 20)
    proto.dtype = bundle_protos.STRING.number
    data = index_file.put_varint(1 << 60) + b"\0" * 20
    with (
        Reader(index(tmp_path, {b"a": proto}, data=data)) as reader,
        pytest.raises(errors.UnreadableCheckpoint, match="'a'"),
    ):
        reader.verify(reader.tensors["a"])


def test_few_bytes_do_not_stand_for_many_tensors(tmp_path: pathlib.Path) -> None:
    """Tensors that share their bytes are refused: a conversion would write each of them."""
    many = {f"t{number}".encode(): entry([25], 100) for number in range(1000)}

    with pytest.raises(errors.UnreadableCheckpoint, match="larger than all its files together"):
        Reader(index(tmp_path, many))


def test_the_number_of_files_is_not_taken_on_trust(tmp_path: pathlib.Path) -> None:
    """If an index claims two billion files, only those that hold something are looked at."""
    prefix = index(tmp_path, {b"a": entry([25], 100)}, shards=(1 << 31) - 1)

    report = convert.inspect(prefix)

    assert report["bytes"] == 100 + os.path.getsize(f"{prefix}.index")


@pytest.mark.parametrize("what", ["a pipe", "a device", "a directory"])
def test_what_is_no_file_is_not_read(what: str, tmp_path: pathlib.Path) -> None:
    """An index that never ends, or is waited for, is refused."""
    path = tmp_path / "ckpt.index"
    {
        "a pipe": lambda: os.mkfifo(path),
        "a device": lambda: path.symlink_to("/dev/zero"),
        "a directory": path.mkdir,
    }[what]()

    with pytest.raises(errors.UnreadableCheckpoint, match=r"ckpt\.index: it is not a regular file"):
        Reader(str(tmp_path / "ckpt"))


def graph_of(*children: int | None) -> bytes:
    """Returns a graph of objects by the number of the object that each one holds."""
    graph = bundle_protos.ObjectGraph()
    for child in children:
        node = graph.nodes.add()
        if child is not None:
            node.children.add(node_id=child, local_name="x")
    return bytes(graph.SerializeToString())


def test_graphs_of_objects_are_bounded() -> None:
    """A graph that is too deep, leads outside or is none is refused; a loop is none of these."""
    for data in (graph_of(*range(1, 100_001), None), graph_of(5), b"\xff\xff"):
        with pytest.raises(errors.UnreadableCheckpoint, match="here: its object graph is damaged"):
            object_graph.read(data, "here")
    assert object_graph.read(graph_of(0), "here").keys == {}


def test_keys_do_not_grow_without_bound(tmp_path: pathlib.Path) -> None:
    """An index whose entries repeat one long key is refused before it fills the memory."""

    def entries() -> Iterator[bytes]:
        yield b"\0" + index_file.put_varint(1 << 16) + b"\0" + b"k" * (1 << 16)
        for _ in range(1 << 16):
            yield index_file.put_varint(1 << 16) + b"\0\0"

    block = b"".join(entries()) + b"\0\0\0\0\1\0\0\0"
    path = str(tmp_path / "x.index")
    pathlib.Path(path).write_bytes(_one_block(block))

    with pytest.raises(errors.UnreadableCheckpoint, match="keys are too long"):
        index_file.read(path)


def _one_block(block: bytes) -> bytes:
    """Returns a table whose only block of entries is the given one."""
    trailer = b"\0" + mask(crc32c(block + b"\0")).to_bytes(4, "little")
    whole = index_file.build({b"k": index_file.put_varint(0) + index_file.put_varint(len(block))})
    # The block of entries of that table serves as the block that tells where entries are.
    size = whole.index(b"\0\0\0\0\1\0\0\0") + 8
    index = block + trailer + whole[: size + 5]
    numbers = (0, 0, len(block) + 5, size)
    handles = b"".join(map(index_file.put_varint, numbers))
    return index + handles.ljust(40, b"\0") + whole[-8:]


def test_paths_of_objects_do_not_grow_without_bound() -> None:
    """A graph of few bytes whose paths together are many is refused before they are made."""
    graph = bundle_protos.ObjectGraph()
    for number in range(100):
        graph.nodes.add().children.add(node_id=number + 1, local_name="x" * 1000)
    last = graph.nodes.add()
    for number in range(3000):
        last.children.add(node_id=101 + number, local_name=str(number))
    for _ in range(3000):
        graph.nodes.add().registered_saver.name = "TPUEmbeddingCallback"

    with pytest.raises(errors.UnreadableCheckpoint, match="here: its object graph is damaged"):
        object_graph.read(graph.SerializeToString(), "here")


@pytest.mark.parametrize(
    "step", [None, np.float32(1), np.zeros([3], np.int64)], ids=["none", "a float", "three"]
)
def test_a_step_that_is_none_is_told(step: Any, tmp_path: pathlib.Path) -> None:
    """A checkpoint whose global step is missing, or no integer, is refused by its name."""
    steps = {} if step is None else {"global_step": step}
    values = {"weights": np.float32(1), **steps}
    path = legacy_checkpoints.write_whole(str(tmp_path / "model.ckpt-1"), values)

    with pytest.raises(
        errors.UnreadableCheckpoint, match=r"model\.ckpt-1\.index: .global_step. is missing"
    ):
        checkpoint_state.step_of(path)


@pytest.mark.parametrize(
    "state", [None, b"", b"\xff{", b'model_checkpoint_path: "', b"[" * 100_000]
)
def test_a_state_file_that_is_nonsense_is_told(
    state: bytes | None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `checkpoint` file that names nothing, or is not there, is told with the directory."""
    if state is not None:
        (tmp_path / "checkpoint").write_bytes(state)

    assert main.main(["inspect", str(tmp_path)]) == 2

    told = f"estimator-bridge: {tmp_path}: the directory has no `checkpoint` file that names a"
    assert capsys.readouterr().err.startswith(told)


def test_names_lead_nowhere(tmp_path: pathlib.Path) -> None:
    """Names that look like paths are names: nothing is written outside of the new directory."""
    os.mkdir(tmp_path / "old")
    names = ["../../up", "/etc/absolute", "a\n\x00b", "x_embedding/embedding_weights"]
    values = {**dict.fromkeys(names, np.ones([2, 2], np.float32)), "global_step": np.int64(1)}
    path = legacy_checkpoints.write_whole(str(tmp_path / "old" / "model.ckpt-1"), values)

    convert.convert(path, str(tmp_path / "new"), allow=["*"])
    convert.convert(str(tmp_path / "new"), str(tmp_path / "back"), like=path)

    assert sorted(os.listdir(tmp_path)) == ["back", "new", "old"]
    assert {name for name, _ in tf.train.list_variables(str(tmp_path / "back"))} == set(values)

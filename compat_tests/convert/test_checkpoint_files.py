"""Checkpoint files: TensorFlow's are read and written; damaged and hostile ones are refused."""

from __future__ import annotations

import itertools
import os
import pathlib
import resource
import signal
import tempfile
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import fresh, legacy_checkpoints
from compat_tests.support.conversions import assert_same, convert_and_read
from estimator_bridge import convert as conversions
from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    Reader,
    Writer,
    bundle_protos,
    index_file,
    object_graph,
)
from estimator_bridge.cli import main

VALUES = {
    "items": np.arange(40, dtype=np.float32).reshape(10, 4),
    "items/Adagrad": np.arange(40, 80, dtype=np.float32).reshape(10, 4),
}
DATA = "model.ckpt-1.data-00000-of-00001"


@pytest.fixture
def old(tmp_path: pathlib.Path) -> str:
    """Writes a checkpoint of one table on three hosts; returns its path."""
    path = str(tmp_path / "old" / "model.ckpt-1")
    return legacy_checkpoints.write(path, VALUES, {"global_step": np.int64(1)}, 3)


def convert(old: str) -> None:
    """Converts to a directory "new" beside that of the checkpoint."""
    new = os.path.join(os.path.dirname(os.path.dirname(old)), "new")
    conversions.convert(old, new, tables={"items": "items"}, from_partition="div")


def contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


# --- The format -----------------------------------------------------------------------------


def test_every_type_is_carried(tmp_path: pathlib.Path) -> None:
    """A tensor of any type comes out of a conversion as it went in."""
    types = ("float16", "bfloat16", "float64", "int8", "int64", "bool", "complex64")
    values = {name: tf.cast(tf.constant([[0, 1], [2, 3], [0, 5]]), name) for name in types}
    values |= {"string": tf.constant(["", "x" * 300, "ü"]), "global_step": tf.constant(1, tf.int64)}
    path = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=list(values), shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )  # fmt: skip

    copied = convert_and_read(path, tmp_path / "copy", to="names", no_tables=True)

    assert_same({name: value.numpy() for name, value in values.items()}, copied)


def test_slices_anywhere_are_found_by_tensorflow(tmp_path: pathlib.Path) -> None:
    """Slices that begin and end at the edges of the key's encoding are found, rows read alike."""
    edges = [0, 1, 63, 64, 65, 127, 128, 8191, 8192, 8193, 1_048_575, 1_048_577, 1_100_000]
    rows = edges[-1]
    values = np.arange(rows, dtype=np.float32)
    path = str(tmp_path / "ckpt")
    writer = Writer(path)
    ends = list(itertools.pairwise(edges))
    writer.tensor(
        "a/ü",
        np.float32,
        [rows],
        {((begin, end - begin),): 4 * (end - begin) for begin, end in ends},
        # In any order of the slices, which is that of the tensor inside each.
        [
            (number, values[begin:end].tobytes()[half])
            for half in (slice(0, 4), slice(4, None))
            for number, (begin, end) in reversed(list(enumerate(ends)))
        ],
        sliced=True,
    )
    writer.finish()

    np.testing.assert_array_equal(tf.train.load_variable(path, "a/ü"), values)
    with Reader(path) as reader:
        tensor = reader.tensors["a/ü"]
        wanted = np.random.default_rng(2).permutation(rows)[:1000]
        np.testing.assert_array_equal(reader.rows(tensor, wanted), values[wanted])
        assert tensor.part_rows == tuple(np.diff(edges).tolist())


def test_an_index_of_many_blocks(tmp_path: pathlib.Path) -> None:
    """An index of thousands of entries is read back, and by TensorFlow."""
    values = {f"layer_{number}/kernel": np.float32(number) for number in range(3000)}
    path = legacy_checkpoints.write_whole(str(tmp_path / "ckpt"), values)

    assert_same(values, legacy_checkpoints.read(path))
    with Reader(path) as reader:
        assert set(reader.tensors) == set(values)


def test_types_of_elements_are_tensorflows() -> None:
    """Names, sizes and arrays of the types with a number are those of TensorFlow."""
    known = 0
    for number, stored in bundle_protos.TYPES.items():
        try:
            dtype = tf.as_dtype(number)
        except TypeError:  # This version of TensorFlow does not have it.
            continue
        known += 1
        described = (dtype.name, dtype.size, dtype.is_integer)
        assert (stored.name, stored.size, stored.is_integer) == described
        if dtype.size:
            assert np.dtype(stored.as_numpy) == np.dtype(dtype.as_numpy_dtype)
    assert known >= 27


def test_entries_are_those_of_tensorflow(tmp_path: pathlib.Path) -> None:
    """Whatever TensorFlow writes into an index and an object graph is known by its field."""
    model = tf.Module()
    model.values = [tf.Variable(1.0), tf.Variable([[1, 2]], dtype=tf.int64), tf.Variable("text")]
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    entries = index_file.read(f"{path}.index")
    with Reader(path) as reader:
        (graph,) = reader.strings(reader.tensors[object_graph.KEY])

    messages = [(bundle_protos.ObjectGraph, graph), (bundle_protos.BundleHeader, entries.pop(b""))]
    messages += [(bundle_protos.BundleEntry, entry) for entry in entries.values()]
    for kind, data in messages:
        message = kind.FromString(data)
        message.DiscardUnknownFields()
        assert message.SerializeToString() == data


# --- Damage ---------------------------------------------------------------------------------


def cut_off(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "file, damage, message",
    [
        (DATA, cut_off, "cut off"),
        (DATA, flip, "checksum"),
        (DATA, os.remove, "No such file"),
        ("model.ckpt-1.index", cut_off, "damaged"),
        ("model.ckpt-1.index", flip, "damaged"),
        ("model.ckpt-1.index", os.remove, "No such file"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_damage_is_told_with_the_file(
    file: str, damage: Callable[[pathlib.Path], None], message: str, old: str
) -> None:
    """A damaged or missing file is named; nothing is written and nothing is changed."""
    directory = pathlib.Path(old).parent
    damage(directory / file)
    before = contents(directory)

    with pytest.raises(errors.UnreadableCheckpoint, match=f"{file}: .*{message}"):
        convert(old)

    assert contents(directory) == before
    assert os.listdir(directory.parent) == ["old"]


def test_a_missing_shard_is_named(old: str, tmp_path: pathlib.Path) -> None:
    parts = [str(tmp_path / "parts" / name) for name in ("a", "b")]
    for number, part in enumerate(parts):
        tf.raw_ops.SaveV2(
            prefix=part, tensor_names=["items"], shape_and_slices=[f"10 4 {5 * number},5:0,4"],
            tensors=[VALUES["items"][5 * number : 5 * number + 5]],
        )  # fmt: skip
    merged = str(tmp_path / "merged" / "model.ckpt-1")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=merged)
    convert(merged)
    (tmp_path / "new").rename(tmp_path / "done")
    os.remove(f"{merged}.data-00001-of-00002")

    with pytest.raises(errors.UnreadableCheckpoint, match="data-00001-of-00002: No such file"):
        convert(merged)


def test_no_byte_of_an_index_is_taken_on_trust(old: str) -> None:
    """A changed byte or an early end of the index is an error, or changes nothing that is read."""
    path = f"{old}.index"
    data = pathlib.Path(path).read_bytes()
    with Reader(old) as reader:
        whole = reader.tensors
    refused = 0
    changed = [data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :] for at in range(len(data))]
    for damaged in [*changed, *(data[:at] for at in range(0, len(data), 7))]:
        pathlib.Path(path).write_bytes(damaged)
        try:
            with Reader(old) as reader:
                assert reader.tensors == whole
        except errors.UnreadableCheckpoint as error:
            refused += path in str(error)
    assert refused > len(data) * 0.9  # not so: the padding of the footer, and unused blocks


# --- What cannot be written -----------------------------------------------------------------

IN_A_PROCESS = """
import os, signal, sys
import tensorflow as tf
from estimator_bridge import convert, errors
{before}
try:
    convert.convert(sys.argv[1], sys.argv[2], tables={{"items": "items"}},
                    from_partition="div", progress=progress)
except errors.CannotWrite as error:
    print(error)
    sys.exit(7)
"""


def convert_in_a_process(old: str, new: str, before: str) -> tuple[int, str]:
    """Converts in another process, after more code; returns its status, 7 for CannotWrite."""
    code = IN_A_PROCESS.format(before=f"progress = None\n{before}")
    done = fresh.code(code, old, new)
    return done.returncode, done.stdout + done.stderr


def test_a_full_disk_is_told_with_the_file(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the disk is full, the file is named and nothing is left behind; with room it works."""
    values = {"items": np.ones([5000, 16], np.float32)}
    old = legacy_checkpoints.write(
        str(tmp_path / "old/model.ckpt-1"), values, {"global_step": np.int64(1)}
    )
    before = contents(tmp_path / "old")
    arguments = ["convert", old, str(tmp_path / "new"), "--table", "items=items"]
    arguments += ["--from_partition", "div", "--optimizer", "StochasticGradientDescent"]

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, limits[1]))
    try:
        status = main.main(arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    stderr = capsys.readouterr().err
    assert (status, "Traceback" in stderr) == (2, False), stderr
    assert "ckpt-1.data-00000-of-00001: File too large" in stderr
    assert os.listdir(tmp_path) == ["old"]
    assert contents(tmp_path / "old") == before
    assert main.main(arguments) == 0


@pytest.mark.full
def test_a_directory_that_is_read_only_is_named() -> None:
    """When the directory cannot be made, it is named and nothing is left behind."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        old = legacy_checkpoints.write(
            str(directory / "old/model.ckpt-1"), VALUES, {"global_step": np.int64(1)}
        )
        (directory / "new").mkdir(mode=0o555)

        status, stderr = convert_in_a_process(
            old,
            str(directory / "new" / "x"),
            "if os.getuid() == 0: os.setuid(65534)",  # root may write anywhere
        )

        assert (status, f"{directory}/new/.x.part-" in stderr) == (7, True), stderr
        assert os.listdir(directory / "new") == []


@pytest.mark.full
def test_an_interrupted_conversion_leaves_nothing_that_looks_whole(
    old: str, tmp_path: pathlib.Path
) -> None:
    """Killed while it writes or compares, a conversion has made no directory; the next one does."""
    before = contents(tmp_path / "old")
    for doing in ("writing", "comparing"):
        status, stderr = convert_in_a_process(
            old,
            str(tmp_path / "new"),
            f"def progress(doing, done, total):\n    if doing == {doing!r} and done:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)",
        )
        assert status == -signal.SIGKILL, stderr
        assert not (tmp_path / "new").exists()
        left = [name for name in os.listdir(tmp_path) if name != "old"]
        assert left
        assert all(name.startswith(".new.part-") for name in left)
        assert all(tf.train.latest_checkpoint(str(tmp_path / name)) is None for name in left)

    convert(old)

    assert contents(tmp_path / "old") == before
    converted = legacy_checkpoints.read(str(tmp_path / "new"))
    key = "embedding/items/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(converted[key], VALUES["items"])

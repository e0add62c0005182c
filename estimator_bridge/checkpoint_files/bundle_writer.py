"""Writes checkpoint files in pieces, in little memory.

TensorFlow's own writer takes whole slices only, and a slice may be larger than memory.

Reference: tensor_bundle.proto and tensor_bundle.h of TensorFlow.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import index_file
from estimator_bridge.checkpoint_files.index_file import crc32c, mask
from estimator_bridge.checkpoint_files.stored_tensor import Extents, slice_key
from tf2_engine import tf_compat
from tf2_engine.types import DType


class Writer:
    """Writes a checkpoint of one data file; the index, without which it is none, comes last.

    Args:
        wrote: called with the number of bytes whenever some are written.

    Raises:
        CannotWrite: a file cannot be written; the message names it.
    """

    def __init__(self, prefix: str, wrote: Callable[[int], None] = lambda size: None) -> None:
        self.prefix = prefix
        self._wrote = wrote
        self._path = f"{prefix}.data-00000-of-00001"
        header = tf_compat.BundleHeader(num_shards=1)
        header.version.producer = 1
        self._entries = {b"": header.SerializeToString()}
        self._offset = 0
        with naming(self._path):
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed in `finish` and `abandon`

    def tensor(
        self,
        name: str,
        dtype: DType | npt.DTypeLike,
        shape: Sequence[int],
        sizes: Mapping[Extents, int],
        buffers: Iterable[tuple[int, bytes]],
        *,
        sliced: bool,
        crcs: Sequence[int] | None = None,
    ) -> None:
        """Writes a tensor.

        Args:
            sizes: the bytes of each slice, by its extents.
            buffers: the data: the number of a slice, and the bytes that come next in it.
            sliced: whether to store slices; False takes one slice, the whole tensor.
            crcs: the masked checksums of the slices; None computes them.
        """
        begins = list(itertools.accumulate(sizes.values(), initial=self._offset))
        positions, computed = begins[:-1], [0] * len(sizes)
        for number, buffer in buffers:
            self._write(positions[number], buffer)
            positions[number] += len(buffer)
            if crcs is None:
                computed[number] = crc32c(buffer, computed[number])
        assert positions == begins[1:]
        self._offset = begins[-1]
        masked = [mask(crc) for crc in computed] if crcs is None else crcs
        entry = tf_compat.BundleEntry(dtype=tf.as_dtype(dtype).as_datatype_enum)
        entry.shape.CopyFrom(tf.TensorShape(shape).as_proto())
        for (extents, size), offset, crc in zip(sizes.items(), begins, masked, strict=False):
            target = entry
            if sliced:
                part = entry.slices.add()
                for start, length in extents:
                    part.extent.add(start=start, length=length)
                target = tf_compat.BundleEntry(dtype=entry.dtype)
                target.shape.CopyFrom(tf.TensorShape([n for _, n in extents]).as_proto())
            target.offset, target.size, target.crc32c = offset, size, crc
            if sliced:
                self._entries[slice_key(name, part)] = target.SerializeToString()
        self._entries[name.encode()] = entry.SerializeToString()

    def value(self, name: str, value: npt.ArrayLike) -> None:
        """Writes a small numeric tensor."""
        value = np.asarray(value)
        whole = tuple((0, length) for length in value.shape)
        data = value.tobytes()
        self.tensor(name, value.dtype, value.shape, {whole: len(data)}, [(0, data)], sliced=False)

    def string(self, name: str, value: bytes) -> None:
        """Writes a scalar string."""
        lengths = crc32c(len(value).to_bytes(4, "little"))
        checked = mask(lengths).to_bytes(4, "little")
        crc = mask(crc32c(checked + value, lengths))
        data = index_file.put_varint(len(value)) + checked + value
        self.tensor(name, tf.string, [], {(): len(data)}, [(0, data)], sliced=False, crcs=[crc])

    def finish(self) -> None:
        """Writes the index and flushes both files to the disk."""
        with naming(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        write_durably(f"{self.prefix}.index", index_file.build(self._entries))

    def abandon(self) -> None:
        """Closes the data file; what was written stays, but without an index."""
        # A full disk makes the close fail too.
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, offset: int, data: bytes) -> None:
        with naming(self._path):
            self._file.seek(offset)
            self._file.write(data)
        self._wrote(len(data))


def write_durably(path: str, data: bytes) -> None:
    """Writes a file that is on the disk afterwards."""
    with naming(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Raises CannotWrite with the path in the place of an OSError."""
    try:
        yield
    except OSError as error:
        raise errors.CannotWrite(f"{path}: {error.strerror}.") from error

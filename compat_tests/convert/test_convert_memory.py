"""Conversions stream: the progress that they report, and the memory that they need."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compat_tests.support import fresh, legacy_checkpoints
from compat_tests.support.conversions import OTHERS, spec_of, tables_of
from estimator_bridge import convert
from estimator_bridge.checkpoint_files import Writer


def test_progress_is_told(tmp_path: pathlib.Path) -> None:
    """Progress goes from nothing to everything in each of three passes."""
    reports: list[tuple[str, int, int]] = []
    values, _ = tables_of()
    convert.convert(
        legacy_checkpoints.write(str(tmp_path / "old/m"), values, OTHERS),
        str(tmp_path / "new"),
        spec=spec_of(),
        progress=lambda *what: reports.append(what),
    )

    assert list(dict.fromkeys(doing for doing, _, _ in reports)) == [
        "checking",
        "writing",
        "comparing",
    ]
    for doing in ("checking", "writing", "comparing"):
        steps = [(done, total) for what, done, total in reports if what == doing]
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] == steps[0][1] > 0


MEMORY = """
import sys
import numpy as np
import tensorflow as tf
from estimator_bridge import convert

def peak():  # of this process alone; ru_maxrss is handed down by the parent
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) << 10

before = peak()
convert.convert(sys.argv[1], sys.argv[2], tables={"big": "big"}, optimizer="SGD",
                    **eval(sys.argv[3]))
print(peak() - before)
"""


def convert_measured(old: str, new: pathlib.Path, **options: Any) -> int:
    """Converts in a process of its own; returns its peak of memory above `import tensorflow`."""
    done = fresh.python("-c", MEMORY, old, new, repr(options), check=True)
    return int(done.stdout.splitlines()[-1])


def write_big(path: str, size: int) -> None:
    """Writes a checkpoint of one table of so many bytes, by mod on five hosts."""
    dim = 64
    rows = size // (4 * dim)
    counts = [len(part) for part in np.array_split(np.arange(rows), 5)]
    firsts = np.cumsum([0, *counts[:-1]]).tolist()

    def buffers() -> Iterator[tuple[int, bytes]]:
        for part, count in enumerate(counts):
            for row in range(0, count, 1 << 14):
                block = np.full([min(1 << 14, count - row), dim], row + part, np.float32)
                yield part, block.tobytes()

    writer = Writer(path)
    sizes = {
        ((first, count), (0, dim)): 4 * dim * count
        for first, count in zip(firsts, counts, strict=True)
    }
    writer.tensor("big", np.float32, [rows, dim], sizes, buffers(), sliced=True)
    writer.value("global_step", np.int64(1))
    writer.finish()


@pytest.mark.full
@pytest.mark.parametrize(
    "size",
    [160 << 20, 1 << 30, pytest.param(4 << 30, marks=pytest.mark.soak)],
    ids=["160 MB", "1 GB", "4 GB"],
)
@pytest.mark.parametrize("form", ["object", "sparsecore"])
def test_memory_does_not_grow_with_tables(form: str, size: int, tmp_path: pathlib.Path) -> None:
    """A table of any size, put in another order both ways, takes little memory.

    That is 300 MB, as promised, and less than the smaller table itself.
    """
    old = str(tmp_path / "m")
    write_big(old, size)
    cores = {"to_cores": 8} if form == "sparsecore" else {}

    there = convert_measured(old, tmp_path / "objects", from_partition="mod", to=form, **cores)
    os.remove(f"{old}.data-00000-of-00001")  # room for the next
    back = convert_measured(
        str(tmp_path / "objects"), tmp_path / "new", to_hosts=3, to_partition="mod"
    )

    print(f"{size >> 20} MB: {there >> 20} MB there, {back >> 20} MB back")  # noqa: T201
    assert there < min(300 << 20, size * 3 // 4)
    assert back < min(300 << 20, size * 3 // 4)

"""Rows and bytes of a table, and what of it each host holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from estimator_bridge.readable_sizes import readable
from tf2_engine import sharding

_FLOAT32 = 4
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class TableSize:
    """One table and its slots.

    Attributes:
        features: that use it; empty where the subject does not tell.
        optimizer: for people; empty where unknown.
        slots: names of the slots, each as large as the table.
        strategy: "div" or "mod", as the program says; None where unknown.
    """

    name: str
    rows: int
    dim: int
    optimizer: str
    slots: tuple[str, ...]
    features: tuple[str, ...] = ()
    strategy: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row and its slots."""
        return _FLOAT32 * self.dim * (1 + len(self.slots))

    @property
    def bytes(self) -> int:
        """Bytes of the table and its slots."""
        return self.rows * self.row_bytes

    def hosts(self, count: int) -> list[dict[str, Any]]:
        """Returns what each of so many hosts holds; rows and bytes are the same for div and mod."""
        held = []
        for host, rows in enumerate(sharding.shard_rows(self.rows, count)):
            first = sharding.first_row(host, self.rows, count)
            held.append(
                {
                    "host": host,
                    "rows": rows,
                    "bytes": rows * self.row_bytes,
                    "div": _ids(range(first, first + rows)),
                    "mod": _ids(range(host, self.rows, count)),
                }
            )
        return held

    def as_dict(self, hosts: tuple[int, ...]) -> dict[str, Any]:
        """Returns values that JSON can hold.

        Args:
            hosts: numbers of hosts to divide it among.
        """
        return {
            **dataclasses.asdict(self),
            "bytes": self.bytes,
            "hosts": {str(count): self.hosts(count) for count in hosts},
        }

    def lines(self, hosts: tuple[int, ...]) -> Iterator[str]:
        """Yields it as lines to read."""
        slots = f" with slots {', '.join(self.slots)}" if self.slots else " without slots"
        users = f", features {', '.join(self.features)}" if self.features else ""
        yield (
            f"  table {self.name}: [{self.rows}, {self.dim}] float32, {self.optimizer}{slots}: "
            f"{readable(self.bytes)}{users}"
        )
        for count in hosts:
            held = self.hosts(count)
            rows = sorted({each["rows"] for each in held})
            span = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
            yield f"    {count} host(s): {span} rows, up to {readable(held[0]['bytes'])} each"
            for strategy in ("div", "mod") if count > 1 else ():
                shown = "; ".join(each[strategy] for each in held[:_SHOWN])
                mark = " (the program's)" if strategy == self.strategy else ""
                yield f"      {strategy}{mark}: {shown}{'; ...' if count > _SHOWN else ''}"


def _ids(ids: range) -> str:
    """Returns ids as "0..4" or "0, 5, .., 10"."""
    if len(ids) < 3:
        return ", ".join(map(str, ids)) or "none"
    if ids.step == 1:
        return f"{ids[0]}..{ids[-1]}"
    return f"{ids[0]}, {ids[1]}, .., {ids[-1]}"

"""The sizes of a table: rows and bytes, in all and of each host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from estimator_bridge.readable_sizes import readable
from tf2_engine import sharding
from tf2_engine.types import Object

_FLOAT32 = 4
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class TableSize:
    """One table and its slots.

    Attributes:
        features: those that use it; empty where the subject does not tell.
        optimizer: its name for people; empty where unknown.
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

    def hosts(self, count: int) -> list[dict[str, Object]]:
        """Returns the part of each of `count` hosts; div and mod differ in its ids alone."""
        parts = []
        for host, rows in enumerate(sharding.shard_rows(self.rows, count)):
            first = sharding.first_row(host, self.rows, count)
            parts.append(
                {
                    "host": host,
                    "rows": rows,
                    "bytes": rows * self.row_bytes,
                    "div": _ids(range(first, first + rows)),
                    "mod": _ids(range(host, self.rows, count)),
                }
            )
        return parts

    def as_dict(self, hosts: tuple[int, ...]) -> dict[str, Object]:
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
        """Yields the lines of a report."""
        slots = f" with slots {', '.join(self.slots)}" if self.slots else " without slots"
        users = f", features {', '.join(self.features)}" if self.features else ""
        yield (
            f"  table {self.name}: [{self.rows}, {self.dim}] float32, {self.optimizer}{slots}: "
            f"{readable(self.bytes)}{users}"
        )
        for count in hosts:
            parts = self.hosts(count)
            rows = sorted({part["rows"] for part in parts})
            span = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
            yield f"    {count} host(s): {span} rows, up to {readable(parts[0]['bytes'])} each"
            for strategy in ("div", "mod") if count > 1 else ():
                shown = "; ".join(part[strategy] for part in parts[:_SHOWN])
                mark = " (the program's)" if strategy == self.strategy else ""
                yield f"      {strategy}{mark}: {shown}{'; ...' if count > _SHOWN else ''}"


def _ids(ids: range) -> str:
    """Returns ids as "0..4" or "0, 5, .., 10"."""
    if len(ids) < 3:
        return ", ".join(map(str, ids)) or "none"
    if ids.step == 1:
        return f"{ids[0]}..{ids[-1]}"
    return f"{ids[0]}, {ids[1]}, .., {ids[-1]}"

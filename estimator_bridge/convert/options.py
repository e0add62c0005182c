"""The options of a conversion, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.variable_names import PLACES
from tf2_engine import sharding
from tf2_engine.types import Object


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """The options of a conversion, checked on creation; see `conversion.convert`."""

    spec: Object = None
    to: str | None = None
    optimizer: str | None = None
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    from_partition: str | None = None
    from_hosts: int | None = None
    to_partition: str | None = None
    to_hosts: int = 1
    to_cores: int = 1
    to_sparse_cores: int = 4
    samples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    slots: str = "tpu"
    scope: str | None = None
    root: str | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    allow: tuple[str, ...] = ()
    no_tables: bool = False
    global_step: int | None = None

    def __post_init__(self) -> None:
        if self.to not in (None, "names", "object", "sparsecore", "torch"):
            raise errors.InvalidInput(
                f"`to` must be 'names', 'object', 'sparsecore' or 'torch', got {self.to!r}."
            )
        for name in ("from_partition", "to_partition"):
            strategy = getattr(self, name)
            if strategy not in (None, *sharding.STRATEGIES):
                raise errors.InvalidInput(f"`{name}` must be 'div' or 'mod', got {strategy!r}.")
        for name in ("from_hosts", "to_hosts"):
            hosts = getattr(self, name)
            if hosts is not None and hosts < 1:
                raise errors.InvalidInput(f"`{name}` must be positive, got {hosts}.")
        self._check_tables()
        if self.slots not in PLACES:
            places = ", ".join(map(repr, PLACES))
            raise errors.InvalidInput(f"`slots` must be one of {places}, got {self.slots!r}.")
        if len(self.samples) > 1 or any(count < 1 for count in self.samples.values()):
            raise errors.InvalidInput(
                "`samples` must map one table, that of the first feature, to a positive number of "
                f"activations per core, got {dict(self.samples)}."
            )

    def _check_tables(self) -> None:
        if self.no_tables and (self.tables or self.spec is not None):
            raise errors.InvalidInput(
                "`no_tables` contradicts `tables` and `spec`. Leave out `no_tables`, or leave out "
                "the other two."
            )

    @property
    def spec_partition(self) -> str | None:
        strategy = getattr(self.spec, "partition_strategy", None)
        return None if strategy is None else str(strategy)

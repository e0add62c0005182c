"""The modules of a package: the meaning of names that one imports from another."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Modules:
    """The names that a module of a package imports from the others.

    Attributes:
        name: the full name of the module itself; "" for a program alone.
        is_package: whether it is the `__init__.py` of its package.
        names: full names of what modules import or assign, by their own full names, such as
            "tensorflow.compat.v1" by "job.common.tf".
    """

    name: str = ""
    is_package: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def full(self, name: str) -> str:
        """Returns the full name that a name stands for, such as ".common.tf.train"."""
        return self._full(self.absolute(name), frozenset())

    def _full(self, name: str, seen: frozenset[str]) -> str:
        above, below = name, ""
        while above:
            if above in self.names and above not in seen:
                return self._full(f"{self.names[above]}{below}", seen | {above})
            above, _, last = above.rpartition(".")
            below = f".{last}{below}"
        return name

    def absolute(self, name: str) -> str:
        """Returns a name without the dots of relative imports at its start."""
        level = len(name) - len(name.lstrip("."))
        if not level:
            return name
        parts = self.name.split(".")
        kept = len(parts) - level + self.is_package
        return ".".join([*parts[: max(kept, 0)], name[level:]])


ALONE = Modules()


def written_module(statement: ast.ImportFrom) -> str:
    """Returns the module of an import as it is written, with the dots of a relative one."""
    return "." * statement.level + (statement.module or "")

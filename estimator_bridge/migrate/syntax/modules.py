"""Resolves names that the modules of a package import from each other."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Modules:
    """Resolves the names that a module imports from other modules of its package.

    Attributes:
        name: the full name of the module itself; "" for a single program.
        names: maps full names to the full names of their values, such as "job.common.tf" to
            "tensorflow.compat.v1".
        source: the sources of all modules, joined into one text.
    """

    name: str = ""
    is_package: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""

    def full(self, name: str) -> str:
        """Returns the full name of the object that a name such as ".common.tf.train" refers to."""
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
        level = len(name) - len(name.lstrip("."))
        if not level:
            return name
        parts = self.name.split(".")
        kept = len(parts) - level + self.is_package
        return ".".join([*parts[: max(kept, 0)], name[level:]])


ALONE = Modules()


def written_module(statement: ast.ImportFrom) -> str:
    return "." * statement.level + (statement.module or "")

"""Sets attributes of modules and entries of dicts, and puts back the old values."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

from tf2_engine.types import Object

Owner: TypeAlias = ModuleType | dict[str, ModuleType]
"""A module, or `sys.modules`."""

ABSENT = object()
"""Stands for the value of an attribute or key that does not exist."""


class Changes:
    """Changes that can be undone, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Owner, name: str, value: Object) -> Object:
        """Sets an attribute or a key, or deletes it if the value is `ABSENT`.

        Returns:
            The value before, or `ABSENT`.
        """
        values = vars(owner) if isinstance(owner, ModuleType) else owner
        before = values.get(name, ABSENT)
        names: Object = values.get("__all__")
        listed = list(names) if isinstance(names, list) else None
        _set(owner, name, value)

        def undo() -> None:
            _set(owner, name, before)
            if listed is not None:
                # TensorFlow's wrapped modules list in `__all__` what is set on them.
                names[:] = listed

        self._undo.append(undo)
        return before

    def undo(self) -> None:
        """Puts back every value that was changed."""
        while self._undo:
            self._undo.pop()()


def _set(owner: Owner, name: str, value: Object) -> None:
    if isinstance(owner, ModuleType):
        if value is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    elif value is ABSENT:
        del owner[name]
    else:
        owner[name] = value

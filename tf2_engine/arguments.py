"""Checks constructor arguments against their type annotations."""

from __future__ import annotations

import contextlib
import functools
import inspect
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from tf2_engine import errors
from tf2_engine.types import Object

_ANY_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_ANY_NAMED = inspect.Parameter.VAR_KEYWORD
_Class = TypeVar("_Class", bound=type)


class Kind(NamedTuple):
    """A kind of value: `contains` recognises such values, and messages call the kind `text`."""

    contains: Callable[[Object], bool]
    text: str


def _is_flag(value: Object) -> bool:
    # Programs also pass booleans of other libraries, and None, which stock treats as False.
    number = isinstance(value, (numbers.Integral, np.bool_)) and value in (0, 1)
    return value is None or bool(number)


def _is_number(value: Object) -> bool:
    # Decimals and scalar tensors are numbers. A string is not, even if float() could parse it.
    is_one = hasattr(value, "__float__") and len(getattr(value, "shape", ())) == 0
    return isinstance(value, numbers.Real) or (is_one and not isinstance(value, type))


def _is_iterable(value: Object) -> bool:
    is_like_one = hasattr(value, "__iter__") and not isinstance(value, type)
    return is_like_one and not isinstance(value, (str, bytes, Mapping, np.ndarray))


def _is_sequence(value: Object) -> bool:
    return _is_iterable(value) and hasattr(value, "__len__")


_NO_ARRAY = Kind(lambda value: not isinstance(value, np.ndarray) or value.ndim == 0, "one value")
_FUNCTIONS = (
    "Callable",
    "Initializer",
    "InputFn",
    "ModelFn",
    "OfStep",
    "SlotFunction",
    "VariableFactory",
)
_PATH = Kind(lambda value: isinstance(value, (str, bytes, os.PathLike)), "a path")
KINDS: dict[str, Kind] = {
    "None": Kind(lambda value: value is None, "None"),
    "bool": Kind(_is_flag, "a bool"),
    "int": Kind(lambda value: isinstance(value, numbers.Integral), "int"),
    "float": Kind(_is_number, "a number"),
    "str": Kind(lambda value: isinstance(value, str), "string"),
    **dict.fromkeys(("Sequence", "tuple"), Kind(_is_sequence, "a sequence")),
    "Iterable": Kind(_is_iterable, "a list"),
    "Mapping": Kind(lambda value: isinstance(value, Mapping), "a dict"),
    **dict.fromkeys(_FUNCTIONS, Kind(callable, "callable")),
    **dict.fromkeys(("PathLike", "os.PathLike"), _PATH),
    "_Unset": Kind(lambda value: type(value).__name__ == "_Unset", "left out"),
    "type": Kind(lambda value: isinstance(value, type), "a class"),
}
"""Maps annotations to kinds. Annotations that are not listed here are not checked."""
_ALIASES = {"Rate": "float | Callable", "Hooks": "Iterable | None"}


def kinds_of(annotation: object) -> tuple[Kind, ...]:
    # Named tuples store annotations as forward references, which contain the annotation's text.
    text = str(getattr(annotation, "__forward_arg__", annotation))
    for alias, meaning in _ALIASES.items():
        text = re.sub(rf"\b{alias}\b", meaning, text)
    # Removes type arguments in brackets: the class itself checks, for instance, a sequence's items.
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = shorter
    names = [part.strip() for part in text.split("|")]
    return tuple(KINDS[name] for name in names) if all(name in KINDS for name in names) else ()


def check(owner: str, values: Mapping[str, object], annotations: Mapping[str, object]) -> None:
    for name, annotation in annotations.items():
        kinds = kinds_of(annotation) or (_NO_ARRAY,)
        if name in values:
            value = values[name]
            if not any(kind.contains(value) for kind in kinds):
                texts = " or ".join(dict.fromkeys(kind.text for kind in kinds))
                raise errors.WrongSetting(f"`{owner}`: `{name}` must be {texts}, got {value!r}.")


@contextlib.contextmanager
def instead_of_raw_errors(
    owner: str, values: Mapping[str, object], annotations: Mapping[str, object]
) -> Iterator[None]:
    """Runs `check` after its body, which calls a constructor.

    If the constructor raises an EngineError, that error remains, because it may have stock's
    message. An error from `check` replaces any other error.
    """
    try:
        yield
    except errors.EngineError:
        raise
    except Exception:
        check(owner, values, annotations)
        raise
    check(owner, values, annotations)


def typed(kind: _Class) -> _Class:
    name = "__init__" if "__init__" in vars(kind) else "__new__"
    constructor: Callable[..., Object] = vars(kind)[name]
    constructor = getattr(constructor, "__func__", constructor)
    signature = inspect.signature(constructor)
    described = getattr(constructor, "__annotations__", {}) or vars(kind)["__annotations__"]
    if issubclass(kind, tuple) and "__new__" in vars(kind) and hasattr(kind, "_field_defaults"):
        described = {**vars(kind).get("__annotations__", {}), **described}

    # The class itself checks `*arguments`.
    named = {
        name: annotation
        for name, annotation in described.items()
        if name not in signature.parameters
        or signature.parameters[name].kind not in (_ANY_POSITIONAL, _ANY_NAMED)
    }

    @functools.wraps(constructor)
    def construct(self: Object, *arguments: Object, **settings: Object) -> Object:
        # Python itself reports unknown arguments and too many arguments.
        bound = signature.bind(self, *arguments, **settings)
        with instead_of_raw_errors(kind.__name__, bound.arguments, named):
            return constructor(self, *arguments, **settings)

    setattr(kind, name, construct)
    return kind

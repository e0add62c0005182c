"""The names of layers and variables that a function makes: those of `tf.compat.v1` in a graph."""

from __future__ import annotations

import collections
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.keras.rule_optimizer import value_of
from tf2_engine.types import Object


class Scope(NamedTuple):
    """An open scope."""

    name: str

    def reuse_variables(self) -> None:
        """Does nothing, because layers and variables of the same name are always the same."""


class Scopes:
    """The scopes of one run of a function.

    Args:
        container: the layer that keeps what is made.
        made: what earlier runs have made, by full name.
        names: full names by the names of layers; layers that are made are added.
    """

    def __init__(self, container: Object, made: dict[str, Object], names: dict[str, str]) -> None:
        self._container, self._made, self._names = container, made, names
        self._open: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._given: set[str] = set()
        self._of_keras: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def scope(self, name: str | Scope | None, default_name: str | None = None) -> Iterator[Scope]:
        """Opens a scope. A `Scope` opens where it was opened before."""
        before = self._open
        if isinstance(name, Scope):
            self._open = name.name.split("/") if name.name else []
        else:
            self._open = [*before, *(name or self._unique(str(default_name))).split("/")]
            self._counts[self._path("")] += 1
        path = self._path("")
        try:
            yield Scope(path)
        finally:
            for each in [each for each in self._counts if each.startswith(f"{path}/")]:
                del self._counts[each]
            self._open = before

    def layer(
        self,
        kind: Callable[..., Object],
        *arguments: Object,
        name: str | None = None,
        default: str | None = None,
        **options: Object,
    ) -> Object:
        """Makes a layer, or returns the one of that name.

        `default` is the word for its name in this scope, if it is not given. None gives a name of
        the class, which all scopes count, as Keras does.
        """
        if default is None and name is not None:
            self._check_is_new(self._path(name))
        if name is None and default is None:
            word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
            number = self._of_keras[word]
            self._of_keras[word] += 1
            name = f"{word}_{number}" if number else word
        else:
            name = name or self._unique(str(default))
            self._counts[self._path(name)] += 1
        path = self._path(name)
        if path not in self._made:
            made = kind(*arguments, name=self._named(path), **options)
            setattr(self._container, f"layer_{len(self._made)}", made)
            self._made[path] = made
        return functools.partial(_call_at_root, self._made[path])

    def variable(self, name: str, shape: Sequence[int], **options: Object) -> Object:
        path = self._path(name)
        if path not in self._made:
            own = self._named(path)
            self._names[f"{self._container.name}/{own}"] = path  # as Keras 3 calls it
            with _at_root():
                self._made[path] = self._container.add_weight(name=own, shape=shape, **options)
        return value_of(self._made[path])

    def _path(self, name: str) -> str:
        return "/".join([*self._open, name] if name else self._open)

    def _check_is_new(self, path: str) -> None:
        if path in self._given:
            raise errors.InvalidInput(
                f"Two layers of a model are called {path}. Give each its own name, or call one "
                "layer twice."
            )
        self._given.add(path)

    def _unique(self, word: str) -> str:
        names = (f"{word}_{number}" if number else word for number in range(10**6))
        return next(each for each in names if not self._counts[self._path(each)])

    def _named(self, path: str) -> str:
        wanted = name = path.replace("/", "_")
        taken, number = {*self._names}, 1
        while name in taken:
            name, number = f"{wanted}_of_{number}", number + 1
        self._names[name] = path
        return name


def _call_at_root(layer: Object, *arguments: Object, **options: Object) -> Object:
    with _at_root():
        return layer(*arguments, **options)


def _at_root() -> contextlib.AbstractContextManager[Object]:
    return tf.name_scope("function_model/")

"""TensorFlow's public names, for commands that read programs and also run without TensorFlow."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple, cast

from estimator_bridge.run import keras_choice

LIST = pathlib.Path(__file__).with_name("public_names.txt")
"""One line per module: the module's key, then the name and key of each object in the module.

Names with equal keys stand for the same object; keys of modules begin with "m". The first two lines
are tf.compat.v1 and tf, of TensorFlow 2.21 with Keras 2. A line that begins with "(" has the key of
a function and its parameters.
"""

UPGRADES = LIST.with_name("upgrades.txt")
"""The changes that TensorFlow's `tf_upgrade_v2` makes, one line per name of TensorFlow 1.

A line has the old name, the new name, the parameters in their new order ("-" if the order is the
same), and pairs old=new of keywords. A keyword with nothing after "=" is dropped.
"""


class Upgrade(NamedTuple):
    """The name in TensorFlow 2 that replaces a name of TensorFlow 1."""

    name: str
    order: tuple[str, ...] = ()  # of the parameters; empty if it stays the same
    keywords: Mapping[str, str] = {}  # from old to new; "" if the keyword is dropped


@functools.cache
def upgrades() -> dict[str, Upgrade]:
    found = {}
    for line in UPGRADES.read_text(encoding="ascii").splitlines():
        old, new, order, *keywords = line.split()
        pairs = dict(each.split("=") for each in keywords)
        found[old] = Upgrade(new, tuple(order.split(",")) if order != "-" else (), pairs)
    return found


class _Function:
    def __init__(self, names: list[str]) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self) -> None:
        raise NotImplementedError("TensorFlow is not installed.")


def is_installed() -> bool:
    return importlib.util.find_spec("tensorflow") is not None


def tensorflow() -> ModuleType:
    """Returns TensorFlow, with Keras 2 as `tf.keras`; without TensorFlow, returns `listed()`."""
    if not is_installed():
        return listed()
    keras_choice.use_legacy_keras()
    return importlib.import_module("tensorflow")


@functools.cache
def listed() -> ModuleType:
    lines = [line.split() for line in LIST.read_text(encoding="ascii").splitlines()]
    objects: dict[str, object] = {
        key.removeprefix("("): _Function(names) for key, *names in lines if key.startswith("(")
    }
    for owner, *words in (line for line in lines if not line[0].startswith("(")):
        for name, key in zip(words[::2], words[1::2], strict=True):
            setattr(_of_key(owner, objects), name, _of_key(key, objects))
    v1, tf = (cast(ModuleType, objects[owner]) for owner, *_ in lines[:2])
    compat = ModuleType("tensorflow.compat")
    vars(compat)["v1"], vars(tf)["compat"] = v1, compat
    return tf


def has(module: object, name: str) -> bool:
    for part in name.split("."):
        if not isinstance(module, ModuleType) or all(each.startswith("_") for each in vars(module)):
            return True
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def _of_key(key: str, objects: dict[str, object]) -> object:
    if key not in objects:
        objects[key] = ModuleType(f"tensorflow.{key}") if key.startswith("m") else object()
    return objects[key]

"""Stores the arguments of layers in their configs: as objects, or as JSON in Keras' files."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tf2_engine import errors, preprocessing, tf_compat
from tf2_engine.keras import columns
from tf2_engine.keras.legacy_rules import KerasMomentum, KerasRMSProp
from tf2_engine.optimizers import OPTIMIZERS
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.specs import Quantization
from tf2_engine.types import Object

KERASES = ("keras", "tf_keras")
"""The packages with Keras' own classes. Reading a file imports classes only from these."""

_OF_STOCK = (
    *("TableConfig", "FeatureConfig", "QuantizationConfig"),
    *("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL"),
)
_OF_ENGINE = (
    *(preprocessing.Bucketized, preprocessing.Crossed, preprocessing.Hashed),
    *(preprocessing.Identity, preprocessing.Sequence, preprocessing.VocabularyFile),
    *(preprocessing.VocabularyList, preprocessing.Weighted),
    *(columns.Numeric, columns.SequenceNumeric, columns.Indicator, columns.PlainEmbedding),
    *(columns.ByStep, Quantization, SparseCoreLimits, KerasMomentum, KerasRMSProp),
)

Instance = TypeVar("Instance")


@functools.cache
def _classes() -> dict[str, type]:
    stock = tf.tpu.experimental.embedding
    ours = {
        **OPTIMIZERS,
        **{each.__name__: each for each in _OF_ENGINE},
        "Embedding": columns.TableColumn,  # The name in files.
    }
    return {
        **{f"tf2_engine.{name}": kind for name, kind in ours.items()},
        **{f"tf.tpu.experimental.embedding.{name}": getattr(stock, name) for name in _OF_STOCK},
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """A layer's argument that is an object. `package` is its Keras: `keras` or `tf_keras`."""

    value: Object
    package: str

    def get_config(self) -> dict[str, Object]:
        writer = _Writer(self.package)
        value = writer.write(self.value)
        return {"value": value, "objects": writer.objects, "package": self.package}

    @classmethod
    def from_config(cls, config: Mapping[str, Object]) -> Setting:
        reader = _Reader()
        for each in config["objects"]:
            reader.objects.append(reader.read(each))
        return cls(reader.read(config["value"]), config["package"])


@dataclasses.dataclass(frozen=True, eq=False)
class Untracked:
    """Wraps a mapping, so that Keras does not track it as a part of a layer."""

    values: Mapping[str, Object]


class Configurable:
    """A layer whose config consists of its arguments, which are in `_arguments`."""

    _arguments: Untracked
    name: str
    trainable: bool

    def get_config(self) -> dict[str, Object]:
        """Returns the arguments, from which `from_config` creates the same layer with new tables.

        The config contains the layer's own objects, so copies of the layer share optimizers. In
        Keras' files, the config is JSON.
        """
        package = package_of(self)
        arguments = {
            key: value if _is_plain(value) else Setting(value, package)
            for key, value in self._arguments.values.items()
        }
        return {**arguments, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls: type[Instance], config: Mapping[str, Object]) -> Instance:
        return cls(**{key: argument_of(value) for key, value in config.items()})


class PassiveLayer(Configurable):
    """Base class of layers that take inputs of any type, do not cast them, and do not use XLA."""

    def __init__(
        self, arguments: Mapping[str, Object], name: str | None = None, **options: Object
    ) -> None:
        super().__init__(name=name, dtype="float32", autocast=False, **options)  # type: ignore[call-arg]
        self._arguments = Untracked(arguments)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False


def keras_of(layer: Object) -> types.ModuleType:
    for name in reversed(KERASES):
        module = sys.modules.get(name)
        if module is None:
            continue
        optimizers = module.optimizers
        rates = optimizers.schedules.LearningRateSchedule
        if isinstance(layer, (module.layers.Layer, optimizers.Optimizer, rates)):
            return module
    return tf.keras


def registered(keras: types.ModuleType, kind: type) -> type:
    register = keras.utils.register_keras_serializable("tf2_engine")
    register(Setting)
    return register(kind)


def _is_plain(value: Object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def package_of(layer: Object) -> str:
    return keras_of(layer).__name__.split(".")[0]


def argument_of(value: Object) -> Object:
    """Converts a value of a config, from `get_config` or from a file, to the layer's argument."""
    if isinstance(value, Mapping) and str(value.get("class_name")).endswith(Setting.__name__):
        value = Setting.from_config(value["config"])
    return value.value if isinstance(value, Setting) else value


class _Writer:
    """Writes an argument as JSON. Each object is written once, so shared tables stay shared."""

    def __init__(self, package: str) -> None:
        self.objects: list[Object] = []
        self._package = package
        self._numbers: dict[int, int] = {}
        self._kept: list[Object] = []  # Keeps the objects, so that no `id` is reused.

    def write(self, value: Object) -> Object:
        if _is_plain(value):
            return value
        for types_, write in _VALUES:
            if isinstance(value, types_):
                return write(self, value)
        if id(value) not in self._numbers:
            written = self._object(value)
            self.objects.append(written)
            self._numbers[id(value)] = len(self.objects) - 1
            self._kept.append(value)
        return {"object": self._numbers[id(value)]}

    def _object(self, value: Object) -> dict[str, Object]:
        kind = type(value)
        if kind in _classes().values():
            return self._made_of("class", _name_of(kind, _classes()), _arguments_of(value))
        if kind in tf_compat.initializers().values():
            name = _name_of(kind, tf_compat.initializers())
            return self._made_of("initializer", name, value.get_config())
        return self._of_keras(value)

    def _made_of(self, noun: str, name: str, settings: Mapping[str, Object]) -> dict[str, Object]:
        written = {key: self.write(value) for key, value in settings.items()}
        return {noun: name, "settings": written}

    def _of_keras(self, value: Object) -> dict[str, Object]:
        root = type(value).__module__.split(".")[0]
        package = root if root in KERASES else self._package
        try:
            config = _keras(package).saving.serialize_keras_object(value)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise errors.WrongType(
                f"{value!r} cannot be written into a Keras file ({error}). Give its class a "
                "`get_config` and decorate it with `keras.utils.register_keras_serializable()`, or "
                "keep the model in a `tf.train.Checkpoint`."
            ) from error
        return {"package": package, "config": config}

    def sequence(self, value: Object) -> Object:
        if hasattr(value, "_fields"):
            raise errors.WrongType(
                f"A {type(value).__name__}, a namedtuple, cannot be written into a Keras file. "
                "Use a dict or a tuple, or keep the model in a `tf.train.Checkpoint`."
            )
        items = [self.write(each) for each in value]
        return {"tuple": items} if isinstance(value, tuple) else items

    def mapping(self, value: Mapping[Object, Object]) -> Object:
        return {"dict": [[self.write(key), self.write(each)] for key, each in value.items()]}


def _name_of(kind: type, classes: Mapping[str, type]) -> str:
    return next(name for name, each in classes.items() if each is kind)


def _arguments_of(value: Object) -> dict[str, Object]:
    names = inspect.signature(type(value)).parameters
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


_VALUES: tuple[tuple[Object, Callable[[_Writer, Object], Object]], ...] = (
    (np.generic, lambda writer, value: writer.write(value.item())),
    (bytes, lambda _, value: {"bytes": value.decode("latin-1")}),
    (tf.DType, lambda _, value: {"dtype": value.name}),
    (tf.TensorShape, lambda _, value: {"shape": None if value.rank is None else value.as_list()}),
    (np.ndarray, lambda _, value: {"array": value.tolist(), "type": value.dtype.str}),
    ((list, tuple), _Writer.sequence),
    (Mapping, _Writer.mapping),
)


class _Reader:
    def __init__(self) -> None:
        self.objects: list[Object] = []

    def read(self, value: Object) -> Object:
        if isinstance(value, (list, tuple)):
            return [self.read(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        for mark, read in _MARKS.items():
            if mark in value:
                return read(self, value)
        raise errors.InvalidSpec(
            f"The config of a layer contains {sorted(value)}, which this version cannot read. Read "
            "the config with the version that wrote it."
        )

    def restored(
        self, value: Mapping[str, Object], classes: Mapping[str, type], noun: str
    ) -> Object:
        name = value[noun]
        if name not in classes:
            raise errors.InvalidSpec(
                f"The config of a layer has the unknown {noun} {name!r}; known: "
                f"{', '.join(classes)}."
            )
        settings = {key: self.read(each) for key, each in value["settings"].items()}
        kind: Object = classes[name]
        return kind.from_config(settings) if noun == "initializer" else kind(**settings)


def _of_keras(_: _Reader, value: Mapping[str, Object]) -> Object:
    try:
        return _keras(value["package"]).saving.deserialize_keras_object(value["config"])
    except (TypeError, ValueError) as error:
        raise errors.InvalidSpec(
            f"An argument of a layer cannot be read from a file ({error}). Pass functions and "
            "classes of the program as `custom_objects`, and read `.keras` files, not `.h5` files."
        ) from error


_MARKS: Mapping[str, Callable[[_Reader, Mapping[str, Object]], Object]] = {
    "object": lambda reader, value: reader.objects[value["object"]],
    "tuple": lambda reader, value: tuple(reader.read(value["tuple"])),
    "dict": lambda reader, value: {
        reader.read(key): reader.read(each) for key, each in value["dict"]
    },
    "bytes": lambda _, value: value["bytes"].encode("latin-1"),
    "dtype": lambda _, value: tf.as_dtype(value["dtype"]),
    "shape": lambda _, value: tf.TensorShape(value["shape"]),
    "array": lambda _, value: np.array(value["array"], value["type"]),
    "class": lambda reader, value: reader.restored(value, _classes(), "class"),
    "initializer": lambda reader, value: reader.restored(
        value, tf_compat.initializers(), "initializer"
    ),
    "package": _of_keras,
}


def _keras(package: str) -> Object:
    if package not in KERASES:
        raise errors.InvalidSpec(
            f"The config of a layer names the package {package!r}; known: {', '.join(KERASES)}."
        )
    return importlib.import_module(package)

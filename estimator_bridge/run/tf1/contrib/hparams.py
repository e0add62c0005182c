"""`HParams`: a program's named and typed settings, which a string can override."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from estimator_bridge import errors
from tf2_engine.types import Object

Value: TypeAlias = Object
"""A number, string, bool or callable, or a list of these."""

_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0")

# A name, an optional index, "=", and a value up to a comma or a list in brackets.
_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[a-zA-Z][\w\.]*)(?:\[(?P<index>\d+)\])?\s*=\s*"
    r"(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))\s*(?:,|$)"
)


class HParams:
    """Settings as attributes. A new value of a setting must fit the type of the first value.

        hparams = HParams(learning_rate=0.1, sizes=[64, 32])
        hparams.parse("learning_rate=0.2,sizes[1]=16")

    The type of a list is the type of its elements. `model_structure` has no effect.

    Raises:
        InvalidInput: a name is taken, a value does not fit the type, or a list is empty.
    """

    def __init__(self, model_structure: Object = None, **kwargs: Value) -> None:
        kwargs.pop("hparam_def", None)
        self._types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Value) -> None:
        if getattr(self, name, None) is not None:
            raise errors.InvalidInput(f"HParams: Hyperparameter name is reserved: {name!r}.")
        if isinstance(value, (list, tuple)):
            if not value:
                raise errors.InvalidInput(
                    f"HParams: the list {name!r} cannot be empty: its elements tell the type."
                )
            self._types[name] = (type(value[0]), True)
        else:
            self._types[name] = (type(value), False)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Value) -> None:
        """Changes a setting; raises KeyError if it is unknown, InvalidInput if the type differs."""
        kind, is_list = self._types[name]
        if isinstance(value, (list, tuple)) != is_list:
            raise errors.InvalidInput(
                f"HParams: {name!r} must {'' if is_list else 'not '}be a list, got {value!r}."
            )
        if is_list:
            setattr(self, name, [_cast(name, kind, each) for each in value])
        else:
            setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        if hasattr(self, name):
            delattr(self, name)
            del self._types[name]

    def parse(self, values: str) -> HParams:
        """Reads settings from text such as "a=1,b=[2,3],c[0]=4"; returns this object."""
        types = {name: kind for name, (kind, _) in self._types.items()}
        return self.override_from_dict(parse_values(values, types))

    def override_from_dict(self, values_dict: Mapping[str, Value]) -> HParams:
        for name, value in values_dict.items():
            if isinstance(value, Mapping) and self._types[name][1]:
                elements = list(getattr(self, name))
                for position, element in value.items():
                    elements[position] = element
                value = elements
            self.set_hparam(name, value)
        return self

    def set_from_map(self, values_map: Mapping[str, Value]) -> HParams:
        return self.override_from_dict(values_map)

    def parse_json(self, values_json: str) -> HParams:
        return self.override_from_dict(json.loads(values_json))

    def to_json(
        self,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        values = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(values, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in self._types}

    def get(self, key: str, default: Value = None) -> Value:
        """Returns a setting, or `default` if it does not exist. Both must have the same type."""
        if key not in self._types:
            return default
        kind, is_list = self._types[key]
        if default is not None:
            if isinstance(default, (list, tuple)) != is_list:
                raise errors.InvalidInput(
                    f"HParams: {key!r} and its default must both be lists, or neither of them must "
                    "be a list."
                )
            for each in default if is_list else [default]:
                _cast(key, kind, each)
        return getattr(self, key)

    def get_model_structure(self) -> Object:
        return self._model_structure

    def set_model_structure(self, model_structure: Object) -> None:
        self._model_structure = model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"


def parse_values(
    values: str, type_map: Mapping[str, type], ignore_unknown: bool = False
) -> dict[str, Value]:
    """Parses text such as "a=1,b=[2,3],c[0]=4" into values of the types of `type_map`.

    Returns:
        A value or a list for each name; for "c[0]=4", a dict from position to value.

    Raises:
        InvalidInput: the text is malformed, or names a setting twice; a value does not fit its
            type; or a setting is unknown, unless `ignore_unknown`.
    """
    results: dict[str, Value] = {}
    position = 0
    while position < len(values):
        match = _ASSIGNMENT.match(values, position)
        if match is None:
            rest = values[position:]
            raise errors.InvalidInput(f"HParams: Malformed hyperparameter value: {rest}")
        position = match.end()
        name = match["name"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise errors.InvalidInput(
                f"HParams: Unknown hyperparameter type for {name}; there are {sorted(type_map)}."
            )
        _add_value(results, match, type_map[name])
    return results


def _add_value(results: dict[str, Value], match: re.Match[str], kind: type) -> None:
    name, index, elements = match["name"], match["index"], match["list"]
    if elements is not None:
        if index is not None:
            raise errors.InvalidInput(f"HParams: an element of {name!r} cannot be a list.")
        value: Value = [_read(name, kind, each) for each in re.split(r"[, ]+", elements) if each]
    else:
        value = _read(name, kind, match["value"].strip())
    if index is None:
        if name in results:
            raise errors.InvalidInput(f"HParams: Multiple assignments to variable {name!r}.")
        results[name] = value
        return
    known = results.setdefault(name, {})
    if not isinstance(known, dict) or int(index) in known:
        raise errors.InvalidInput(f"HParams: Multiple assignments to variable '{name}[{index}]'.")
    known[int(index)] = value


def _read(name: str, kind: type, text: str) -> Value:
    parse: Callable[[str], Value] = _read_bool if kind is bool else kind
    try:
        return parse(text)
    except (TypeError, ValueError) as error:
        raise errors.InvalidInput(
            f"HParams: Could not parse hparam {name!r} of type {kind.__name__!r} with value "
            f"{text!r}."
        ) from error


def _read_bool(text: str) -> bool:
    if text not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return text in _TRUE


def _cast(name: str, kind: type, value: Value) -> Value:
    if value is None or kind is type(None) or callable(value):
        return value
    # Python counts a bool as a number, but a number setting must not be a bool.
    groups = (bool, str, numbers.Integral, numbers.Number)
    group = next((each for each in groups if issubclass(kind, each)), kind)
    fits = isinstance(value, group) and (group is bool or not isinstance(value, bool))
    if not fits:
        raise errors.InvalidInput(
            f"HParams: Could not cast hparam {name!r} of type {kind.__name__!r} from value "
            f"{value!r}."
        )
    return kind(value)

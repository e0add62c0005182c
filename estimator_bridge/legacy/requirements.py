"""Checks the values of settings and the types of objects for several legacy classes."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from estimator_bridge import errors
from tf2_engine import arguments as arguments_
from tf2_engine.types import Object

_Value = TypeVar("_Value")


class Requirement(NamedTuple):
    """A check of a setting's value. NaN passes, as in stock; the engine refuses it later.

    Attributes:
        text: the error message in stock's words, because programs may search for them. `{name}`
            stands for the setting and `{value}` for its value. If `{value}` is missing, the value
            is added at the end.
    """

    refused: Callable[[Object], bool]
    text: str
    error: type[errors.EngineError] = errors.InvalidSpec


POSITIVE = Requirement(lambda value: value <= 0, "`{name}` must be positive")
NOT_NEGATIVE = Requirement(lambda value: value < 0, "`{name}` must be at least 0")
NOT_ABOVE_ZERO = Requirement(lambda value: value > 0, "`{name}` must be at most 0")
FRACTION = Requirement(lambda value: value < 0 or value >= 1, "`{name}` must be in [0, 1)")
INTEGER = Requirement(
    lambda value: not isinstance(value, numbers.Integral), "`{name}` must be int", errors.WrongType
)
CALLABLE = Requirement(
    lambda value: not callable(value), "`{name}` must be callable", errors.WrongType
)
STRING = Requirement(
    lambda value: not isinstance(value, str), "`{name}` must be string", errors.WrongType
)


def one_of(values: tuple[object, ...], text: str) -> Requirement:
    return Requirement(lambda value: value not in values, text)


def optional(requirement: Requirement) -> Requirement:
    return requirement._replace(
        refused=lambda value: value is not None and requirement.refused(value)
    )


POSITIVE_INT = (optional(INTEGER), optional(POSITIVE))


def check(owner: str, name: str, value: _Value, *requirements: Requirement) -> _Value:
    for requirement in requirements:
        if _is_refused(requirement, value):
            text = requirement.text.format(name=name, value=value)
            got = "" if "{value" in requirement.text else f", got {value!r}"
            raise requirement.error(f"`{owner}`: {text}{got}.")
    return value


def _is_refused(requirement: Requirement, value: Object) -> bool:
    try:
        return bool(requirement.refused(value))
    except (TypeError, ValueError):
        return True


def check_settings(
    owner: str, settings: Mapping[str, Object], requirements: Mapping[str, Requirement]
) -> None:
    for name, requirement in requirements.items():
        check(owner, name, settings[name], requirement)


def checked(kind: Object) -> Object:
    unchecked: Callable[..., Object] = kind.__new__
    signature = inspect.signature(unchecked)

    @functools.wraps(unchecked)
    def new(cls: type, *arguments: Object, **settings: Object) -> Object:
        bound = signature.bind(cls, *arguments, **settings)
        # Messages name the public class `cls`, which may derive from the class with the fields.
        described = cls.__name__, bound.arguments, kind.__annotations__
        with arguments_.instead_of_raw_errors(*described):
            return unchecked(cls, *arguments, **settings)._checked()

    kind.__new__ = new
    return kind


def class_names(thing: Object) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in type(thing).__mro__)


def argument_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Lists the arguments that callers can pass; raises WrongSetting if there is no signature."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise errors.WrongSetting(
            f"{function!r} has no signature that Python can read: {error}. Wrap it in a function "
            "or lambda with named arguments."
        ) from error
    # The signature of a partial still has the arguments that the partial binds by name.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return tuple(p.name for p in parameters if p.kind not in kinds and p.name not in bound)


def takes_any_number(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)


def check_estimator(owner: str, thing: Object) -> None:
    if {"Estimator", "EstimatorV2", "TPUEstimator"}.isdisjoint(class_names(thing)):
        raise errors.WrongType(
            f"`{owner}`: `estimator` must have type `tf.estimator.Estimator`, got {thing!r}."
        )


def is_tpu_column(column: Object) -> bool:
    return hasattr(column, "get_embedding_var_name") and hasattr(column, "get_feature_key_name")


def is_tensor_core_column(column: Object) -> bool:
    device = getattr(column, "_embedding_lookup_device", None)
    return getattr(device, "name", None) == "TPU_TENSOR_CORE"

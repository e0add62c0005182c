"""Checks that several legacy classes share: requirements of settings, and kinds of objects."""

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
    """A test for values of a setting that are refused, and the error.

    Comparisons are written as stock's are, so that NaN passes here as it does there; the engine
    refuses it with the name of the table.

    Attributes:
        refused: whether a value is refused.
        text: what is required, with `{name}` for the setting, and `{value}` unless it comes last.
            It has the words of stock's message that programs and their tests look for.
        error: the error's class; its built-in type is stock's.
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
    """Returns the requirement that a value is one of some."""
    return Requirement(lambda value: value not in values, text)


def optional(requirement: Requirement) -> Requirement:
    """Returns a requirement that None fulfils, too."""
    return requirement._replace(
        refused=lambda value: value is not None and requirement.refused(value)
    )


POSITIVE_INT = (optional(INTEGER), optional(POSITIVE))


def check(owner: str, name: str, value: _Value, *requirements: Requirement) -> _Value:
    """Returns the value of a setting; raises a requirement's error if it does not fulfil it."""
    for requirement in requirements:
        if _is_refused(requirement, value):
            text = requirement.text.format(name=name, value=value)
            got = "" if "{value" in requirement.text else f", got {value!r}"
            raise requirement.error(f"`{owner}`: {text}{got}.")
    return value


def _is_refused(requirement: Requirement, value: Object) -> bool:
    """Returns whether a value does not fulfil a requirement, or cannot be compared with it."""
    try:
        return bool(requirement.refused(value))
    except (TypeError, ValueError):
        return True


def check_settings(
    owner: str, settings: Mapping[str, Object], requirements: Mapping[str, Requirement]
) -> None:
    """Checks those settings that have a requirement, by name; see `check`."""
    for name, requirement in requirements.items():
        check(owner, name, settings[name], requirement)


def checked(kind: Object) -> Object:
    """Has a class of named tuples replace a new one by the result of its method `_checked`."""
    unchecked: Callable[..., Object] = kind.__new__
    signature = inspect.signature(unchecked)

    @functools.wraps(unchecked)
    def new(cls: type, *arguments: Object, **settings: Object) -> Object:
        bound = signature.bind(cls, *arguments, **settings)
        # The public class is that which is made, not the one that has the fields.
        described = cls.__name__, bound.arguments, kind.__annotations__
        with arguments_.instead_of_raw_errors(*described):
            return unchecked(cls, *arguments, **settings)._checked()

    kind.__new__ = new
    return kind


def class_names(thing: Object) -> tuple[str, ...]:
    """Returns the names of an object's class and of the classes it derives from.

    Legacy objects are recognised by these and by attributes, so that stock's and ours, of any
    version, are treated alike.
    """
    return tuple(kind.__name__ for kind in type(thing).__mro__)


def argument_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Returns the names of the arguments a function still takes, without *args and **kwargs.

    Raises WrongSetting if it does not tell them.
    """
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise errors.WrongSetting(
            f"{function!r} must be a function whose arguments Python knows: {error}."
        ) from error
    # Arguments that a partial binds by name are still in its signature, as defaults.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return tuple(p.name for p in parameters if p.kind not in kinds and p.name not in bound)


def takes_any_number(function: Callable[..., object]) -> bool:
    """Returns whether a function takes *args."""
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)


def check_estimator(owner: str, thing: Object) -> None:
    """Raises WrongType, with owner and value, if an object is no estimator, stock's or ours."""
    if {"Estimator", "EstimatorV2", "TPUEstimator"}.isdisjoint(class_names(thing)):
        raise errors.WrongType(
            f"`{owner}`: `estimator` must have type `tf.estimator.Estimator`, got {thing!r}."
        )

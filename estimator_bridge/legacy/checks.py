"""Small checks that several legacy classes share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from estimator_bridge import errors


class Rule(NamedTuple):
    """What a setting must not be, and how a message says so.

    Written as what is refused, like stock's checks, so that NaN passes here as it does there;
    the engine refuses it with the name of the table.
    """

    refused: Callable[[Any], bool]
    text: str


POSITIVE = Rule(lambda value: value <= 0, "must be positive")
NOT_NEGATIVE = Rule(lambda value: value < 0, "must be at least 0")
NOT_ABOVE_ZERO = Rule(lambda value: value > 0, "must be at most 0")
FRACTION = Rule(lambda value: value < 0 or value >= 1, "must be in [0, 1)")


def check(owner: str, name: str, value: Any, rule: Rule) -> None:
    """Refuses `value` if the rule does.

    Raises:
        InvalidSpec: names owner, setting and value.
    """
    if rule.refused(value):
        raise errors.InvalidSpec(f"`{owner}`: `{name}` {rule.text}, got {value!r}.")


def class_names(thing: Any) -> tuple[str, ...]:
    """Returns the names of a thing's class and of the classes it derives from.

    Legacy objects are recognised by these and by attributes, so that stock's and ours, of any
    version, are the same to us.
    """
    return tuple(kind.__name__ for kind in type(thing).__mro__)


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the arguments a function still takes, without *args and **kwargs."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    # What a partial has fixed by name is still in its signature, as a default.
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    return tuple(p.name for p in parameters if p.kind not in kinds and p.name not in fixed)


def takes_any_number(function: Callable[..., Any]) -> bool:
    """Returns whether a function takes *args."""
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)


def is_estimator(thing: Any) -> bool:
    """Returns whether a thing is an estimator, stock's or ours."""
    return not {"Estimator", "EstimatorV2", "TPUEstimator"}.isdisjoint(class_names(thing))


def check_estimator(owner: str, thing: Any) -> None:
    """Refuses what is no estimator.

    Raises:
        WrongType: names owner and value.
    """
    if not is_estimator(thing):
        raise errors.WrongType(f"`{owner}`: `estimator` must be an Estimator, got {thing!r}.")

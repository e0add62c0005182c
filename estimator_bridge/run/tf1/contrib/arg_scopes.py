"""`arg_scope`: default arguments for the layers that are called inside of it.

While `tf_slim` is loaded, whose layers have such scopes too, both share one stack.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Object

Scope = dict[str, dict[str, Object]]
"""By the key of a function, the default arguments of it."""

_Function = TypeVar("_Function", bound=Callable[..., Object])

_stack: list[Scope] = [{}]
_arguments: dict[str, tuple[str, ...]] = {}


def add_arg_scope(function: _Function) -> _Function:
    """Makes a function take its default arguments from the `arg_scope` that is open."""

    @do_not_convert  # As functions of TensorFlow 1's are, in cells and Keras layers, too.
    @functools.wraps(function)
    def scoped(*args: Object, **settings: Object) -> Object:
        defaults = current_arg_scope().get(arg_scope_func_key(scoped), {})
        return function(*args, **{**defaults, **settings})

    key = str(function)
    vars(scoped)["_key_op"] = key
    parameters = inspect.signature(function).parameters.values()
    names = tuple(each.name for each in parameters if each.default is not each.empty)
    # As stock has it: of a function without defaults all.
    _arguments[key] = names or tuple(each.name for each in parameters)
    result: Object = scoped
    return result


@contextlib.contextmanager
def arg_scope(
    list_ops_or_scope: Sequence[Callable[..., Object]] | Scope, **kwargs: Object
) -> Iterator[Scope]:
    """Gives functions other default arguments in the context; yields all of them.

    Args:
        list_ops_or_scope: functions, or a scope that was yielded before, to open it again.
        **kwargs: the arguments of the functions.

    Raises:
        ValueError: there are arguments beside a scope, or a function cannot have any.
        TypeError: it is neither functions nor a scope.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError(
                f"arg_scope: {sorted(kwargs)} are given for a scope that has its arguments "
                "already. Give functions with arguments, or a scope alone."
            )
        scope = dict(list_ops_or_scope)
    elif isinstance(list_ops_or_scope, (list, tuple)):
        scope = {key: dict(settings) for key, settings in current_arg_scope().items()}
        for function in list_ops_or_scope:
            if not has_arg_scope(function):
                raise ValueError(
                    f"arg_scope: {function} takes no arguments from a scope. Decorate it with "
                    "add_arg_scope."
                )
            key = arg_scope_func_key(function)
            scope[key] = {**scope.get(key, {}), **kwargs}
    else:
        raise TypeError(
            f"arg_scope: functions in a list, or a scope, are needed; got {list_ops_or_scope!r}."
        )
    stack = _current_stack()
    stack.append(scope)
    try:
        yield scope
    finally:
        stack.pop()


def current_arg_scope() -> Scope:
    """Returns the default arguments of the innermost scope that is open."""
    return _current_stack()[-1]


def has_arg_scope(func: Callable[..., Object]) -> bool:
    """Returns whether a function takes arguments from scopes."""
    return hasattr(func, "_key_op")


def arg_scope_func_key(op: Callable[..., Object]) -> str:
    """Returns the key of a function in scopes."""
    return str(getattr(op, "_key_op", str(op)))


def arg_scoped_arguments(func: Callable[..., Object]) -> tuple[str, ...]:
    """Returns the names of the arguments that a scope may set.

    Raises:
        ValueError: the function takes none from scopes.
    """
    if not has_arg_scope(func):
        raise ValueError(f"{func} takes no arguments from a scope; decorate it with add_arg_scope.")
    key = arg_scope_func_key(func)
    if key not in _arguments:  # A layer of tf_slim.
        return tuple(sys.modules["tf_slim.ops.arg_scope"].arg_scoped_arguments(func))
    return _arguments[key]


def _current_stack() -> list[Scope]:
    slim = sys.modules.get("tf_slim.ops.arg_scope")
    if slim is None:
        return _stack
    stack: list[Scope] = slim._get_arg_stack()
    return stack

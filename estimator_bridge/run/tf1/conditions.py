"""Evaluates conditions on the version of TensorFlow without running the program."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from estimator_bridge.run import keras_choice, public_names
from tf2_engine.types import Object

UNKNOWN = object()
"""Stands for a value that is only known when the program runs."""

ASKED = object()
"""Stands for a value that depends on the installed version of TensorFlow."""


class PublicName(NamedTuple):
    """The path of a TensorFlow name below `tensorflow`, split at the dots."""

    parts: tuple[str, ...]

    def value(self) -> Object:
        return functools.reduce(getattr, self.parts, public_names.tensorflow())


class Answer(NamedTuple):
    """Stands for a function of the program that takes no arguments and returns a known value."""

    value: Object

    def __call__(self) -> Object:
        return self.value


@functools.total_ordering
class _Version:
    def __init__(self, text: object) -> None:
        self.version = self.release = [int(part) for part in re.findall(r"\d+", str(text))][:3]
        self.major, self.minor, self.micro = (*self.release, 0, 0, 0)[:3]
        self._key = (self.major, self.minor, self.micro)

    def __str__(self) -> str:
        return ".".join(map(str, self.release))

    def __eq__(self, other: object) -> bool:
        return self._key == _Version(other)._key

    def __lt__(self, other: object) -> bool:
        return self._key < _Version(other)._key

    __hash__ = None  # type: ignore[assignment]


VERSIONS = SimpleNamespace(
    **dict.fromkeys(
        ("LooseVersion", "StrictVersion", "Version", "parse", "parse_version"), _Version
    )
)
"""Replaces `distutils`, `packaging` and `pkg_resources`, with which programs parse versions."""
VERSIONS.version = VERSIONS

_BUILTINS: Mapping[str, Object] = {
    **{each.__name__: each for each in (bool, callable, float, int, len, list, str, tuple)},
    **{each.__name__: each for each in (all, any, getattr, hasattr, max, min)},
    "map": lambda function, values: list(map(function, values)),
}
_METHODS = {
    *("split", "startswith", "endswith", "strip", "lstrip", "rstrip", "partition", "replace"),
    *vars(VERSIONS),
}


_OF_VERSION = frozenset(("__version__", "__git_version__", "VERSION", "executing_eagerly"))
_LOOKUPS = {
    *("dir", "vars", "hasattr", "getattr", "find_spec", "find_loader"),
    *("version", "distribution", "get_distribution"),
}


PYTHON: Mapping[str, Object] = {
    "sys": SimpleNamespace(version_info=sys.version_info),
    "typing": SimpleNamespace(TYPE_CHECKING=False),
    "six": SimpleNamespace(PY2=False, PY3=True),
}
"""Stand-ins for modules that tell programs the version of Python, with this Python's values."""


def public_name(node: ast.AST, known: Mapping[str, Object]) -> PublicName | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    root = known.get(node.id) if isinstance(node, ast.Name) else None
    return PublicName((*root.parts, *parts)) if isinstance(root, PublicName) else None


def asks(test: ast.expr, known: Mapping[str, Object], attributes: Collection[str]) -> bool:
    """Whether an unknown part of a condition depends on the installed TensorFlow.

    `attributes` are the names of objects' attributes that depend on the installed TensorFlow.
    """
    if isinstance(test, ast.BoolOp):
        unknown = (each for each in test.values if truth(each, known) is None)
        return any(asks(each, known, attributes) for each in unknown)
    return any(is_question(each, known, attributes) for each in ast.walk(test))


def is_question(node: ast.AST, known: Mapping[str, Object], attributes: Collection[str]) -> bool:
    """Whether a node itself, not one of its parts, asks which TensorFlow is installed."""
    public = public_name(node, known)
    if public is not None:
        return public.parts[-2:] == ("tf2", "enabled") or not _OF_VERSION.isdisjoint(public.parts)
    if isinstance(node, ast.Name):
        return known.get(node.id) is ASKED
    if isinstance(node, ast.Attribute):
        return node.attr in attributes or _of_object(node, known) is ASKED
    if isinstance(node, ast.Call):
        # A computed name depends on the program, not on the version.
        is_known = all(isinstance(each, ast.Constant) for each in node.args[1:])
        is_lookup = last_name(node.func) in _LOOKUPS and len(node.args) > 0
        return is_lookup and is_known and _is_tensorflow(node.args[0], known)
    if isinstance(node, ast.Compare) and _is_tensorflow(node.left, known):
        return ast.unparse(node.comparators[0]) == "sys.modules"
    return False


def _is_tensorflow(node: ast.expr, known: Mapping[str, Object]) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and f"{node.value}.".startswith("tensorflow.")
    return public_name(node, known) is not None


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def truth(test: ast.expr, known: Mapping[str, Object]) -> bool | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand, known)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        truths = [truth(each, known) for each in test.values]
        decides = isinstance(test.op, ast.Or)
        if decides in truths:
            return decides
        return None if None in truths else not decides
    value = evaluate(test, known)
    return None if value is UNKNOWN else bool(value)


def evaluate(node: ast.expr, known: Mapping[str, Object]) -> Object:
    """Computes the value that an expression has with TensorFlow 2, or returns UNKNOWN.

    This function executes only operators, string methods and a few builtins, on known values. It
    does not use Python's `eval`, because a command that only reads a program must not execute it.
    """
    if not all(_is_harmless(each, known) for each in ast.walk(node)):
        return UNKNOWN
    try:
        return _Evaluation(known).of(node)
    except Exception:  # The program's own errors, which it will raise when it runs.
        return UNKNOWN


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Object, Object], bool]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    ast.In: lambda one, others: one in others,
    ast.NotIn: lambda one, others: one not in others,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Object], Object]] = {
    **{ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos},
}


class _Evaluation:
    def __init__(self, known: Mapping[str, Object]) -> None:
        self.known = known

    def of(self, node: ast.AST | None) -> Object:
        """Returns an expression's value, or None if `node` is None (an omitted slice bound)."""
        return None if node is None else _VALUES[type(node)](self, node)

    def of_boolop(self, node: ast.BoolOp) -> Object:
        values = map(self.of, node.values)
        decides = isinstance(node.op, ast.Or)
        last = next(values)
        while bool(last) != decides and (following := next(values, UNKNOWN)) is not UNKNOWN:
            last = following
        return last

    def of_compare(self, node: ast.Compare) -> Object:
        operands = [*map(self.of, (node.left, *node.comparators))]
        pairs = zip(node.ops, itertools.pairwise(operands), strict=True)
        return all(_COMPARISONS[type(op)](*pair) for op, pair in pairs)

    def of_call(self, node: ast.Call) -> Object:
        by_name = {str(each.arg): self.of(each.value) for each in node.keywords}
        return self.of(node.func)(*map(self.of, node.args), **by_name)

    def of_comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Object:
        [one] = node.generators
        target = one.target.id  # type: ignore[attr-defined]  # others are an AttributeError
        values = []
        for value in self.of(one.iter):
            inner = _Evaluation({**self.known, target: value})
            if all(map(inner.of, one.ifs)):
                values.append(inner.of(node.elt))
        return values


_VALUES: Mapping[type[ast.AST], Callable[[_Evaluation, Object], Object]] = {
    ast.Constant: lambda _, node: node.value,
    ast.Name: lambda scope, node: _value(node.id, scope.known),
    ast.Attribute: lambda scope, node: _checked(
        node.attr, getattr(scope.of(node.value), node.attr)
    ),
    ast.Subscript: lambda scope, node: scope.of(node.value)[scope.of(node.slice)],
    ast.Slice: lambda scope, node: slice(*map(scope.of, (node.lower, node.upper, node.step))),
    ast.Tuple: lambda scope, node: tuple(map(scope.of, node.elts)),
    ast.List: lambda scope, node: [*map(scope.of, node.elts)],
    ast.UnaryOp: lambda scope, node: _UNARY[type(node.op)](scope.of(node.operand)),
    ast.BoolOp: _Evaluation.of_boolop,
    ast.IfExp: lambda scope, node: scope.of(node.body if scope.of(node.test) else node.orelse),
    ast.Compare: _Evaluation.of_compare,
    ast.Call: _Evaluation.of_call,
    ast.ListComp: _Evaluation.of_comprehension,
    ast.GeneratorExp: _Evaluation.of_comprehension,
}
_PARTS = (ast.boolop, ast.cmpop, ast.comprehension, ast.expr_context, ast.unaryop)


def loads_keras(parts: Sequence[str]) -> bool:
    if "keras" not in parts or "TF_USE_LEGACY_KERAS" in os.environ:
        return False
    return public_names.is_installed() and not keras_choice.is_2_15()


def _is_harmless(node: ast.AST, known: Mapping[str, Object]) -> bool:
    if isinstance(node, ast.Attribute):
        is_private = node.attr.startswith("_") and node.attr != "__version__"
        return not (is_private or loads_keras([node.attr]) or _of_object(node, known) is ASKED)
    if not isinstance(node, ast.Call):
        return isinstance(node, (*_VALUES, *_PARTS))
    called = node.func
    if isinstance(called, ast.Name):
        value = known.get(called.id, _BUILTINS.get(called.id))
        return (
            isinstance(value, Answer) or value is _Version or called.id in {*_BUILTINS} - {*known}
        )
    owner = called.value if isinstance(called, ast.Attribute) else None
    if isinstance(owner, ast.Name) and isinstance(known.get(owner.id), SimpleNamespace):
        return True
    return isinstance(called, ast.Attribute) and called.attr in _METHODS


def _of_object(node: ast.Attribute, known: Mapping[str, Object]) -> Object:
    owner = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
    return getattr(owner, node.attr, None)


def _value(name: str, known: Mapping[str, Object]) -> Object:
    value = _checked(name, known[name] if name in known else _BUILTINS[name])
    if isinstance(value, PublicName) and loads_keras(value.parts):
        raise KeyError(name)
    return value.value() if isinstance(value, PublicName) else value


def _checked(name: str, value: Object) -> Object:
    if value is UNKNOWN or value is ASKED:
        raise KeyError(name)
    return value

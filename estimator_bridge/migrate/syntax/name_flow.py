"""Finds by data flow which modules, classes and functions the names in a program stand for.

It follows assignments such as `fc, tpu = tf.feature_column, tf.tpu.experimental`, attributes of
classes and of `self`, default arguments, results of functions, and `functools.partial`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.migrate.syntax.modules import ALONE, Modules, written_module

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, ast.ClassDef, *_FUNCTIONS, *_COMPREHENSIONS)

_VERSION = re.compile(r"^tensorflow\.(compat\.v[12]\.)*")


class _Instance(NamedTuple):
    of: ast.ClassDef


_Value = str | ast.FunctionDef | ast.ClassDef | _Instance
_Values = frozenset[_Value] | None
"""The possible values of an expression: full names, and definitions in the program. None means
that not all of them are known.
"""

_NOTHING: _Values = frozenset()


class NameFlow:
    """Finds the full names of a program's expressions."""

    def __init__(self, tree: ast.Module, modules: Modules = ALONE) -> None:
        self.tree, self._modules = tree, modules
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._parents: dict[ast.AST, ast.AST] = {}
        self._bound: dict[tuple[ast.AST, str], list[ast.AST | str | None]] = {}
        self._targets: dict[ast.AST, list[tuple[ast.AST, str]]] = {}
        self._uses: dict[str, list[ast.Name]] = {}
        self._returns: dict[ast.AST, list[ast.expr | None]] = {}
        self._shared: set[tuple[ast.AST, str]] = set()
        self._enter(tree, tree)
        for node in [*self._scopes]:
            self._bind_node(node)
        self._open: set[object] = set()
        self._known: dict[ast.AST, _Values] = {}

    def full_names(self, node: ast.AST) -> list[str]:
        """Lists the possible full names; empty if any of them is unknown."""
        names = _strings(self._values(node))
        return names if _agree(names) or not self._is_assigned(node) else []

    def names_at(self, node: ast.AST, dotted: str) -> list[str]:
        first, *rest = dotted.split(".")
        values = self._of_name(self._scope(node), first)
        for part in rest:
            values = self._below(values, part)
        return _strings(values)

    def is_alias(self, node: ast.AST) -> bool:
        """Whether an expression gets its full name from an assignment, not from an import."""
        if isinstance(node, ast.Attribute):
            above = self._values(node.value) or ()
            return not all(isinstance(each, str) for each in above) and bool(self.full_names(node))
        is_assigned = isinstance(node, (ast.Name, ast.Call)) and self._is_assigned(node)
        return is_assigned and bool(self.full_names(node))

    def _is_assigned(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return True
        bindings = self._bindings(self._scope(node), node.id)
        return not any(isinstance(each, str) for each in bindings)

    def is_followed(self, node: ast.AST) -> bool:
        """Whether every place to which an expression's value flows is known."""
        up = self._parents.get(node)
        if isinstance(up, ast.Attribute) or isinstance(getattr(node, "ctx", None), ast.Store):
            return True
        if node in self._targets:
            return all(
                _agree(_strings(self._of_name(*each)))
                and not (self._is_none_too(*each) and self._is_a_value(*each))
                for each in self._targets[node]
            )
        if isinstance(up, ast.keyword):
            up = self._parents[up]
        if isinstance(up, ast.Call):
            return up.func is node or self._is_passed(node, up)
        if isinstance(up, (ast.IfExp, ast.NamedExpr)):
            return bool(self.full_names(up)) and self.is_followed(up)
        if isinstance(up, ast.Return):
            function = self._scope(up)
            calls = self._calls_of(function)
            return bool(calls) and all(
                each is not None and self.is_followed(each) for each in calls
            )
        return False

    def may_be_none(self, node: ast.AST | str | None, seen: frozenset[str] = frozenset()) -> bool:
        if isinstance(node, ast.Constant):
            return node.value is None
        if isinstance(node, ast.Name) and node.id not in seen:
            return self._is_none_too(self._scope(node), node.id, seen)
        if isinstance(node, ast.arg):
            function = self._parents[self._parents[node]]
            passed = (
                _passed(each, function, node.arg) for each in self._calls_of(function) if each
            )
            values = [getattr(node, "default", None), *filter(None, passed)]
            return any(self.may_be_none(each, seen) for each in values)
        parts = [*getattr(node, "values", ()), getattr(node, "body", None)]
        parts.append(getattr(node, "orelse", None))
        is_choice = isinstance(node, (ast.IfExp, ast.BoolOp))
        return is_choice and any(self.may_be_none(each, seen) for each in parts)

    def _is_none_too(self, scope: ast.AST, name: str, seen: frozenset[str] = frozenset()) -> bool:
        return any(self.may_be_none(each, seen | {name}) for each in self._bindings(scope, name))

    def _is_a_value(self, scope: ast.AST, name: str) -> bool:
        bindings = self._bindings(scope, name)
        uses = [
            each
            for each in self._uses.get(name, [])
            if self._bindings(self._scope(each), name) == bindings
        ]
        return not all(map(self.is_base, uses))

    def is_base(self, node: ast.AST) -> bool:
        """Whether the program calls an expression or reads its attributes (it is not None then)."""
        up = self._parents.get(node)
        return isinstance(up, ast.Attribute) or (isinstance(up, ast.Call) and up.func is node)

    def _is_passed(self, node: ast.AST, call: ast.Call) -> bool:
        """Whether it is known where an argument flows in every function that the call may run."""
        if self.partial(call) is not None:
            return self.is_followed(call)
        functions = [each for each in self._values(call.func) or () if isinstance(each, ast.AST)]
        return bool(functions) and all(
            any(
                _passed(call, each, name) is node and _strings(self._of_name(each, name))
                for name in _parameters(each)
            )
            for each in functions
        )

    def partial(self, node: ast.AST | None) -> ast.Call | None:
        if isinstance(node, ast.Name):
            bindings = self._bindings(self._scope(node), node.id)
            only = bindings[0] if len(bindings) == 1 else None
            return self.partial(only) if isinstance(only, ast.Call) else None
        if isinstance(node, ast.Call) and node.args:
            return node if self.full_names(node.func) == ["functools.partial"] else None
        return None

    def top_level(self) -> Iterator[tuple[str, list[str]]]:
        for scope, name in [*self._bound]:
            if scope is self.tree and (names := _strings(self._of_name(scope, name))):
                yield name, names

    def _enter(self, node: ast.AST, scope: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._parents[child] = node
            outside = isinstance(node, _SCOPES) and not isinstance(node, (ast.Module, ast.Lambda))
            is_inside = not outside or self._is_inside(node, child)
            self._scopes[child] = inner = node if isinstance(node, _SCOPES) and is_inside else scope
            self._enter(child, inner)

    @staticmethod
    def _is_inside(scope: ast.AST, child: ast.AST) -> bool:
        if isinstance(scope, _COMPREHENSIONS):
            return True
        return isinstance(child, ast.stmt)

    def _scope(self, node: ast.AST) -> ast.AST:
        return self._scopes.get(node, self.tree)

    def _bind_node(self, node: ast.AST) -> None:
        scope = self._scope(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, full in self._imported(node):
                self._bind(scope, name, self._modules.full(full))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            for target in getattr(node, "targets", None) or [node.target]:  # type: ignore[union-attr]
                self._bind_target(scope, target, node.value)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._shared.update((scope, name) for name in node.names)
        elif isinstance(node, ast.Name):
            self._bind_name(scope, node)
        else:
            self._bind_definition(scope, node)

    def _bind_definition(self, scope: ast.AST, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bind(scope, node.name, node)
        if isinstance(node, _FUNCTIONS):
            self._bind_parameters(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._bind(scope, node.name, None)
        elif isinstance(node, ast.Return):
            self._returns.setdefault(scope, []).append(node.value)

    def _bind_name(self, scope: ast.AST, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._uses.setdefault(node.id, []).append(node)
        elif not self._is_plain(node):
            self._bind(scope, node.id, None)

    def _is_plain(self, name: ast.Name) -> bool:
        up = self._parents[name]
        while isinstance(up, (ast.Tuple, ast.List)):
            up = self._parents[up]
        return isinstance(up, (ast.Assign, ast.AnnAssign, ast.NamedExpr))

    def _bind(self, scope: ast.AST, name: str, value: ast.AST | str | None) -> None:
        if (scope, name) in self._shared:
            scope = self.tree
        while isinstance(scope, _COMPREHENSIONS) and isinstance(value, ast.NamedExpr):
            scope = self._scope(scope)
        self._bound.setdefault((scope, name), []).append(value)
        if isinstance(value, ast.AST):
            self._targets.setdefault(value, []).append((scope, name))

    def _bind_target(self, scope: ast.AST, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = [*getattr(value, "elts", ())]
            fits = len(values) == len(target.elts) and not any(
                isinstance(each, ast.Starred) for each in (*values, *target.elts)
            )
            for number, each in enumerate(target.elts):
                self._bind_target(scope, each, values[number] if fits else None)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = self._class_of_self(scope, target.value.id)
            if owner is not None:
                self._bind(owner, target.attr, value)

    def _class_of_self(self, scope: ast.AST, name: str) -> ast.ClassDef | None:
        above = self._parents.get(scope)
        if not isinstance(scope, _FUNCTIONS) or not isinstance(above, ast.ClassDef):
            return None
        return above if [each.arg for each in scope.args.args[:1]] == [name] else None

    def _bind_parameters(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    ) -> None:
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        last = zip(positional[::-1], arguments.defaults[::-1], strict=False)
        defaults: dict[ast.arg | None, ast.expr | None] = {
            **dict(last),
            **dict(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)),
        }
        for each in (*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if each is not None:
                self._bind(function, each.arg, each)
                if (default := defaults.get(each)) is not None:
                    self._targets.setdefault(default, []).append((function, each.arg))
                    each.default = default  # type: ignore[attr-defined]

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        for each in node.names:
            if isinstance(node, ast.ImportFrom):
                module = written_module(node)
                dot = "" if module.endswith(".") else "."
                yield each.asname or each.name, f"{module}{dot}{each.name}"
            else:
                first = each.name.partition(".")[0]
                yield (each.asname, each.name) if each.asname else (first, first)

    def _bindings(self, scope: ast.AST, name: str) -> list[ast.AST | str | None]:
        """Lists the values that a name may have in the innermost scope that binds it."""
        start: ast.AST | None = scope
        while start is not None:
            is_visible = start is scope or not isinstance(start, ast.ClassDef)
            is_own = (start, name) in self._bound and (start, name) not in self._shared
            if is_visible and is_own:
                return self._bound[start, name]
            start = None if start is self.tree else self._scope(start)
        return []

    def _of_name(self, scope: ast.AST, name: str) -> _Values:
        bindings = self._bindings(scope, name)
        if not bindings:
            return None
        key = (id(scope), name)
        if key in self._open:
            return _NOTHING  # `x = x` adds nothing to the other values of x
        self._open.add(key)
        values = [self._of_binding(each) for each in bindings]
        if any(isinstance(each, str) for each in bindings):
            # If one branch imports a module, the stand-in of another branch does not matter.
            values = [each for each in values if each is not None]
        self._open.discard(key)
        return _union(values)

    def _of_binding(self, binding: ast.AST | str | None) -> _Values:
        if isinstance(binding, str):
            return frozenset([binding])
        if isinstance(binding, ast.arg):
            return self._of_parameter(binding)
        if isinstance(binding, (ast.FunctionDef, ast.ClassDef)):
            return frozenset([binding])
        return None if binding is None else self._values(binding)

    def _of_parameter(self, parameter: ast.arg) -> _Values:
        function = self._parents[self._parents[parameter]]
        owner = self._class_of_self(function, parameter.arg)
        if owner is not None:
            return frozenset([_Instance(owner)])
        default = getattr(parameter, "default", None)
        calls = self._calls_of(function)
        passed = [_passed(each, function, parameter.arg) for each in filter(None, calls)]
        if default is None and (not calls or None in calls or None in passed):
            return None
        values = [default, *passed]
        return _union(self._values(each) for each in values if each is not None)

    def _calls_of(self, function: ast.AST) -> list[ast.Call | None]:
        """Lists the calls to a function, and None for each use of its name that is not a call."""
        uses = self._uses.get(getattr(function, "name", ""), [])
        here = [each for each in uses if function in self._bindings(self._scope(each), each.id)]
        above = [self._parents.get(each) for each in here]
        return [
            up if isinstance(up, ast.Call) and up.func is each else None
            for up, each in zip(above, here, strict=True)
        ]

    def _values(self, node: ast.AST) -> _Values:
        if node not in self._known or self._open:
            values = self._computed(node)
            if self._open:  # inside a cycle the result is incomplete
                return values
            self._known[node] = values
        return self._known[node]

    def _computed(self, node: ast.AST) -> _Values:
        if isinstance(node, ast.Name):
            return self._of_name(self._scope(node), node.id)
        if isinstance(node, ast.Attribute):
            return self._below(self._values(node.value), node.attr)
        if isinstance(node, ast.IfExp):
            return _union(map(self._values, (node.body, node.orelse)))
        if isinstance(node, ast.BoolOp):
            return _union(map(self._values, node.values))
        if isinstance(node, ast.NamedExpr):
            return self._values(node.value)
        if isinstance(node, ast.Constant) and node.value is None:
            return _NOTHING  # attributes of None are never used
        return self._of_call(node) if isinstance(node, ast.Call) else None

    def _of_call(self, call: ast.Call) -> _Values:
        if self.partial(call) is not None:
            return self._values(call.args[0])
        functions = self._values(call.func) or ("",)
        function = next(iter(functions), "") if len(functions) == 1 else ""
        if isinstance(function, ast.ClassDef):
            return frozenset([_Instance(function)])
        if isinstance(function, ast.FunctionDef):
            if function.decorator_list or function in self._open:
                return None
            self._open.add(function)
            returned = self._returns.get(function, [])
            values = _union(None if each is None else self._values(each) for each in returned)
            self._open.discard(function)
            return values or None
        return None

    def _below(self, values: _Values, name: str) -> _Values:
        return _union(self._attribute(each, name) for each in values) if values else values

    def _attribute(self, value: _Value, name: str) -> _Values:
        if isinstance(value, str):
            return frozenset([self._modules.full(f"{value}.{name}")])
        owner = value.of if isinstance(value, _Instance) else value
        return self._of_name(owner, name) if (owner, name) in self._bound else None


def _union(values: Iterable[_Values]) -> _Values:
    every = [*values]
    if not every or None in every:
        return None
    return functools.reduce(frozenset.union, every)  # type: ignore[arg-type]


def _strings(values: _Values) -> list[str]:
    names = [each for each in values or () if isinstance(each, str)]
    return sorted(names) if len(names) == len(values or ()) else []


def _agree(names: Iterable[str]) -> bool:
    """Whether full names differ only in the version of TensorFlow (compat.v1 or v2)."""
    return len({_VERSION.sub("tensorflow.", f"{each}.") for each in names}) == 1


def _parameters(function: ast.AST) -> list[str]:
    arguments = getattr(function, "args", None)
    return [] if arguments is None else [each.arg for each in arguments.args + arguments.kwonlyargs]


def _passed(call: ast.Call, function: ast.AST, name: str) -> ast.AST | None:
    by_name: Mapping[str | None, ast.AST] = {each.arg: each.value for each in call.keywords}
    by_place = dict(zip(_parameters(function), call.args, strict=False))
    return by_name.get(name) or by_place.get(name)

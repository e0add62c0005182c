"""Reads a module's source the way Python would run it with TensorFlow 2 installed.

Names in code that a version check hides from TensorFlow 2 do not count as used.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

from estimator_bridge.run import public_names
from estimator_bridge.run.tf1.conditions import (
    ASKED,
    PYTHON,
    UNKNOWN,
    VERSIONS,
    Answer,
    PublicName,
    asks,
    evaluate,
    is_question,
    last_name,
    loads_keras,
    public_name,
    truth,
)
from tf2_engine.types import Object

Scope = tuple[str, ...]
"""Where a piece of code is: the file, and the enclosing classes and functions."""

_ROOT = "tensorflow"
_VERSION_PACKAGES = ("distutils", "packaging", "pkg_resources")
_ATTRIBUTE, _IMPORT, _ASSERTION = "AttributeError", "ImportError", "AssertionError"
_CATCHERS: Mapping[str, str] = {
    **dict.fromkeys((_IMPORT, "ModuleNotFoundError"), _IMPORT),
    _ATTRIBUTE: _ATTRIBUTE,
    _ASSERTION: _ASSERTION,
}
_BROAD = ("Exception", "BaseException")
_ENDS = (ast.Return, ast.Continue, ast.Break)
_EXITS = ("exit", "_exit", "quit")
# A handler that contains one of these does more than report the error.
_ALTERNATIVES = (
    *(ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Return),
    *(ast.Pass, ast.Continue),
)


class Use(NamedTuple):
    """A place where a program uses a name of TensorFlow 1 that TensorFlow 2 lacks."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({os.path.basename(self.path)}, line {self.line})"


class FoundUse(NamedTuple):
    """A use, and the error that it raises with TensorFlow 2."""

    use: Use
    scope: Scope
    error: str
    is_sure: bool  # whether every run of the scope reaches the use


class Mention(NamedTuple):
    """A place where code mentions a name or imports the file of a module."""

    name: str
    scope: Scope
    is_reached: bool  # whether a run of the scope with TensorFlow 2 can get to the mention
    is_sure: bool  # whether every run of the scope gets to it


class Reading(ast.NodeVisitor):
    """Collects the uses of TensorFlow 1 in a module, and the other names that the module mentions.

    `find` takes a module's name, the importing file and the level of a relative import, and returns
    the module's reading, or None for a library. `adapts` is true if the module switches to
    `tf.compat.v1` on TensorFlow 2.
    """

    def __init__(
        self, path: str, tree: ast.Module, find: Callable[[str, str, int], Reading | None]
    ) -> None:
        self.path, self._find = path, find
        self.uses: list[FoundUse] = []
        self.mentions: list[Mention] = []
        self.defined: set[str] = set()
        self.known: dict[str, Object] = {}
        self._scope: Scope = (path,)
        self._of_scope = self.known
        self._is_reached, self._lacks_module = True, False
        self._is_sure, self._is_guarded, self.adapts = True, False, False
        self._asked_attributes: set[str] = set()
        self._is_in_class = False
        # Function bodies are read last, because they run when their module is complete.
        self._functions: list[tuple[ast.AST, Scope, bool, dict[str, Object]]] = []
        self._set_elsewhere = {
            name for each in ast.walk(tree) if isinstance(each, ast.Global) for name in each.names
        }
        self._block(tree.body)
        names = dict(self.known)
        while self._functions:
            self._read_function(*self._functions.pop(0))
        self.known = names

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if each is not None:
                self.visit(each)
        self.defined.add(node.name)
        self.known[node.name] = self._answer(node)
        scope = (*self._scope, node.name)
        is_reached = self._is_reached and not any(map(self._asks, node.decorator_list))
        self._functions.append((node, scope, is_reached, self._of_scope))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.defined.add(node.name)
        outer, known = self._scope, {**self.known, node.name: UNKNOWN}
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        self._scope = (*outer, node.name)
        with self._read_as(_is_in_class=True):
            self._block(node.body)
        self._scope = outer
        self._become(known)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = self._import(node, alias.name)
            first = alias.name.partition(".")[0]
            bound = alias.name if alias.asname else first
            self._bind_import(alias.asname or first, bound, module)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = node.module or ""
        is_public = f"{package}.".startswith(f"{_ROOT}.") and not node.level
        module = self._import(node, package, node.level) if package and not is_public else None
        for alias in node.names:
            full = f"{package}.{alias.name}".removeprefix(".")
            below = self._import(node, full, node.level, is_attribute=bool(package))
            name = alias.asname or alias.name
            if below is None and module is not None:
                self.known[name] = module.known.get(alias.name, UNKNOWN)
            elif alias.name != "*":
                self._bind_import(name, full, below)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._mention(node.id)
        else:
            self.known[node.id] = UNKNOWN

    def visit_Attribute(self, node: ast.Attribute) -> None:
        public = self._public_name(node)
        if public is not None:
            self._note(ast.unparse(node), public.parts, node.lineno, _ATTRIBUTE)
        self._mention(node.attr)
        if public is None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, self._known_value(node.value))
            is_of_object = isinstance(target, ast.Attribute) or self._is_in_class
            if is_of_object and self._asks(node.value):
                self._asked_attributes.add(last_name(target))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._asks(node.slice):  # a dict of functions by version
            self._skip([node.value])
        else:
            self.generic_visit(node)

    def visit_Match(self, node: ast.AST) -> None:
        subject, *cases = ast.iter_child_nodes(node)
        if isinstance(subject, ast.expr) and self._asks(subject):
            self._skip(cases)
        else:
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> bool:
        self.visit(node.test)
        holds = truth(node.test, self.known)
        if holds is None and self._asks(node.test):
            return self._skip_versions(node.body, node.orelse)
        if holds is None:
            is_main = ast.unparse(node.test).startswith("__name__")
            return self._either(node.body, node.orelse, is_sure=is_main)
        self._skip([*(node.orelse if holds else node.body)])
        with self._read_as(_is_guarded=True):
            return self._block(node.body if holds else node.orelse)

    def _skip_versions(self, *blocks: Sequence[ast.stmt]) -> bool:
        with self._read_as(_is_reached=False):
            self._either(*blocks)
        return any(block and isinstance(block[-1], _ENDS) for block in blocks)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        holds = truth(node.test, self.known)
        if holds is None and self._asks(node.test):
            self._skip([node.body, node.orelse])
            return
        with self._read_as(**({"_is_sure": False} if holds is None else {"_is_guarded": True})):
            for value, is_skipped in ((node.body, holds is False), (node.orelse, holds is True)):
                (self._skip([value]) if is_skipped else self.visit(value))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        decides = isinstance(node.op, ast.Or)
        for position, value in enumerate(node.values):
            with self._read_as(_is_sure=self._is_sure and position == 0):
                self.visit(value)
            holds = truth(value, self.known)
            if holds is decides or (holds is None and self._asks(value)):
                self._skip(node.values[position + 1 :])
                return

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.visit(node.test if isinstance(node, ast.While) else node.iter)
        stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
        changed = {each.id for each in stored if isinstance(each.ctx, ast.Store)}
        self.known.update(dict.fromkeys(changed, UNKNOWN))
        self._either(node.body, [], is_sure=True)
        self._block(node.orelse)

    visit_AsyncFor = visit_While = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> bool:
        suppressed: set[str] = set()
        for item in node.items:
            self.visit(item)
            call = item.context_expr
            if isinstance(call, ast.Call) and last_name(call.func) == "suppress":
                suppressed |= _caught(ast.Tuple(call.args))
        if suppressed:
            self._attempt(node.body, suppressed)
            return False
        return self._block(node.body)

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try) -> bool:
        start = dict(self.known)
        guards = [each for each in node.handlers if self._is_guard(each)]
        caught = set().union(*(_caught(each.type) for each in guards))
        outer, self._lacks_module = self._lacks_module, False
        is_guarded = any(name in _CATCHERS for each in guards for name in _type_names(each.type))
        with self._read_as(_is_guarded=self._is_guarded or is_guarded):
            failed = self._attempt(node.body, caught)
        reachable = [each for each in node.handlers if failed or not self._is_idle(each, node.body)]
        self._skip([each for each in node.handlers if each not in reachable])
        if failed:
            self._become(start)
            self._skip(node.orelse)
            with self._read_as(_is_guarded=True):
                left = self._either(*(each.body for each in reachable))
        else:
            left = self._either(node.orelse, *(each.body for each in reachable), before=start)
        self._lacks_module = outer
        return self._block(node.finalbody) or left

    def _leave(self, node: ast.AST) -> bool:
        self.generic_visit(node)
        return True

    # Code after `raise` still counts: a program that needs TensorFlow 1 may raise without it.
    visit_Return = visit_Continue = visit_Break = _leave

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        for position, each in enumerate(statements):
            if self.visit(each):
                self._skip(statements[position + 1 :])
                return True
        return False

    @contextlib.contextmanager
    def _read_as(self, **marks: bool) -> Iterator[None]:
        outer = {name: getattr(self, name) for name in marks}
        vars(self).update(marks)
        yield
        vars(self).update(outer)

    def _skip(self, nodes: Sequence[ast.AST]) -> None:
        known = dict(self.known)
        with self._read_as(_is_reached=False):
            for each in nodes:
                self.visit(each)
        self._become(known)

    def _either(
        self,
        *blocks: Sequence[ast.stmt],
        before: Mapping[str, Object] | None = None,
        is_sure: bool = False,
    ) -> bool:
        """Reads alternative blocks; returns whether all end with return, break or continue.

        `before` are the known values before every block but the first. With `is_sure`, every run
        executes the first block.
        """
        start = dict(self.known)
        is_sure = self._is_sure and (is_sure or len(blocks) == 1)
        ends, left = [], []
        for position, block in enumerate(blocks):
            self._become(start if before is None or position == 0 else before)
            with self._read_as(_is_sure=is_sure):
                left.append(self._block(block))
            ends.append(dict(self.known))
        going_on = [end for end, has_left in zip(ends, left, strict=True) if not has_left] or ends
        merged: dict[str, Object] = {}
        for end in going_on:
            for name, value in end.items():
                same = merged.setdefault(name, value) is value or merged[name] == value
                merged[name] = value if same else UNKNOWN
        self._become(merged)
        return bool(left) and all(left)

    def _attempt(self, body: Sequence[ast.stmt], caught: set[str]) -> bool:
        for position, each in enumerate(body):
            before = len(self.uses)
            left = self.visit(each)
            is_false = isinstance(each, ast.Assert) and truth(each.test, self.known) is False
            fails = len(self.uses) > before and self.uses[before].error in caught
            if fails or (is_false and _ASSERTION in caught):
                del self.uses[before:]
                self._skip([each])
                self._skip(body[position + 1 :])
                return True
            if left:
                break
        return False

    def _is_guard(self, handler: ast.ExceptHandler) -> bool:
        last = handler.body[-1]
        if isinstance(last, ast.Raise):
            return False
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            if last_name(last.value.func) in _EXITS:
                return False
        nodes = [each for statement in handler.body for each in ast.walk(statement)]
        is_narrow = any(name in _CATCHERS for name in _type_names(handler.type))
        return is_narrow or any(
            isinstance(each, _ALTERNATIVES) or self._public_name(each) for each in nodes
        )

    def _is_idle(self, handler: ast.ExceptHandler, body: Sequence[ast.stmt]) -> bool:
        caught = _caught(handler.type)
        nodes = [each for statement in body for each in ast.walk(statement)]
        has_import = any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in nodes)
        if _IMPORT in caught and has_import:
            return not self._lacks_module
        return _ATTRIBUTE in caught and any(map(self._public_name, nodes))

    def _read_function(
        self, node: ast.AST, scope: Scope, is_reached: bool, around: dict[str, Object]
    ) -> None:
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        arguments = [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        self.known = self._of_scope = {
            name: UNKNOWN if name in self._set_elsewhere and _is_plain(value) else value
            for name, value in around.items()
        } | dict.fromkeys(arguments, UNKNOWN)
        self._scope, self._is_reached, self._is_sure = scope, is_reached, True
        self._block(node.body)

    def _become(self, known: Mapping[str, Object]) -> None:
        known = dict(known)
        self.known.clear()
        self.known.update(known)

    def _answer(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Object:
        last = node.body[-1]
        others = [each for each in node.body[:-1] if not isinstance(each, ast.Expr)]
        value = UNKNOWN
        if not (others or ast.unparse(node.args)) and isinstance(last, ast.Return) and last.value:
            value = self._known_value(last.value)
        if value is UNKNOWN and self._answers_by_version(node):
            return ASKED
        return value if value is UNKNOWN or value is ASKED else Answer(value)

    def _answers_by_version(self, function: ast.AST) -> bool:
        nodes = [*ast.walk(function)]
        if not any(is_question(each, self.known, self._asked_attributes) for each in nodes):
            return False
        assigned = [each for each in nodes if isinstance(each, ast.Assign)]
        asked = {last_name(each.targets[0]) for each in assigned if self._asks(each.value)}
        results = [each.value for each in nodes if isinstance(each, ast.Return) and each.value]
        names = [
            {last_name(n) for n in ast.walk(each) if isinstance(n, ast.Name)} for each in results
        ]
        return bool(results) and all(
            isinstance(result, ast.Constant) or self._asks(result) or used & asked
            for result, used in zip(results, names, strict=True)
        )

    def _known_value(self, node: ast.expr) -> Object:
        public = self._public_name(node)
        if public is not None:
            return public
        value = evaluate(node, self.known)
        if value is UNKNOWN:
            holds = truth(node, self.known)
            value = holds if holds is not None else ASKED if self._asks(node) else UNKNOWN
        return value

    def _assign(self, target: ast.expr, value: Object) -> None:
        if isinstance(target, ast.Name):
            self.known[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            fits = isinstance(value, (tuple, list)) and len(value) == len(target.elts)
            values = value if fits else [UNKNOWN] * len(target.elts)
            for each, part in zip(target.elts, values, strict=True):
                self._assign(each, part)
        else:
            self.visit(target)

    def _import(
        self, node: ast.stmt, name: str, level: int = 0, is_attribute: bool = False
    ) -> Reading | None:
        parts = name.split(".")
        if parts[0] == _ROOT and not level:
            self._note(name, tuple(parts[1:]), node.lineno, _IMPORT)
            return None
        if not self._is_reached:
            return None
        module = self._find(name, self.path, level)
        if module is not None:
            self._mention(module.path)
        elif not level and not is_attribute and not _is_installed(parts[0]):
            self._lacks_module = True
        return module

    def _bind_import(self, name: str, full: str, module: Reading | None) -> None:
        first, *rest = full.split(".")
        value: Object = UNKNOWN
        if module is not None:
            value = SimpleNamespace(
                **dict(filter(lambda item: _is_plain(item[1]), module.known.items()))
            )
        elif first == _ROOT:
            value = PublicName(tuple(rest))
        elif first in _VERSION_PACKAGES:
            value = getattr(VERSIONS, rest[-1], UNKNOWN) if rest else VERSIONS
        elif first in PYTHON:
            value = getattr(PYTHON[first], rest[-1], UNKNOWN) if rest else PYTHON[first]
        self.known[name] = value

    def _public_name(self, node: ast.AST) -> PublicName | None:
        return public_name(node, self.known)

    def _asks(self, test: ast.expr) -> bool:
        return asks(test, self.known, self._asked_attributes)

    def _note(self, name: str, parts: tuple[str, ...], line: int, error: str) -> None:
        if self._is_reached and self._is_guarded and parts[:2] == ("compat", "v1"):
            self.adapts = True
        if self._is_reached and _is_of_tf1(parts):
            use = Use(name, self.path, line)
            self.uses.append(FoundUse(use, self._scope, error, self._is_sure))

    def _mention(self, name: str) -> None:
        self.mentions.append(Mention(name, self._scope, self._is_reached, self._is_sure))


def _is_of_tf1(parts: Sequence[str]) -> bool:
    if "contrib" in parts[:1] or list(parts[:3]) == ["compat", "v1", "contrib"]:
        return True
    if not parts or loads_keras(parts):
        return False
    if parts[0] == "python" or list(parts[:2]) == ["compat", "v1"]:
        return False  # TensorFlow 2 has these names too. Importing it to see that takes seconds.
    tf = public_names.tensorflow()
    new: Object = tf
    old: Object = tf.compat.v1
    for name in parts:
        if not isinstance(new, ModuleType) or not isinstance(old, ModuleType):
            return False
        if not hasattr(new, name):
            return hasattr(old, name)
        new, old = getattr(new, name), getattr(old, name, None)
    return False


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a partly initialized module
        return True


def _is_plain(value: Object) -> bool:
    return value is not UNKNOWN and not isinstance(value, (PublicName, SimpleNamespace))


def _caught(types: ast.expr | None) -> set[str]:
    names = _type_names(types)
    if types is None or any(name in _BROAD for name in names):
        return {_ATTRIBUTE, _IMPORT, _ASSERTION}
    return {_CATCHERS[name] for name in names if name in _CATCHERS}


def _type_names(types: ast.expr | None) -> list[str]:
    each = types.elts if isinstance(types, ast.Tuple) else [types] if types else []
    return [last_name(node) for node in each]

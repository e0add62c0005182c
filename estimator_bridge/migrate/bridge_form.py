"""The first form: a program that imports the bridge in the place of stock's estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from estimator_bridge import errors
from estimator_bridge.migrate import imports
from estimator_bridge.migrate.edits import one_line
from estimator_bridge.migrate.imports import Aliases, Imported
from estimator_bridge.migrate.names import NAMESPACE, Place, place_of, refusal_of
from estimator_bridge.migrate.report import HONOURED, Line, Rewritten

_MARK = "# estimator-bridge: "


def adopt(source: str, name: str = "the program") -> Rewritten:
    """Returns a program whose imports, and names of stock, lead to the bridge.

    Everything else is as it was. What cannot be told from the source alone (a module of stock that
    is handed around, a star import of one) is caught by `install` when the program starts; what
    the bridge does not have is left under a comment that says why.

    Args:
        name: what errors call it.

    Raises:
        InvalidInput: it is no Python 3.
    """
    try:
        old = metadata.MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise errors.InvalidInput(f"{name} is no Python 3: {error}.") from error
    reader = _Reader()
    old.visit(reader)
    aliases = Aliases(reader.names, reader.namespace_names)
    replacer = _Replacer(reader, aliases)
    replaced = old.visit(replacer)
    remover = _Remover()
    cleaned = metadata.MetadataWrapper(replaced).visit(remover)
    lines = [*replacer.lines]
    if remover.left:
        for imported in remover.left:
            lines.append(
                Line(
                    0,
                    "by hand",
                    imported.full,
                    "",
                    "It is used as a module, or has names that "
                    "the bridge does not know by heart; `install` serves those that it has",
                )
            )
    if not lines:
        return Rewritten(
            source, (Line(0, "by hand", "", "", "Nothing leads to stock's estimator"),)
        )
    start = _start(aliases, bool(remover.left))
    body = _with_head(list(cleaned.body), aliases.imports(), start)
    lines += [Line(0, "added", "", statement) for statement in (*start, *aliases.imports())]
    lines.append(HONOURED)
    return Rewritten(cleaned.with_changes(body=body).code, tuple(lines))


class _Reader(cst.CSTVisitor):
    """Reads all names and imports before anything is changed."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.direct: set[str] = set()
        self.namespace_names: list[str] = []
        self._inside = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._inside += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inside -= 1

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_Import(self, node: cst.Import) -> None:
        self._note(node)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        self._note(node)

    def _note(self, node: Any) -> None:
        for imported in imports.read(node):
            if imported.place is None or imported.bound is None:
                continue
            self.direct.add(imported.bound)
            if imported.place == Place(NAMESPACE) and not self._inside:
                self.namespace_names.append(imported.bound)


class _Replacer(cst.CSTTransformer):
    """Replaces imports that have a place in the bridge, and names below modules of stock."""

    METADATA_DEPENDENCIES = (metadata.QualifiedNameProvider, metadata.PositionProvider)

    def __init__(self, reader: _Reader, aliases: Aliases) -> None:
        super().__init__()
        self._reader = reader
        self._aliases = aliases
        self._refused: list[str] = []
        self.lines: list[Line] = []

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        text = str(get_full_name_for_node(original_node))
        for name in self._qualified(original_node):
            why = refusal_of(name)
            if why is not None:
                self._refuse(original_node, text, why)
            place = place_of(name)
            if place is not None and text.split(".")[0] not in self._reader.direct:
                new = self._aliases.expression(place)
                code = cst.Module([]).code_for_node(new)
                self.lines.append(Line(self._line(original_node), "name", text, code))
                return new
        return updated_node

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._refused.clear()

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        if len(original_node.body) == 1 and isinstance(
            original_node.body[0], cst.Import | cst.ImportFrom
        ):
            return self._import(original_node)
        if not self._refused:
            return updated_node
        comments = [
            cst.EmptyLine(comment=cst.Comment(f"{_MARK}{why}."))
            for why in dict.fromkeys(self._refused)
        ]
        return updated_node.with_changes(leading_lines=[*updated_node.leading_lines, *comments])

    def _import(self, line: cst.SimpleStatementLine) -> Any:
        statement: Any = line.body[0]
        found = imports.read(statement)
        moved = [each for each in found if each.place is not None]
        if not moved:
            return line
        for each in moved:
            why = refusal_of(each.full)
            if why is not None:
                self._refuse(line, each.full, why)
        made = []
        for code, comment in imports.written(moved):
            self.lines.append(Line(self._line(line), "import", one_line(statement), f"{code}"))
            new: Any = cst.parse_statement(code)
            if comment:
                new = new.with_changes(trailing_whitespace=_trailing(comment))
            made.append(new)
        kept = [each for each in found if each.place is None]
        leading: list[Any] = [*line.leading_lines]
        leading += [cst.EmptyLine(comment=cst.Comment(f"{_MARK}{why}.")) for why in self._refused]
        if kept:
            rest = line.with_changes(body=[imports.only(statement, {each.full for each in kept})])
            return cst.FlattenSentinel([rest, *made])
        made[0] = made[0].with_changes(leading_lines=leading)
        if not any(comment for _, comment in imports.written(moved)):
            made[-1] = made[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
        return cst.FlattenSentinel(made)

    def _refuse(self, node: Any, text: str, why: str) -> None:
        self._refused.append(f"{text} is left out: {why}")
        self.lines.append(Line(self._line(node), "by hand", text, "", f"It is left out: {why}"))

    def _qualified(self, node: Any) -> Iterable[str]:
        found = self.get_metadata(metadata.QualifiedNameProvider, node, ())
        return sorted(
            each.name for each in found if each.source is metadata.QualifiedNameSource.IMPORT
        )

    def _line(self, node: Any) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)


class _Remover(cst.CSTTransformer):
    """Removes imports of stock's modules that nothing uses any more; their comments stay.

    Attributes:
        left: those that something still uses.
    """

    METADATA_DEPENDENCIES = (metadata.ScopeProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Imported] = []

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._cleaned(original_node, updated_node))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = self._cleaned(original_node, updated_node)
        return updated_node.with_changes(body=body or [cst.parse_statement("pass")])

    def _cleaned(self, original: Any, updated: Any) -> list[Any]:
        body: list[Any] = []
        comments: list[Any] = []
        for old, new in zip(original.body, updated.body, strict=True):
            kept = self._without_unused(old, new)
            if kept is None:
                comments += [each for each in new.leading_lines if each.comment]
                continue
            if comments:
                kept = kept.with_changes(leading_lines=[*comments, *kept.leading_lines])
                comments = []
            body.append(kept)
        return body

    def _without_unused(self, old: Any, new: Any) -> Any:
        if not isinstance(old, cst.SimpleStatementLine) or len(old.body) != 1:
            return new
        statement: Any = old.body[0]
        if not isinstance(statement, cst.Import | cst.ImportFrom):
            return new
        found = imports.read(statement)
        unused = set()
        for each in found:
            if not each.by_use:
                continue
            if self._is_used(statement, each.bound):
                self.left.append(each)
            else:
                unused.add(each.full)
        if not unused:
            return new
        rest = {each.full for each in found} - unused
        return new.with_changes(body=[imports.only(statement, rest)]) if rest else None

    def _is_used(self, statement: Any, bound: str | None) -> bool:
        if bound is None:
            return True
        scope: Any = self.get_metadata(metadata.ScopeProvider, statement)
        return any(assignment.references for assignment in scope[bound])


def _start(aliases: Aliases, with_install: bool) -> list[str]:
    """Returns what comes before TensorFlow: legacy programs are written in Keras 2."""
    name = aliases.free("install")
    call = "install(replace=True)" if with_install else "use_legacy_keras()"
    alias = "" if name == "install" else f" as {name}"
    return [f"from estimator_bridge import install{alias}", f"{name}.{call}"]


def _with_head(body: list[Any], new: Sequence[str], start: Sequence[str]) -> list[Any]:
    """Puts the start before the first statement that imports TensorFlow, and imports behind it."""
    first = next((i for i, each in enumerate(body) if imports.of_tensorflow(each)), None)
    if first is None:
        first = next((i for i, each in enumerate(body) if not _is_preface(each)), len(body))
    last = max((i for i, each in enumerate(body) if imports.of_tensorflow(each)), default=first - 1)
    head = [cst.parse_statement(code) for code in start]
    head[-1] = head[-1].with_changes(
        trailing_whitespace=_trailing("# Keras 2, before TensorFlow is asked for any.")
    )
    if first < len(body):
        leading = body[first].leading_lines
        head[0] = head[0].with_changes(leading_lines=leading)
        body[first] = body[first].with_changes(leading_lines=[cst.EmptyLine()])
    more = [cst.parse_statement(code) for code in new]
    return [*body[:first], *head, *body[first : last + 1], *more, *body[last + 1 :]]


def _is_preface(statement: Any) -> bool:
    """Returns whether a statement is the docstring, or one of `from __future__ import`."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first: Any = statement.body[0]
    if isinstance(first, cst.Expr):
        return isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)
    if not isinstance(first, cst.ImportFrom):
        return False
    return any(each.full.startswith("__future__.") for each in imports.read(first))


def _trailing(comment: str) -> cst.TrailingWhitespace:
    return cst.TrailingWhitespace(
        whitespace=cst.SimpleWhitespace("  "), comment=cst.Comment(comment)
    )

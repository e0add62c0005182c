"""The bridge form: a program that imports the bridge instead of stock's estimator."""

from __future__ import annotations

import ast
import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from estimator_bridge.migrate import selection
from estimator_bridge.migrate.rewrite_report import Line, Rewritten
from estimator_bridge.migrate.selection import ALL, Rule, Selection
from estimator_bridge.migrate.stock_replacements import (
    NAMESPACE,
    Replacement,
    is_spec,
    is_stock,
    place_of,
    refusal_of,
)
from estimator_bridge.migrate.syntax import import_statements, quoted_names
from estimator_bridge.migrate.syntax.import_statements import (
    Aliases,
    Imported,
    ImportStatement,
    is_import,
    is_import_line,
    is_preface,
)
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.node_search import find
from estimator_bridge.migrate.syntax.parsed_program import (
    ParsedProgram,
    code_of,
    comment_lines,
    keyword_of,
    parsed,
)
from estimator_bridge.settings import quirks

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Statements: TypeAlias = list[Statement]

_BY_USE = (
    "It is used as a module, or has names that are not in the bridge's lists; `install` provides "
    "those that the bridge has"
)


_UNSUPPORTED = "unsupported-names"

RULES: Mapping[str, Rule] = {
    "stock-imports": Rule(
        selection.SAFE, "imports of stock's estimator become imports of the bridge's"
    ),
    "stock-names": Rule(selection.SAFE, "full names of stock become names of the bridge"),
    "keep-quirks": Rule(selection.SAFE, f"a spec gets {quirks.ARGUMENT}"),
    "install-at-start": Rule(
        selection.SAFE, "`install` replaces modules of stock whose uses the source does not show"
    ),
    "unsupported-names": Rule(
        selection.NEEDS_A_LOOK,
        "a name that the bridge lacks gets a comment with the reason",
    ),
}


def adopt(
    source: str,
    name: str = "the program",
    selected: Selection = ALL,
    modules: Modules = ALONE,
) -> Rewritten:
    """Rewrites a program so that its imports and uses of stock's names refer to the bridge.

    If the program passes a module of stock around or star-imports it, the source does not show
    which names are used. The new program then starts with a call to `install`, which replaces them.
    A name that the bridge lacks stays, and a comment gives the reason. `name` is the program's name
    in errors; `modules` are the other modules of the program's package.
    """
    program = parsed(source, name, modules)
    imported = list(_replaceable(program))
    names = {node.value for node in program.find(cst.Name)}
    namespaces = [
        each.bound
        for each, is_everywhere in imported
        if each.bound and each.place == Replacement(NAMESPACE) and is_everywhere
    ]
    aliases = Aliases(names, namespaces)
    replacer = _Replacer(program, {each.bound for each, _ in imported}, aliases, selected)
    replaced = program.module.visit(replacer)
    remover = _Remover()
    cleaned = replaced
    imports = find(replaced, *import_statements.KINDS)
    if any(each.by_use for statement in imports for each in import_statements.read(statement)):
        cleaned = metadata.MetadataWrapper(replaced, unsafe_skip_copy=True).visit(remover)
    lines = [
        *replacer.lines,
        *(
            Line(0, "by hand", imported.full, "", _BY_USE, "install-at-start")
            for imported in remover.kept
        ),
    ]
    if not lines:
        nothing = Line(0, "note", "", "", "The program does not use stock's estimator")
        return Rewritten(source, (nothing,))
    start = _start(aliases, with_install=bool(remover.kept))
    body = _with_head(list(cleaned.body), aliases.imports(), start)
    lines += [Line(0, "added", "", statement) for statement in (*start, *aliases.imports())]
    return Rewritten(cleaned.with_changes(body=body).code, tuple(lines))


def _replaceable(program: ParsedProgram) -> Iterator[tuple[Imported, bool]]:
    """Yields (imported, is_everywhere) for the imported names that the bridge replaces.

    `is_everywhere` means that the import is at the top level, and that nothing else binds the name.
    """
    bound = collections.Counter(
        assignment.name
        for scope in set(program.scopes.values())
        for assignment in (() if scope is None else scope.assignments)
    )
    at_top = set(
        itertools.takewhile(
            lambda each: is_preface(each) or is_import_line(each), program.module.body
        )
    )
    for statement in program.find(*import_statements.KINDS):
        is_at_top = program.statement_of(statement) in at_top
        for imported in import_statements.read(statement, program.modules):
            if imported.place is not None and imported.bound is not None:
                yield imported, is_at_top and bound[imported.bound] == 1


class _Replacer(cst.CSTTransformer):
    def __init__(
        self,
        program: ParsedProgram,
        imported: set[str | None],
        aliases: Aliases,
        selected: Selection,
    ) -> None:
        super().__init__()
        self._takes = {name: selected.takes(name, rule.effect) for name, rule in RULES.items()}
        self._program = program
        self._imported = imported
        self._aliases = aliases
        self._refusals: list[str] = []
        self.lines: list[Line] = []

    def visit_Import(self, node: ImportStatement) -> bool:
        return False

    visit_ImportFrom = visit_Import

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        text = str(get_full_name_for_node(original_node))
        for name in self._program.imported_names(original_node):
            self._note_refusal(original_node, text, name)
            place = place_of(name)
            # A name below an imported name needs no change: the new import already leads to the
            # bridge, except for names of version 2.
            is_bound = text.split(".")[0] in self._imported or self._leads_there(original_node)
            if (
                place is not None
                and self._takes["stock-names"]
                and (not is_bound or place.attributes.startswith("v2."))
            ):
                new = self._aliases.expression(place)
                line = self._program.line(original_node)
                self.lines.append(Line(line, "name", text, code_of(new), "", "stock-names"))
                return new
        return updated_node

    def _leads_there(self, node: cst.Attribute) -> bool:
        part: ast.AST | None = self._program.in_flow(node)
        flow = self._program.flow
        while part is not None:
            if flow.is_alias(part) and any(map(is_stock, flow.full_names(part))):
                return True
            part = getattr(part, "value", None)
        return False

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.BaseExpression:
        value = original_node.value
        for name in reversed([*quoted_names.read(self._program, original_node)]):
            place, length = self._place_of_start(original_node, name.text)
            is_bound = name.text.split(".")[0] in self._imported
            if place is None or is_bound or not self._takes["stock-names"]:
                continue
            new = code_of(self._aliases.expression(place))
            value = f"{value[: name.start]}{new}{value[name.start + length :]}"
            line = self._program.line(original_node)
            old = name.text[:length]
            self.lines.append(Line(line, "name", old, new, "", "stock-names"))
        return updated_node.with_changes(value=value)

    def _place_of_start(self, node: cst.CSTNode, dotted: str) -> tuple[Replacement | None, int]:
        for start in itertools.accumulate(dotted.split("."), "{}.{}".format):
            for full in self._program.full_names_of(node, start):
                place = place_of(full)
                if place is not None:
                    return place, len(start)
        return None, 0

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        names = self._program.imported_names(original_node.func)
        named = set(map(keyword_of, original_node.args))
        keeps = self._takes["keep-quirks"]
        if not any(map(is_spec, names)) or "quirks" in named or not keeps:
            return updated_node
        line, new = self._program.line(original_node), self._program.in_its_quotes(quirks.ARGUMENT)
        self.lines.append(Line(line, "added", "", new, quirks.KEPT, "keep-quirks"))
        (argument,) = cst.ensure_type(cst.parse_expression(f"f({new})"), cst.Call).args
        *before, last = updated_node.args or [argument]
        if not updated_node.args:
            return updated_node.with_changes(args=[argument])
        # The new argument takes over what follows the last one: a comma or a line end.
        argument = argument.with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
            whitespace_after_arg=cst.SimpleWhitespace(""),
        )
        return updated_node.with_changes(args=[*before, last, argument])

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._refusals.clear()

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if len(original_node.body) == 1 and is_import(original_node.body[0]):
            return self._replaced_import(original_node, original_node.body[0])
        if not self._refusals:
            return updated_node
        comments = comment_lines(_UNSUPPORTED, dict.fromkeys(self._refusals))
        return updated_node.with_changes(leading_lines=[*updated_node.leading_lines, *comments])

    def _replaced_import(
        self, line: cst.SimpleStatementLine, statement: ImportStatement
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        imported = import_statements.read(statement, self._program.modules)
        moved = [each for each in imported if each.place is not None]
        if not moved or not self._takes["stock-imports"]:
            return line
        for each in moved:
            self._note_refusal(line, each.full, each.full)
        new_lines = []
        has_comments = any(each.comment for each in moved)
        for code, comment in import_statements.written(moved):
            at, old = self._program.line(line), code_of(statement)
            self.lines.append(Line(at, "import", old, code, "", "stock-imports"))
            new_lines.append(_commented(cst.parse_statement(code), comment))
        kept = {each.full for each in imported if each.place is None}
        if kept:
            only = import_statements.only(statement, kept, self._program.modules)
            rest = line.with_changes(body=[only])
            return cst.FlattenSentinel([rest, *new_lines])
        leading_lines = [*line.leading_lines, *comment_lines(_UNSUPPORTED, self._refusals)]
        new_lines[0] = new_lines[0].with_changes(leading_lines=leading_lines)
        if not has_comments:
            new_lines[-1] = new_lines[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
        return cst.FlattenSentinel(new_lines)

    def _note_refusal(self, node: cst.CSTNode, text: str, name: str) -> None:
        reason = refusal_of(name)
        if reason is None or not self._takes["unsupported-names"]:
            return
        self._refusals.append(f"{text} is left out: {reason}")
        line = self._program.line(node)
        why = f"It is left out: {reason}"
        self.lines.append(Line(line, "by hand", text, "", why, "unsupported-names"))


class _Remover(cst.CSTTransformer):
    """Removes unused imports of stock's modules, and keeps comments.

    `kept` lists the used imports.
    """

    METADATA_DEPENDENCIES = (metadata.ScopeProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Imported] = []

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._cleaned(original_node, updated_node))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = self._cleaned(original_node, updated_node)
        return updated_node.with_changes(body=body or [cst.parse_statement("pass")])

    def _cleaned(
        self, original: cst.Module | cst.IndentedBlock, updated: cst.Module | cst.IndentedBlock
    ) -> Statements:
        body: Statements = []
        comments: list[cst.EmptyLine] = []
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

    def _without_unused(self, old: Statement, new: Statement) -> Statement | None:
        if not isinstance(old, cst.SimpleStatementLine) or len(old.body) != 1:
            return new
        statement = old.body[0]
        if not is_import(statement):
            return new
        imported = import_statements.read(statement)
        scope = self.get_metadata(metadata.ScopeProvider, statement)
        unused = {
            each.full
            for each in imported
            if each.by_use
            and each.bound is not None
            and not any(assignment.references for assignment in scope[each.bound])
        }
        self.kept += [each for each in imported if each.by_use and each.full not in unused]
        if not unused:
            return new
        rest = {each.full for each in imported} - unused
        return new.with_changes(body=[import_statements.only(statement, rest)]) if rest else None


def _start(aliases: Aliases, *, with_install: bool) -> list[str]:
    name = aliases.free("install")
    call = "install(replace=True)" if with_install else "use_legacy_keras()"
    alias = "" if name == "install" else f" as {name}"
    return [f"from estimator_bridge import install{alias}", f"{name}.{call}"]


def _with_head(body: Statements, new: Sequence[str], start: Sequence[str]) -> Statements:
    """Inserts `start` before the first import of TensorFlow, and `new` after the last one.

    Imports below the first group of imports do not count, because code above them may already use
    the new names.
    """
    imports = [i for i, each in enumerate(body) if import_statements.of_tensorflow(each)]
    rest = (i for i, each in enumerate(body) if not is_preface(each))
    first = imports[0] if imports else next(rest, len(body))
    last = import_statements.last_of_tensorflow(body, first)
    head = [cst.parse_statement(code) for code in start]
    head[-1] = _commented(head[-1], "# Keras 2, before TensorFlow is asked for any.")
    if first < len(body):
        head[0] = head[0].with_changes(leading_lines=body[first].leading_lines)
        body[first] = body[first].with_changes(leading_lines=[cst.EmptyLine()])
    new_imports = [cst.parse_statement(code) for code in new]
    return [*body[:first], *head, *body[first : last + 1], *new_imports, *body[last + 1 :]]


def _commented(statement: Statement, comment: str) -> Statement:
    if not comment:
        return statement
    end = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(comment))
    return statement.with_changes(trailing_whitespace=end)

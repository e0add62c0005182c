"""Code without a counterpart, arguments of calls and statements, and the comments in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers, metadata

from estimator_bridge.migrate import tf2_rules
from estimator_bridge.migrate.edits import Edits, commented_out
from estimator_bridge.migrate.parsed_program import MARK, ParsedProgram
from estimator_bridge.migrate.rewrite_report import Line
from estimator_bridge.migrate.tf2_rules import NameRule


class Removal:
    """The statements that are to be commented out, with the `reasons`, and single `arguments`.

    Attributes:
        harmless: those of the statements whose removal is known to lose nothing.
    """

    def __init__(self, program: ParsedProgram) -> None:
        self._program = program
        self.arguments: set[cst.CSTNode] = set()
        self.reasons: dict[cst.CSTNode, str] = {}
        self.harmless: set[cst.CSTNode] = set()

    def is_removed(self, node: cst.CSTNode | None) -> bool:
        """Returns whether a node is inside of something that is removed."""
        while node is not None:
            if node in self.arguments or node in self.reasons:
                return True
            node = self._program.parent(node)
        return False

    def remove(self, node: cst.CSTNode, reason: str) -> None:
        """Removes the statement of a node, and those that depend on it.

        A function is removed with a statement that returns its result. A statement that uses a
        name is removed if no other statement binds the name.
        """
        if self.is_removed(node):
            return
        statement = self._program.statement_of(node)
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(each, cst.Return) for each in statement.body
        ):
            self.remove(self._program.enclosing(statement, cst.FunctionDef), reason)
            return
        self.reasons[statement] = reason
        for name, scope in self._bound_names(statement):
            assignments = [each for each in scope[name] if each.scope is scope]
            if not all(self.is_removed(each.node) for each in assignments):
                continue
            for assignment in assignments:
                for access in assignment.references:
                    self.remove(access.node, f"It uses {name}, which is left out")

    def _bound_names(self, statement: cst.CSTNode) -> list[tuple[str, metadata.Scope]]:
        """Returns the names that a statement binds, with their scopes."""
        scopes = self._program.scopes
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return [(statement.name.value, scopes[statement])]
        names: list[tuple[str, metadata.Scope]] = []
        for assignment in matchers.findall(statement, matchers.AssignTarget()):
            target = assignment.target
            several = isinstance(target, cst.Tuple | cst.List)
            parts = [each.value for each in target.elements] if several else [target]
            names += [(each.value, scopes[each]) for each in parts if isinstance(each, cst.Name)]
        return names


class Comments:
    """Moves code into comments with the reason: arguments, and the statements of `removal`."""

    def __init__(self, program: ParsedProgram, edits: Edits, removal: Removal) -> None:
        self._program = program
        self._edits = edits
        self._removal = removal
        self._above: dict[cst.CSTNode, str] = {}
        self._argument_lines: list[Line] = []

    def leave_out_arguments(self, call: cst.Call, name: str, rule: NameRule) -> None:
        """Moves the arguments of a call that its rule does not carry into a comment."""
        dropped = [each for each in call.args if each.keyword and not rule.carries(_key(each))]
        if not dropped:
            return
        statement = self._program.statement_of(call)
        for first, last, kept_before, kept_after in _runs(call.args, dropped):
            alone = kept_before is None or kept_after is not None
            start = self._edits.span(first)[0] if alone else self._edits.span(kept_before)[1]
            end = self._edits.span(kept_after)[0] if kept_after else self._edits.span(last)[1]
            self._edits.replace(start, end, "")
            rest = self._edits.text(start, end)
            for argument in dropped:
                rest = rest.replace(self._edits.text_of(argument), "")
            for comment in re.findall(r"#[^\r\n]*", rest):  # They stay.
                self._add_above(statement, comment)
        self._removal.arguments.update(dropped)
        for argument in dropped:
            why = tf2_rules.ARGUMENTS.get(_key(argument), tf2_rules.NO_COUNTERPART)
            text = self._edits.text_of(argument)
            old, line = text.splitlines()[0], self._program.line(argument)
            self._argument_lines.append(Line(line, "left out", old, "", sentence(why)))
            reason = f"{MARK}{name}({_key(argument)}) is left out: {why}."
            self._add_above(statement, reason, commented_out(text, self._program.indent(statement)))

    def write(self) -> list[Line]:
        """Writes all comments into the text; returns a line for each of them."""
        for statement, comment in self._above.items():
            if not self._removal.is_removed(statement):
                self._edits.insert(self._edits.line_start(self._program.line(statement)), comment)
        return [*self._argument_lines, *self._comment_out_statements()]

    def _add_above(self, statement: cst.CSTNode, comment: str, code: str = "") -> None:
        """Adds a comment, and code that is commented out, above a statement."""
        indent = " " * self._program.indent(statement)
        before = self._above.get(statement, "")
        self._above[statement] = f"{before}{indent}{comment}\n{code}"

    def _comment_out_statements(self) -> Iterator[Line]:
        """Comments out the statements that are removed; yields a line for each of them."""
        removed: dict[cst.CSTNode, int] = {}
        for statement, reason in self._removal.reasons.items():
            position = self._program.position(statement)
            indent = position.start.column
            decorators = getattr(statement, "decorators", ())
            first = min([position.start.line, *map(self._program.line, decorators)])
            start, end = self._edits.lines(first, self._program.last_line(statement))
            code = commented_out(self._edits.text(start, end), indent)
            text = f"{' ' * indent}{MARK}{reason}.\n{code}"
            block: cst.CSTNode = self._program.parent(statement)
            removed[block] = removed.get(block, 0) + 1
            if removed[block] == len(block.body) and not isinstance(block, cst.Module):
                text += f"{' ' * indent}pass\n"
            self._edits.replace(start, end, text)
            bare = cst.Module([]).code_for_node(statement.with_changes(leading_lines=[]))
            yield Line(first, "left out", str(bare.splitlines()[0]), "", reason)


def sentence(why: str) -> str:
    """Returns a reason with a capital letter."""
    return why[:1].upper() + why[1:]


def _key(argument: cst.Arg) -> str:
    return str(argument.keyword.value)


def _runs(
    arguments: Sequence[cst.Arg], dropped: Sequence[cst.Arg]
) -> Iterator[tuple[cst.Arg, cst.Arg, cst.Arg | None, cst.Arg | None]]:
    """Yields (first, last, the kept one before, the kept one behind) of runs of arguments."""
    kept_before, run = None, []
    for argument in arguments:
        if argument in dropped:
            run.append(argument)
            continue
        if run:
            yield run[0], run[-1], kept_before, argument
        kept_before, run = argument, []
    if run:
        yield run[0], run[-1], kept_before, None

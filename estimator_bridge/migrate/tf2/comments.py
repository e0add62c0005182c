"""Comments out code that has no counterpart: statements, and arguments of calls."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from estimator_bridge.migrate.blockers import Blocker, marked
from estimator_bridge.migrate.rewrite_report import Line
from estimator_bridge.migrate.syntax.edits import Edits, commented_out, lines_of
from estimator_bridge.migrate.syntax.parsed_program import MARK, ParsedProgram, keyword_of
from estimator_bridge.migrate.syntax.removal import Removal
from estimator_bridge.migrate.tf2 import tf2_rules

_WIDTH = 100


class Comments:
    """Comments out statements and arguments, with the reason."""

    def __init__(self, program: ParsedProgram, edits: Edits, removal: Removal) -> None:
        self._program = program
        self._edits = edits
        self._removal = removal
        self._above: dict[cst.CSTNode, str] = {}
        self._argument_lines: list[Line] = []

    def leave_out_arguments(self, call: cst.Call, name: str, dropped: Sequence[cst.Arg]) -> None:
        """Moves arguments and their comments into a comment above the statement with the call."""
        if not dropped:
            return
        statement = self._program.statement_of(call)
        remarks = dict.fromkeys(dropped, "")
        for run, kept_before, kept_after in _runs(call.args, dropped):
            self._cut(run, kept_before, kept_after, remarks)
        self._removal.arguments.update(dropped)
        indent = self._edits.indentation(statement)
        for argument in dropped:
            key = keyword_of(argument)
            why = tf2_rules.ARGUMENTS.get(key, tf2_rules.NO_COUNTERPART)
            text = self._edits.text_of(argument)
            lines = lines_of(text)
            line, rule = self._program.line(argument), tf2_rules.argument_rule(key)
            old = f"{lines[0].rstrip()}{' ...' if len(lines) > 1 else ''}"
            self._argument_lines.append(Line(line, "left out", old, "", sentence(why), rule))
            if tf2_rules.leaves_no_comment(rule):
                continue
            reason = f"{MARK}{name}({key}) is left out: {why}."
            on_own_line = self._starts_line(argument)
            column = self._program.indent(argument) if on_own_line else len(indent)
            code = commented_out(text, indent, column)
            self._add_above(statement, reason, remarks[argument] + code)

    def _cut(
        self,
        run: Sequence[cst.Arg],
        kept_before: cst.Arg | None,
        kept_after: cst.Arg | None,
        remarks: dict[cst.Arg, str],
    ) -> None:
        """Removes neighbouring arguments from the text and adds their comments to `remarks`."""
        starts_line = self._starts_line(run[0])
        alone = kept_before is None or kept_after is not None
        start = self._edits.span(run[0])[0]
        line = self._first_line(run[0], kept_before)
        if starts_line and kept_before is not None and "#" in self._gap(kept_before, run[0]):
            # The comma of the preceding argument stays, with its comment.
            start = self._edits.line_start(line) + self._program.indent(run[0])
        elif not alone:
            start = self._edits.span(kept_before)[1]
        last = self._edits.span(run[-1])[1]
        end = self._edits.span(kept_after)[0] if kept_after else last
        if starts_line and kept_after is not None and self._starts_line(kept_after):
            start = self._edits.line_start(line)
            end = self._edits.line_start(int(self._program.position(run[-1]).end.line) + 1)
        elif kept_before is not None and self._ends_line(run[-1], kept_after):
            # The comma of the last argument stays, and with it the end of the line.
            start, end = self._edits.span(kept_before)[1], last
        self._edits.replace(start, end, "")
        indent = self._edits.indentation(self._program.statement_of(run[0]))
        position = start
        for argument in run:
            first, behind = self._edits.span(argument)
            before = self._edits.text(position, first) if first > position else ""
            position = behind
            rest = self._edits.text(behind, end) if argument is run[-1] else ""
            comments = re.findall(r"#[^\r\n]*", f"{before}\n{rest}")
            remarks[argument] += "".join(f"{indent}{each}\n" for each in comments)

    def _ends_line(self, argument: cst.Arg, after: cst.Arg | None) -> bool:
        return (
            after is not None and self._starts_line(after) and "#" not in self._gap(argument, after)
        )

    def _gap(self, before: cst.Arg, after: cst.Arg) -> str:
        start, end = self._edits.span(before)[1], self._edits.span(after)[0]
        return self._edits.text(start, end).partition("\n")[0]

    def _starts_line(self, node: cst.CSTNode) -> bool:
        start = self._edits.span(node)[0]
        before = self._edits.text(self._edits.line_start(self._program.line(node)), start)
        return not before.strip()

    def _first_line(self, argument: cst.Arg, before: cst.Arg | None) -> int:
        line = self._program.line(argument)
        lowest = int(self._program.position(before).end.line) + 1 if before is not None else line
        return self._first_with_comments(line, lowest)

    def write(self) -> list[Line]:
        for statement, comment in self._above.items():
            if not self._removal.is_removed(statement):
                self._edits.insert(self._edits.line_start(self._program.line(statement)), comment)
        return [*self._argument_lines, *self._comment_out_statements()]

    def mark(self, statement: cst.CSTNode, blocker: Blocker) -> None:
        text = marked(blocker, self._edits.indentation(statement))
        self._above[statement] = self._above.get(statement, "") + text

    def _add_above(self, statement: cst.CSTNode, comment: str, code: str = "") -> None:
        indent = self._edits.indentation(statement)
        before = self._above.get(statement, "")
        self._above[statement] = f"{before}{_wrapped(comment, indent)}{code}"

    def _comment_out_statements(self) -> Iterator[Line]:
        removed: dict[cst.CSTNode, int] = {}
        for statement, reason in self._removal.reasons.items():
            block: cst.CSTNode = self._program.parent(statement)
            if self._removal.is_removed(block):
                continue
            position = self._program.position(statement)
            indent = self._edits.indentation(statement)
            decorators = getattr(statement, "decorators", ())
            first = min([position.start.line, *map(self._program.line, decorators)])
            if self._leaves_no_comment(statement):
                first_line = self._first_with_comments(first)
                start, end = self._edits.lines(first_line, self._program.last_line(statement))
                text = ""
            else:
                start, end = self._edits.lines(first, self._program.last_line(statement))
                code = commented_out(self._edits.text(start, end), indent)
                text = f"{_wrapped(f'{MARK}{reason}.', indent)}{code}"
            removed[block] = removed.get(block, 0) + 1
            if removed[block] == len(block.body) and not isinstance(block, cst.Module):
                text += f"{indent}pass\n"
            self._edits.replace(start, end, text)
            bare = cst.Module([]).code_for_node(statement.with_changes(leading_lines=[]))
            rule = self._removal.rules.get(statement) or "depends-on-left-out"
            yield Line(first, "left out", str(bare.splitlines()[0]), "", reason, rule)

    def _leaves_no_comment(self, statement: cst.CSTNode) -> bool:
        users = [
            self._removal.removed_part(each) for each in self._removal.users.get(statement, [])
        ]
        if users:
            return all(each is not None and self._is_dropped(each) for each in users)
        return tf2_rules.leaves_no_comment(self._removal.rules.get(statement, ""))

    def _is_dropped(self, part: cst.CSTNode) -> bool:
        if isinstance(part, cst.Arg):
            return tf2_rules.leaves_no_comment(tf2_rules.argument_rule(keyword_of(part)))
        return self._leaves_no_comment(part)

    def _first_with_comments(self, line: int, lowest: int = 1) -> int:
        while (
            line > lowest
            and self._edits.text(*self._edits.lines(line - 1, line - 1)).lstrip()[:1] == "#"
        ):
            line -= 1
        return line


def sentence(why: str) -> str:
    return why[:1].upper() + why[1:]


def _wrapped(comment: str, indent: str) -> str:
    return (
        textwrap.fill(
            comment,
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}# ",
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _runs(
    arguments: Sequence[cst.Arg], dropped: Collection[cst.Arg]
) -> Iterator[tuple[list[cst.Arg], cst.Arg | None, cst.Arg | None]]:
    kept_before, run = None, []
    for argument in (*arguments, None):
        if argument in dropped:
            run.append(argument)
            continue
        if run:
            yield run, kept_before, argument
        kept_before, run = argument, []

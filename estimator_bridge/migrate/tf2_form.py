"""The tf2 form: a program that trains in TensorFlow 2, without the estimator."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TypeAlias

import libcst as cst
from libcst import matchers
from libcst.helpers import get_full_name_for_node

from estimator_bridge import errors
from estimator_bridge.migrate import import_statements, names, tf2_rules
from estimator_bridge.migrate.blockers import Blockers
from estimator_bridge.migrate.comments import Comments, Removal, sentence
from estimator_bridge.migrate.edits import Edits
from estimator_bridge.migrate.import_statements import ImportStatement
from estimator_bridge.migrate.parsed_program import ParsedProgram, code_of
from estimator_bridge.migrate.rewrite_report import Kind, Line, Rewritten
from estimator_bridge.migrate.stock_replacements import is_stock
from estimator_bridge.migrate.tf2_rules import Action, NameRule
from estimator_bridge.settings import quirks

Handler: TypeAlias = Callable[[cst.CSTNode, str, NameRule], None]
"""Takes a name, or the call of a method; its last part; and its rule."""


_SPEC = "EmbeddingConfigSpec"

_OP_NAME = matchers.Attribute(
    matchers.Attribute(attr=matchers.Name("op")), attr=matchers.Name("name")
)


def migrate(source: str, name: str = "the program") -> Rewritten:
    """Returns a program whose `TPUEstimator` is a training loop of TensorFlow 2 in its own source.

    The input functions, columns, the spec and the model_fn stay as they are, but for names of the
    estimator. Code that has no counterpart stays as a comment with the reason.

    Args:
        name: how errors call the program.

    Raises:
        InvalidInput: the source is not Python 3.
        Untranslatable: nothing would be left to train, or it would train something else.
    """
    program = ParsedProgram(source, name)
    if names.is_on_library(program):
        nothing = Line(0, "by hand", "", "", "The program is in the tf2 form already")
        return Rewritten(source, (nothing,))
    edits = Edits(program, source)
    visitor = _RuleVisitor(program, edits)
    program.module.visit(visitor)
    lines = visitor.finish()
    new = edits.apply()
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise errors.Untranslatable(
            f"{name}: the new program would not be valid Python: {error}. Put each import and each "
            "statement on a line of its own, imports at the top."
        ) from error
    return Rewritten(new, tuple(lines))


class _RuleVisitor(cst.CSTVisitor):
    """Applies the rules to the names, methods and arguments of a program, as edits of its text."""

    def __init__(self, program: ParsedProgram, edits: Edits) -> None:
        super().__init__()
        self._program = program
        self._edits = edits
        self._removal = Removal(program)
        self._comments = Comments(program, edits, self._removal)
        self._blockers = Blockers(program, self._removal)
        self._taken = names.names_in(program)
        self._lines: list[tuple[cst.CSTNode, Line]] = []
        self._to_remove: list[tuple[cst.CSTNode, str]] = []
        self._estimators: list[cst.Call] = []
        self._imported: dict[str, set[str]] = {}
        self._of_names: Mapping[Action, Handler] = {
            Action.CALL_ALONE: self._replace_call,
            Action.IMPORT: self._import_name,
            Action.REPORT: lambda node, name, rule: self._say(
                node, "changes", code_of(node), "", sentence(rule.why)
            ),
            Action.UNWRAP: self._unwrap,
            Action.COMMENT_OUT: lambda node, name, rule: self._comment_out(node, rule),
            Action.REFUSE: self._refuse,
        }
        self._of_methods: Mapping[Action, Handler] = {
            Action.EXPORT: self._replace_export,
            Action.CALL: self._call_function,
            Action.REFUSE: self._refuse,
        }

    # Visiting.

    def visit_Import(self, node: ImportStatement) -> bool:
        self._remove_import(node)
        return False

    visit_ImportFrom = visit_Import

    def visit_Call(self, node: cst.Call) -> None:
        if self._removal.is_removed(node):
            return
        name, rule = self._rule_of(node.func)
        if name == tf2_rules.ESTIMATOR:
            self._estimators.append(node)
        if rule is not None and rule.arguments is not None:
            self._leave_out_arguments(node, name, rule)
        if name == _SPEC:
            self._keep_quirks(node)
        of_method = _rule_of_method(node.func)
        if of_method is not None:
            self._of_methods[of_method.action](node, node.func.attr.value, of_method)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if matchers.matches(node, _OP_NAME):
            # Variables of TensorFlow 2 have no op.
            _, start = self._edits.span(node.value.value)
            new = ".name.split(':')[0]"
            self._edits.replace(start, self._edits.span(node)[1], new)
            self._say(node, "name", code_of(node), new)
        rule = _rule_of_method(node)
        parent = self._program.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        if rule is not None and rule.action is Action.CALL and not called:
            self._refuse_alias(node)
        return self._visit_name(node)

    def visit_Name(self, node: cst.Name) -> None:
        self._visit_name(node)

    def _visit_name(self, node: cst.Name | cst.Attribute) -> bool:
        """Applies the rule of a name; returns whether its parts are to be visited."""
        if self._removal.is_removed(node):
            return False
        for full in self._program.imported_names(node):
            rule = tf2_rules.of_name(full)
            if rule is None:
                continue
            above, _, short = full.rpartition(".")
            if rule is tf2_rules.OTHER_STOCK:
                if isinstance(node, cst.Attribute) and is_stock(above):
                    return True  # A part may have a rule: ModeKeys of ModeKeys.TRAIN.
                dotted = self._program.dotted_name_of(node)
                names = self._program.imported_names(dotted)
                rule = rule._replace(why=tf2_rules.stock_reason(names, code_of(dotted)))
                self._comment_out(dotted, rule)
            else:
                self._of_names[rule.action](node, short, rule)
            return False
        return True

    # Actions for names.

    def _import_name(self, node: cst.CSTNode, name: str, rule: NameRule) -> None:
        new = self._imported_as(rule.new or name, rule.module)
        self._edits.replace_node(node, new)
        self._say(node, "name", code_of(node), new)

    def _imported_as(self, name: str, module: str) -> str:
        """Returns the name that a name is imported as from a module."""
        new = names.free_name(name, self._taken)
        self._imported.setdefault(module, set()).add(name if new == name else f"{name} as {new}")
        return new

    def _replace_call(self, node: cst.CSTNode, name: str, rule: NameRule) -> None:
        """Replaces the call that a name is the only argument of."""
        argument = self._program.parent(node)
        call = self._program.parent(argument)
        if not isinstance(call, cst.Call) or len(call.args) != 1 or call.func is node:
            why = f"only a call with it alone can become {rule.new}()"
            self._blockers.add(node, tf2_rules.rule_id(name), why)
            return
        new = f"{self._imported_as(rule.new, rule.module)}()"
        self._edits.replace_node(call, new)
        self._say(call, "name", code_of(call), new)

    def _unwrap(self, node: cst.CSTNode, name: str, rule: NameRule) -> None:
        """Replaces a call by its first argument."""
        call = self._program.parent(node)
        if not isinstance(call, cst.Call) or call.func is not node or not call.args:
            self._import_name(node, name, rule)
            return
        wrapped = call.args[0].value
        statement = self._program.statement_of(node)
        if _rebinds(statement, call, wrapped):
            # Without the call the statement would have no effect.
            block: cst.CSTNode = self._program.parent(statement)
            owner = self._program.parent(block)
            alone = isinstance(owner, cst.If) and len(block.body) == 1 and not owner.orelse
            whole = owner if alone else statement
            self._removal.reasons[whole] = f"{name} is left out: {rule.why}"
            self._removal.harmless.add(whole)
            return
        (start, end), (inner_start, inner_end) = self._edits.span(call), self._edits.span(wrapped)
        self._edits.replace(start, inner_start, "")
        self._edits.replace(inner_end, end, "")
        self._say(node, "left out", code_of(call), code_of(wrapped), sentence(rule.why))

    def _comment_out(self, node: cst.CSTNode, rule: NameRule) -> None:
        # Once all is visited: users of a left-out argument alone are removed with their user.
        reason = f"{get_full_name_for_node(node)} is left out: {rule.why}"
        self._to_remove.append((node, reason))

    def _refuse(self, node: cst.CSTNode, name: str, rule: NameRule) -> None:
        self._blockers.add(node, tf2_rules.rule_id(name), rule.why, rule.way_out)

    def _refuse_alias(self, node: cst.Attribute) -> None:
        """Refuses a method of an optimizer that is passed around, as what it trains is unknown."""
        if all(each.startswith("tensorflow") for each in self._program.imported_names(node)):
            why = "the method is not called where it is named"
            self._blockers.add(node, tf2_rules.rule_id(node.attr.value), why, "Call it there")

    # Arguments.

    def _leave_out_arguments(self, call: cst.Call, name: str, rule: NameRule) -> None:
        """Moves arguments that are not carried into a comment; refuses what cannot be left out."""
        positional = [each for each in call.args if each.keyword is None and not each.star]
        if rule.positional is not None and len(positional) > rule.positional:
            why = (
                f"{name} has {len(positional)} arguments without a name, of which not all are "
                "carried"
            )
            self._blockers.add(call, "arguments-without-names", why, "Write their names")
        for each in call.args:
            if each.keyword is not None and each.keyword.value in rule.refused:
                why = f"{name} without {each.keyword.value} would do something else"
                self._blockers.add(call, tf2_rules.rule_id(name), why)
        self._comments.leave_out_arguments(call, name, rule)

    def _keep_quirks(self, call: cst.Call) -> None:
        """Has a spec keep the numbers of stock."""
        named = {each.keyword.value for each in call.args if each.keyword is not None}
        if call.args and "quirks" not in named:
            self._edits.insert(self._edits.span(call.args[-1])[1], f", {quirks.ARGUMENT}")
            self._say(call, "added", "", quirks.ARGUMENT, quirks.KEPT)

    # Actions for methods.

    def _call_function(self, call: cst.Call, name: str, rule: NameRule) -> None:
        """Makes `function(optimizer, ...)` of a call of an optimizer's method."""
        method = call.func
        # A function of an imported module may have the name of the method.
        if not all(each.startswith("tensorflow") for each in self._program.imported_names(method)):
            return
        new = self._imported_as(rule.new, rule.module)
        start, end = self._edits.span(method.value)
        self._edits.insert(start, f"{new}(")
        self._edits.replace(end, self._edits.span(call.args[0])[0], ", ")
        self._say(call, "name", code_of(method), new)

    def _replace_export(self, call: cst.Call, name: str, rule: NameRule) -> None:
        """Keeps a call that exports a model for predictions; others are commented out."""
        argument, mode = tf2_rules.EXPORTED_MODE
        modes = [each for each in call.args if each.keyword and each.keyword.value == argument]
        if any(not code_of(each.value).endswith(mode) for each in modes):
            self._blockers.add(call, tf2_rules.rule_id(name), rule.why)
            return
        self._leave_out_arguments(call, rule.new, rule)
        if name != rule.new:
            self._edits.replace_node(call.func.attr, rule.new)
            self._say(call, "name", name, rule.new)

    # Imports.

    def _remove_import(self, statement: ImportStatement) -> None:
        """Removes the names of stock from an import statement."""
        imported = import_statements.read(statement)
        kept = {each.full for each in imported if not (each.place or each.by_use)}
        if len(kept) == len({each.full for each in imported}):
            return
        if kept:
            self._edits.replace_node(statement, code_of(import_statements.only(statement, kept)))
        else:
            position = self._program.position(self._program.statement_of(statement))
            self._edits.replace(*self._edits.lines(position.start.line, position.end.line), "")
        self._say(statement, "import", code_of(statement), "")

    # Writing.

    def finish(self) -> list[Line]:
        """Makes the remaining edits, once all is visited; returns the lines of the report.

        Raises:
            Untranslatable: nothing would be left to train, or it would train something else.
        """
        for node, reason in self._to_remove:
            self._removal.remove(node, reason)
        self._check()
        comments = self._comments.write()
        added = self._insert_imports()
        lines = [
            *(line for node, line in self._lines if not self._removal.is_removed(node)),
            *comments,
            *(Line(0, "added", "", each) for each in added),
        ]
        return sorted(lines, key=lambda line: line.line)

    def _check(self) -> None:
        """Raises Untranslatable if nothing is left to train, or it would train something else."""
        if all(map(self._removal.is_removed, self._estimators)):
            reasons = "; ".join(dict.fromkeys(self._removal.reasons.values()))
            raise errors.Untranslatable(
                f"{self._program.name} makes no TPUEstimator that can be carried to TensorFlow 2"
                f"{': ' if reasons else ''}{reasons}. The bridge form of `migrate` is for any "
                "program."
            )
        self._blockers.check()

    def _insert_imports(self) -> list[str]:
        """Inserts the imports that the program needs now; returns them."""
        statements = list(self._program.module.body)
        of_tensorflow = [each for each in statements if import_statements.of_tensorflow(each)]
        if not of_tensorflow:
            raise errors.Untranslatable(f"{self._program.name} imports no TensorFlow.")
        added = [
            import_statements.of_names(module, bound)
            for module, bound in sorted(self._imported.items())
        ]
        lines = "".join(f"{each}\n" for each in added)
        first = statements.index(of_tensorflow[0])
        last = import_statements.last_of_tensorflow(statements, first)
        start = self._edits.line_start(self._program.line(statements[first]))
        if last < first:  # The import is in a block, which may not be run.
            self._edits.insert(start, f"{names.START}{lines}\n")
            return added
        self._edits.insert(start, f"{names.START}\n")
        after = self._edits.line_start(self._program.last_line(statements[last]) + 1)
        self._edits.insert(after, lines)
        return added

    def _rule_of(self, node: cst.CSTNode) -> tuple[str, NameRule | None]:
        """Returns the last part of an imported name that has a rule, and the rule."""
        if isinstance(node, cst.Name | cst.Attribute):
            for full in self._program.imported_names(node):
                rule = tf2_rules.of_name(full)
                if rule is not None:
                    return full.rpartition(".")[2], rule
        return "", None

    def _say(self, node: cst.CSTNode, kind: Kind, old: str, new: str, why: str = "") -> None:
        self._lines.append((node, Line(self._program.line(node), kind, old, new, why)))


def _rule_of_method(node: cst.CSTNode) -> NameRule | None:
    return tf2_rules.METHODS.get(node.attr.value) if isinstance(node, cst.Attribute) else None


def _rebinds(statement: cst.CSTNode, call: cst.Call, wrapped: cst.CSTNode) -> bool:
    """Returns whether a statement assigns a call with a name to that name."""
    assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(assign, cst.Assign) or assign.value is not call:
        return False
    return isinstance(wrapped, cst.Name) and code_of(assign.targets[0].target) == wrapped.value

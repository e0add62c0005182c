"""Applies the rules of the tf2 form to names, and to calls of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import libcst as cst
from libcst.helpers import get_full_name_for_node

from estimator_bridge.migrate.syntax.parsed_program import code_of, keyword_of
from estimator_bridge.migrate.syntax.quoted_names import QuotedName
from estimator_bridge.migrate.syntax.removal import is_pure
from estimator_bridge.migrate.tf2 import tf2_rules
from estimator_bridge.migrate.tf2.comments import sentence
from estimator_bridge.migrate.tf2.tf2_edits import Tf2Edits
from estimator_bridge.migrate.tf2.tf2_rules import Action, NameRule
from estimator_bridge.settings import quirks

_TABLES = "embedding_config_spec"
_OBJECT = "object"
_ADDING = ("add_loss", "add_to_collection")

NameHandler: TypeAlias = Callable[[cst.CSTNode, str, NameRule], None]
"""Handles a node (a name, or the call of a method), given the id of its rule, and the rule."""


class Tf2Actions:
    """Carries out the rules of the tf2 form: one handler for each `Action`."""

    def __init__(self, tf2_edits: Tf2Edits) -> None:
        self._tf2_edits = tf2_edits
        self._program = tf2_edits.program
        self._edits = tf2_edits.edits
        self.to_remove: list[tuple[cst.CSTNode, str, str]] = []
        self.of_names: Mapping[Action, NameHandler] = {
            Action.READ: self._replace_reading,
            Action.IMPORT: self._import_name,
            Action.UNWRAP: self._unwrap,
            Action.UNWRAP_TENSOR: self._unwrap_tensor,
            Action.COMMENT_OUT: self.comment_out,
            Action.DROP: self.comment_out,
            Action.OBJECT: self._replace_by_object,
            Action.REFUSE: self.refuse,
        }
        self.of_methods: Mapping[Action, NameHandler] = {
            Action.EXPORT: self._replace_export,
            Action.CALL: self._call_function,
            Action.FIT: self._fit,
            Action.REFUSE: self.refuse,
        }

    def comment_out(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        # Removal waits until all nodes are visited, because it also removes the code that uses what
        # is left out.
        reason = f"{get_full_name_for_node(node)} is left out: {rule.why}"
        if rule.action is not Action.DROP or not self._drop_from_line(node, reason, rule_id):
            self.to_remove.append((node, reason, rule_id))

    def _drop_from_line(self, node: cst.CSTNode, reason: str, rule_id: str) -> bool:
        statement = self._program.enclosing(node, cst.Expr)
        line = self._program.parent(statement)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) == 1:
            return False
        if (number := line.body.index(statement)) == 0:
            self._edits.replace_node(statement, "pass")
        else:
            before, here = line.body[number - 1 : number + 1]
            self._edits.replace(self._edits.span(before)[1], self._edits.span(here)[1], "")
        self._tf2_edits.say(node, "left out", code_of(statement), "", rule_id, reason)
        return True

    def refuse(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        self._tf2_edits.blockers.add(node, rule_id, rule.why, rule.way_out)

    def leave_out_arguments(self, call: cst.Call, name: str, rule_id: str, rule: NameRule) -> None:
        add = self._tf2_edits.blockers.add
        positional = [each for each in call.args if each.keyword is None and not each.star]
        if rule.positional is not None and len(positional) > rule.positional:
            why = (
                f"{name} has {len(positional)} arguments without a name, and not all of them are "
                "supported"
            )
            add(call, "arguments-without-names", why, "Write their names")
        if any(each.star for each in call.args) and not rule.unpacked:
            why = f"the source does not show the arguments of {name}, and not all are supported"
            add(call, "arguments-unpacked", why, "Write them in the call")
        for each in call.args:
            if keyword_of(each) in rule.refused:
                why = f"{name} without {keyword_of(each)} would do something else"
                add(call, rule_id, why, rule.way_out)
        kept = rule.refused  # they are marked, and fail when they run
        self.leave_out(call, name, lambda key: key not in kept and not rule.carries(key))

    def leave_out(self, call: cst.Call, name: str, is_dropped: Callable[[str], bool]) -> None:
        dropped = [
            each
            for each in call.args
            if (key := keyword_of(each))
            and is_dropped(key)
            and self._tf2_edits.takes(
                call, tf2_rules.argument_rule(key), NameRule(Action.LEAVE_OUT)
            )
        ]
        self._tf2_edits.comments.leave_out_arguments(call, name, dropped)

    def check_partitioner(self, call: cst.Call) -> None:
        by_keyword = {keyword_of(each): code_of(each.value) for each in call.args}
        if by_keyword.get("partitioner", "None") != "None":
            why = "variables of TensorFlow 2 are not partitioned, and would have other names"
            self._tf2_edits.blockers.add(call, "partitioner", why, "Do without the partitioner")

    def keep_quirks(self, call: cst.Call) -> None:
        named = set(map(keyword_of, call.args))
        if call.args and "quirks" not in named and self._tf2_edits.takes_other("keep-quirks"):
            new = self._program.in_its_quotes(quirks.ARGUMENT)
            self._edits.insert(self._edits.span(call.args[-1])[1], f", {new}")
            self._tf2_edits.say(call, "added", "", new, "keep-quirks", quirks.KEPT)

    def replace_quoted(self, node: cst.CSTNode, name: QuotedName, full: str) -> None:
        rule = self._tf2_edits.rule_of(full)
        if rule is None:
            return
        rule = tf2_rules.of_type(full, rule, is_annotation=True)
        if rule.action not in (Action.IMPORT, Action.UNWRAP, Action.OBJECT):
            return
        rule_id = tf2_rules.id_of(full, rule)
        if not self._tf2_edits.takes(node, rule_id, rule):
            return
        new = _OBJECT
        if rule.action is not Action.OBJECT:
            short = rule.new or full.rpartition(".")[2]
            new = self._tf2_edits.import_name(short, rule.module)
        start, _ = self._edits.span(node)
        self._edits.replace(start + name.start, start + name.end, new)
        self._tf2_edits.say(node, "name", name.text, new, rule_id)

    def _replace_by_object(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        self._edits.replace_node(node, _OBJECT)
        self._tf2_edits.say(node, "name", code_of(node), _OBJECT, rule_id)

    def _import_name(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        if rule.arguments is not None and not self._is_called_here(node):
            why = "its arguments change, so it must be called directly"
            way_out = "Call it by its own name, or by a variable that always stands for it"
            self._tf2_edits.blockers.add(node, "called-elsewhere", why, way_out)
            return
        short = self._program.imported_names(node)[0].rpartition(".")[2]
        new = self._tf2_edits.import_name(rule.new or short, rule.module, node)
        self._edits.replace_node(node, new)
        self._tf2_edits.say(node, "name", code_of(node), new, rule_id)

    def _is_called_here(self, node: cst.CSTNode) -> bool:
        parent = self._program.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return True
        if isinstance(parent, cst.Attribute) or self._program.is_followed(node):
            return True
        return self._is_annotation(node) or self._is_tested_for(node)

    def rule_here(self, node: cst.CSTNode, full: str, rule: NameRule) -> NameRule:
        is_annotation = self._is_annotation(node)
        if is_annotation or self._is_tested_for(node):
            return tf2_rules.of_type(full, rule, is_annotation=is_annotation)
        return rule

    def _is_annotation(self, node: cst.CSTNode) -> bool:
        return self._program.enclosing(node, cst.Annotation) is not None

    def _is_tested_for(self, node: cst.CSTNode) -> bool:
        call = self._program.enclosing(node, cst.Call)
        return call is not None and code_of(call.func) in ("isinstance", "issubclass")

    def _replace_reading(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        """Replaces a call that reads the collection `node`; a call that adds to it stays."""
        argument = self._program.parent(node)
        call = self._program.parent(argument)
        if isinstance(call, cst.Call) and code_of(call.func).rpartition(".")[2] in _ADDING:
            return
        if not isinstance(call, cst.Call) or argument not in call.args[:1] or len(call.args) > 2:
            why = f"only a call that reads it can become {rule.new}()"
            self._tf2_edits.blockers.add(node, rule_id, why)
            return
        others = ", ".join(code_of(each) for each in call.args[1:])
        new = f"{self._tf2_edits.import_name(rule.new, rule.module)}({others})"
        self._edits.replace_node(call, new)
        self._tf2_edits.say(call, "name", code_of(call), new, rule_id)

    def _unwrap(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        call = self._program.parent(node)
        # The library itself refuses further arguments that it does not support.
        if not isinstance(call, cst.Call) or call.func is not node or len(call.args) != 1:
            self._import_name(node, rule_id, rule)
            return
        self._replace_by(call, call.args[0].value, rule_id, rule)

    def _unwrap_tensor(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> None:
        call = self._program.parent(node)
        arguments = call.args if isinstance(call, cst.Call) and call.func is node else ()
        for each in arguments:
            if keyword_of(each) == "tensor":
                self._replace_by(call, each.value, rule_id, rule)

    def _replace_by(
        self, call: cst.Call, part: cst.BaseExpression, rule_id: str, rule: NameRule
    ) -> None:
        statement = self._program.statement_of(call)
        if _rebinds(statement, code_of(call.func)):
            # Without the call the statement would have no effect.
            name = code_of(call.func).rpartition(".")[2]
            reason = f"{name} is left out: {rule.why}"
            self._tf2_edits.removal.remove_harmless(statement, reason, rule_id)
            return
        (start, end), (inner_start, inner_end) = self._edits.span(call), self._edits.span(part)
        self._edits.replace(start, inner_start, "")
        self._edits.replace(inner_end, end, "")
        why = sentence(rule.why)
        self._tf2_edits.say(call, "left out", code_of(call), code_of(part), rule_id, why)

    def _call_function(self, call: cst.Call, rule_id: str, rule: NameRule) -> None:
        method = call.func
        # A function of an imported module may have the same name as the method.
        names = self._program.imported_names(method)
        if not all(each.startswith("tensorflow") for each in names):
            return
        if names and self._tf2_edits.rule_of(names[0]) is not None:
            return  # the rule of the function is applied to the name
        new = self._tf2_edits.import_name(rule.new, rule.module, call)
        start, end = self._edits.span(method.value)
        self._edits.insert(start, f"{new}(")
        if call.args:
            self._edits.replace(end, self._edits.span(call.args[0])[0], ", ")
        else:
            self._edits.replace(end, self._edits.span(call)[1], ")")
        self._tf2_edits.say(call, "name", code_of(method), new, rule_id)

    def _fit(self, call: cst.Call, rule_id: str, rule: NameRule) -> None:
        by_name = {keyword_of(each): each for each in call.args if each.keyword is not None}
        is_model = code_of(call.func.value) in self._tf2_edits.models
        has_data = "input_fn" in by_name or (is_model and len(call.args) == len(by_name) + 1)
        if not has_data or any(each.star for each in call.args):
            return  # a `TrainerModel` has methods of these names too
        for old, new in (("input_fn", "x"), ("hooks", "callbacks")):
            if old in by_name and (old != "hooks" or rule.new == "fit"):
                self._edits.replace_node(by_name[old].keyword, new)
        self._edits.replace_node(call.func.attr, rule.new)
        self._tf2_edits.say(call, "name", call.func.attr.value, rule.new, rule_id)

    def _replace_export(self, call: cst.Call, rule_id: str, rule: NameRule) -> None:
        argument, mode = tf2_rules.EXPORTED_MODE
        modes = [each for each in call.args if keyword_of(each) == argument]
        if any(not code_of(each.value).endswith(mode) for each in modes):
            self._tf2_edits.blockers.add(call, rule_id, rule.why)
            return
        self.leave_out_arguments(call, rule.new, rule_id, rule)
        name = call.func.attr.value
        if name != rule.new:
            self._edits.replace_node(call.func.attr, rule.new)
            self._tf2_edits.say(call, "name", name, rule.new, rule_id)


def _rebinds(statement: cst.CSTNode, function: str) -> bool:
    """Whether a statement is like `x = function(x)` or `x, y = function(x), function(y)`."""
    if isinstance(statement, cst.If) and statement.orelse is None and is_pure(statement.test):
        statement = statement.body
    is_line = isinstance(statement, cst.SimpleStatementLine | cst.SimpleStatementSuite)
    return is_line and all(_is_rebinding(each, function) for each in statement.body)


def _is_rebinding(assign: cst.CSTNode, function: str) -> bool:
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    values = (_unwrapped(each, function) for each in _parts(assign.value))
    return [*map(code_of, _parts(assign.targets[0].target))] == [*map(code_of, values)]


def _unwrapped(value: cst.BaseExpression, function: str) -> cst.BaseExpression:
    """Returns x for `function(x)` and for `function(x) if test else x`, otherwise `value`."""
    if isinstance(value, cst.IfExp) and is_pure(value.test):
        body, orelse = (_unwrapped(each, function) for each in (value.body, value.orelse))
        return body if code_of(body) == code_of(orelse) else value
    is_call = isinstance(value, cst.Call) and code_of(value.func) == function
    return value.args[0].value if is_call and len(value.args) == 1 else value


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    several = isinstance(node, cst.Tuple | cst.List)
    return [each.value for each in node.elements] if several else [node]

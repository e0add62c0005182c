"""The tf2 form: a program that trains in TensorFlow 2 without the estimator."""

from __future__ import annotations

import ast

import libcst as cst

from estimator_bridge import errors
from estimator_bridge.migrate import stock_replacements
from estimator_bridge.migrate.blockers import BRIDGE_FORM, Blocker, Refused, trains_unseen
from estimator_bridge.migrate.rewrite_report import Line, Rewritten
from estimator_bridge.migrate.selection import ALL, Selection
from estimator_bridge.migrate.syntax import names, quoted_names
from estimator_bridge.migrate.syntax.edits import Edits
from estimator_bridge.migrate.syntax.import_statements import ImportStatement
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram, code_of, parsed
from estimator_bridge.migrate.tf2 import sparse_core_rules, tf2_imports, tf2_rules, unread_flags
from estimator_bridge.migrate.tf2.tf2_actions import Tf2Actions
from estimator_bridge.migrate.tf2.tf2_edits import Tf2Edits
from estimator_bridge.migrate.tf2.tf2_rules import Action, NameRule
from estimator_bridge.run.stock_names import NAMESPACE

NO_TRAINING = "no-training"

_DIMENSION = "dimension-value"
_SPEC = "EmbeddingConfigSpec"
_CONFIG = "RunConfig"


def migrate(
    source: str,
    name: str = "the program",
    selected: Selection = ALL,
    modules: Modules = ALONE,
    target: str | None = None,
    *,
    keras: bool = False,
) -> Rewritten:
    """Rewrites a program so that a `Trainer` of `tf2_engine.training` replaces its `TPUEstimator`.

    The input functions, columns, spec and model_fn stay as they are, except that names from
    `tf.estimator` are replaced. Code without a counterpart becomes a comment with the reason.

    Args:
        name: the program's name in errors.
        selected: the rules to apply; if some are left out, the program may not run.
        modules: the other modules of the package. One of them may create the TPUEstimator.
        target: "sparsecore" also applies `sparse_core_rules`, for TPUs with SparseCores.
        keras: whether a `TrainerModel` of `tf2_engine.keras` replaces every estimator.

    Raises:
        Refused: nothing would be left to train, or the program would train differently.
    """
    program = parsed(source, name, modules)
    if names.is_on_library(program):
        text = "The program is in the tf2 form already"
        if target is not None:
            text += f"; give its Trainer `{sparse_core_rules.ARITHMETIC}`"
        nothing = Line(0, "note", "", "", text)
        return Rewritten(source, (nothing,))
    edits = Edits(program, source)
    visitor = _RuleVisitor(program, Tf2Edits(program, edits, selected, keras=keras), target)
    program.module.visit(visitor)
    lines, trains = visitor.finish()
    new = edits.apply()
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise errors.Untranslatable(
            f"{name}: the new program would not be valid Python: {error}. Put each import and each "
            "statement on a line of its own, and the imports at the top."
        ) from error
    if modules is ALONE:  # another module may read what this one defines
        lines = sorted([*lines, *unread_flags.unread(source, new)], key=lambda line: line.line)
    return Rewritten(new, tuple(lines), trains)


def no_training(name: str) -> Blocker:
    rule = tf2_rules.OTHERS[NO_TRAINING]
    return Blocker(0, NO_TRAINING, "", f"{name}: {rule.why}", rule.way_out, name)


class _RuleVisitor(cst.CSTVisitor):
    def __init__(
        self, program: ParsedProgram, tf2_edits: Tf2Edits, target: str | None = None
    ) -> None:
        super().__init__()
        self._program = program
        self._tf2_edits = tf2_edits
        self._on_sparse_cores = target == sparse_core_rules.TARGET
        self._actions = Tf2Actions(tf2_edits)
        self._estimators: list[cst.Call] = []
        self._imports: list[ImportStatement] = []

    def visit_Import(self, node: ImportStatement) -> bool:
        self._imports.append(node)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if isinstance(node.names, cst.ImportStar) and tf2_imports.has_stock(self._program, node):
            why = "it imports names of stock, and the source does not show which are used"
            self._tf2_edits.blockers.add(
                node, "imports-star", why, "Import the names that are used"
            )
        return self.visit_Import(node)

    def visit_Call(self, node: cst.Call) -> None:
        if self._tf2_edits.removal.is_removed(node):
            return
        name, rule = self._rule_of(node.func)
        self._visit_estimator(node, name)
        if rule is not None and rule.arguments is not None:
            self._actions.leave_out_arguments(node, name, tf2_rules.rule_id(name), rule)
        if name == _SPEC:
            self._actions.keep_quirks(node)
        if self._on_sparse_cores:
            sparse_core_rules.apply(self._tf2_edits, node, is_trainer=name == tf2_rules.ESTIMATOR)
        self._visit_method(node)
        self._actions.check_partitioner(node)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "replace":
            self._actions.leave_out(node, _CONFIG, tf2_rules.NOT_IN_REPLACE.__contains__)

    def _visit_estimator(self, call: cst.Call, name: str) -> None:
        if name in tf2_rules.ESTIMATORS:
            self._estimators.append(call)
            statement = self._program.parent(call)
            if isinstance(statement, cst.Assign):
                self._tf2_edits.models.update(code_of(each.target) for each in statement.targets)

    def _visit_method(self, node: cst.Call) -> None:
        rule = self._rule_of_method(node.func)
        if rule is not None:
            rule_id = tf2_rules.rule_id(node.func.attr.value)
            if self._tf2_edits.takes(node, rule_id, rule):
                self._actions.of_methods[rule.action](node, rule_id, rule)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if _is_op_name(node) and self._tf2_edits.takes_other("variable-op-name"):
            # Variables have no op in TensorFlow 2.
            edits = self._tf2_edits.edits
            new = self._program.in_its_quotes(".name.split(':')[0]")
            edits.replace(edits.span(node.value.value)[1], edits.span(node)[1], new)
            self._tf2_edits.say(node, "name", code_of(node), new, "variable-op-name")
        if _is_of_dimension(node) and self._tf2_edits.takes_other(_DIMENSION):
            self._replace_value(node)
        rule = self._rule_of_method(node)
        parent = self._program.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        if rule is not None and rule.action is Action.CALL and not called:
            self._refuse_alias(node)
        self._check_setting(node)
        return self._visit_name(node)

    def _replace_value(self, node: cst.Attribute) -> None:
        edits = self._tf2_edits.edits
        function = self._tf2_edits.import_name("dimension_value", "tensorflow.compat.v1", node)
        start, end = edits.span(node.value)
        edits.insert(start, f"{function}(")
        edits.replace(end, edits.span(node)[1], ")")
        self._tf2_edits.say(node, "name", code_of(node), function, _DIMENSION)

    def visit_Name(self, node: cst.Name) -> None:
        self._visit_name(node)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if self._tf2_edits.removal.is_removed(node):
            return
        for name in quoted_names.read(self._program, node):
            for full in name.full_names[:1]:
                self._actions.replace_quoted(node, name, full)
        collection = tf2_rules.COLLECTIONS.get(node.evaluated_value)
        if collection is not None and self._is_read(node):
            rule, rule_id = tf2_rules.TENSORFLOW[collection], tf2_rules.rule_id(collection)
            if self._tf2_edits.takes(node, rule_id, rule):
                self._actions.of_names[rule.action](node, rule_id, rule)

    def _is_read(self, collection: cst.SimpleString) -> bool:
        call = self._program.enclosing(collection, cst.Call)
        full_names = () if call is None else self._program.imported_names(call.func)
        return any(
            stock_replacements.below_tensorflow(full) == "get_collection" for full in full_names
        )

    def _visit_name(self, node: cst.Name | cst.Attribute) -> bool:
        if self._tf2_edits.removal.is_removed(node):
            return False
        for full in self._program.imported_names(node):
            self._check_module(node, full)
            rule = self._tf2_edits.rule_of(full)
            if rule is None:
                continue
            rule = self._actions.rule_here(node, full, rule)
            if rule is tf2_rules.OTHER_STOCK:
                return self._visit_other_stock(node, full, rule)
            rule_id = tf2_rules.id_of(full, rule)
            if self._program.is_alias(node):
                return False  # the rule is applied where the alias is assigned
            if self._tf2_edits.takes(node, rule_id, rule):
                self._actions.of_names[rule.action](node, rule_id, rule)
            return False
        return True

    def _visit_other_stock(self, node: cst.Name | cst.Attribute, full: str, rule: NameRule) -> bool:
        above, _, short = full.rpartition(".")
        if self._program.is_stored(node):
            return False
        if self._program.is_alias(node) and self._tf2_edits.rule_of(above) is not rule:
            return (
                False  # The alias is part of a name whose rule is applied where the alias is made.
            )
        parent = self._program.parent(node)
        is_used = isinstance(parent, cst.Attribute) or (
            isinstance(parent, cst.Call) and parent.func is node
        )
        if short.islower() and not is_used and self._program.is_followed(node):
            self._remove_alias(node)
            return False
        if isinstance(node, cst.Attribute) and stock_replacements.is_stock(above):
            return True  # a part may have a rule: ModeKeys of ModeKeys.TRAIN
        dotted = self._program.dotted_name_of(node)
        full_names = self._program.imported_names(dotted)
        rule = rule._replace(why=tf2_rules.stock_reason(full_names, code_of(dotted)))
        if self._tf2_edits.takes(dotted, "other-stock", rule):
            if dotted is node and stock_replacements.module_of(full) == NAMESPACE:
                # The module is passed around; the bridge's module has the same names.
                new = self._tf2_edits.import_name("estimator", "estimator_bridge")
                self._tf2_edits.edits.replace_node(dotted, new)
            elif not self._tf2_edits.keras:
                self._actions.comment_out(dotted, "other-stock", rule)
            else:
                self._actions.refuse(dotted, "other-stock", rule)
        return False

    def _remove_alias(self, node: cst.CSTNode) -> None:
        if not isinstance(self._program.parent(node), cst.Assign | cst.AnnAssign):
            self._tf2_edits.edits.replace_node(node, "None")
            why = "Its names are imported where they are used"
            self._tf2_edits.say(node, "name", code_of(node), "None", "import-stock", why)
            return
        reason = f"{code_of(node)} is left out: its names are imported where they are used"
        statement = self._program.statement_of(node)
        self._tf2_edits.removal.remove_harmless(statement, reason, "import-stock")

    def _check_module(self, node: cst.CSTNode, full: str) -> None:
        below = stock_replacements.below_tensorflow(full)
        parent = self._program.parent(node)
        if below not in ("tpu", "tpu.experimental"):
            return
        if isinstance(parent, cst.Attribute | cst.AssignTarget) or self._program.is_followed(node):
            return
        call = self._program.parent(parent)
        if isinstance(call, cst.Call) and code_of(call.func) == "hasattr":
            return
        why = "the module is passed around, so that it is not known which names are used"
        self._tf2_edits.blockers.add(node, "called-elsewhere", why, "Write the module's full name")

    def _refuse_alias(self, node: cst.Attribute) -> None:
        if all(each.startswith("tensorflow") for each in self._program.imported_names(node)):
            why = "the method is not called directly"
            rule_id = tf2_rules.rule_id(node.attr.value)
            self._tf2_edits.blockers.add(node, rule_id, why, "Call it directly")

    def _check_setting(self, node: cst.Attribute) -> None:
        owner = getattr(node.value, "attr", node.value)
        rule = tf2_rules.NOT_IN_CONFIG.get(f"config.{node.attr.value}")
        named = isinstance(owner, cst.Name) and owner.value.lower().endswith("config")
        if rule is not None and named and not self._program.imported_names(node):
            rule_id = tf2_rules.rule_id(f"config.{node.attr.value}")
            self._actions.refuse(node, rule_id, rule)

    def finish(self) -> tuple[list[Line], bool]:
        """Makes the last edits; returns the report, and whether a TPUEstimator was replaced.

        Raises Refused if nothing would be left to train, or training would differ.
        """
        tf2_edits = self._tf2_edits
        for node, reason, rule_id in self._actions.to_remove:
            tf2_edits.removal.remove(node, reason, rule_id)
        if tf2_edits.removal.reasons or tf2_edits.removal.arguments:
            tf2_edits.removal.remove_dead()
            tf2_edits.removal.collapse()
        trains = not all(map(tf2_edits.removal.is_removed, self._estimators))
        self._check(trains)
        if tf2_edits.takes_other("import-stock"):
            for statement in self._imports:
                tf2_imports.remove(tf2_edits, statement)
        comments = tf2_edits.comments.write()
        lines = [*tf2_edits.lines(), *comments]
        if lines or self._uses_keras():
            added = tf2_imports.insert(tf2_edits)
            lines += [Line(0, "added", "", each) for each in added]
        return sorted(lines, key=lambda line: line.line), trains

    def _check(self, trains: bool) -> None:
        blockers = self._tf2_edits.blockers.listed()
        name = self._program.name
        if blockers and self._tf2_edits.keras:
            raise Refused(name, blockers)
        if not trains and self._program.modules is ALONE:
            removal = self._tf2_edits.removal
            kept = {
                each: why for each, why in removal.reasons.items() if each not in removal.harmless
            }
            reasons = "; ".join(dict.fromkeys(kept.values()))
            why = (
                f"{name} creates no TPUEstimator that can be migrated to TensorFlow 2"
                f"{': ' if reasons else ''}{reasons}"
            )
            blockers.append(Blocker(0, "no-estimator", "", why, BRIDGE_FORM, name))
        elif self._program.modules is ALONE and self._trains_unseen():
            blockers.append(no_training(name))
        if any(each.stops or self._tf2_edits.keras for each in blockers):
            raise Refused(name, blockers)
        for statement, blocker in self._tf2_edits.blockers.marks():
            self._tf2_edits.comments.mark(statement, blocker)

    def _trains_unseen(self) -> bool:
        code = self._program.source
        return trains_unseen([code]) and (_SPEC in code or "embedding_config_spec" in code)

    def _rule_of_method(self, node: cst.CSTNode) -> NameRule | None:
        if not isinstance(node, cst.Attribute):
            return None
        return tf2_rules.of_method(node.attr.value, keras=self._tf2_edits.keras)

    def _uses_keras(self) -> bool:
        attributes = self._program.find(cst.Attribute)
        return any(each.attr.value in ("keras", "layers") for each in attributes)

    def _rule_of(self, node: cst.CSTNode) -> tuple[str, NameRule | None]:
        if isinstance(node, cst.Name | cst.Attribute):
            for full in self._program.imported_names(node):
                rule = self._tf2_edits.rule_of(full)
                if rule is not None:
                    return full.rpartition(".")[2], rule
        return "", None


def _is_of_dimension(node: cst.Attribute) -> bool:
    if node.attr.value != "value" or not isinstance(node.value, cst.Subscript):
        return False
    of = code_of(node.value.value).removesuffix(".dims")
    return of.endswith((".shape", ".get_shape()")) or of in ("shape", "input_shape")


def _is_op_name(node: cst.Attribute) -> bool:
    of_op = isinstance(node.value, cst.Attribute) and node.value.attr.value == "op"
    return of_op and node.attr.value == "name"

"""The second form: a program that trains in TensorFlow 2, without the estimator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from estimator_bridge import errors
from estimator_bridge.migrate import added, carried, imports
from estimator_bridge.migrate.edits import Edits, in_comment, one_line, runs
from estimator_bridge.migrate.names import below_tensorflow, is_stock, place_of, refusal_of
from estimator_bridge.migrate.removal import Removal
from estimator_bridge.migrate.report import HONOURED, Line, Rewritten

_MARK = "# estimator-bridge: "
_GRADIENTS = carried.REFUSED["gradients"]


def migrate(source: str, name: str = "the program") -> Rewritten:
    """Returns a program whose `TPUEstimator` is a training loop of TensorFlow 2 in its own source.

    The input functions, columns, the spec and the model_fn stay as they are, but for names of the
    estimator. What has no counterpart stays under a comment with the reason.

    Args:
        name: what errors call it.

    Raises:
        InvalidInput: it is no Python 3.
        Untranslatable: nothing would be left to train, or it would train something else.
    """
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise errors.InvalidInput(f"{name} is no Python 3: {error}.") from error
    reader = _Reader(wrapper, source, name)
    wrapper.visit(reader)
    assert reader.made is not None
    return reader.made


class _Reader(cst.CSTVisitor):
    """Finds what is to be done, as edits of the text."""

    METADATA_DEPENDENCIES = (
        metadata.QualifiedNameProvider,
        metadata.PositionProvider,
        metadata.ScopeProvider,
    )

    def __init__(self, wrapper: metadata.MetadataWrapper, source: str, name: str) -> None:
        super().__init__()
        self._name = name
        self._module = wrapper.module
        self._edits = Edits(source)
        self._removal = Removal(wrapper)
        self._said: list[tuple[Any, Line]] = []
        self._left_out: list[tuple[Any, str, str]] = []
        self._to_remove: list[tuple[Any, str]] = []
        self._estimators: list[Any] = []
        self._refused: list[tuple[Any, str]] = []
        self._comments: dict[Any, str] = {}
        self._imported: set[tuple[str, str]] = set()
        self._exporting: list[Any] = []
        self._early = False
        self.made: Rewritten | None = None
        self._added = added.free_names(wrapper)

    # What is found.

    def visit_Import(self, node: cst.Import) -> bool:
        self._import(node)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self._import(node)
        return False

    def visit_Call(self, node: cst.Call) -> None:
        if self._removal.is_gone(node):
            return
        old = self._stock_name(node.func)
        if old in carried.ARGUMENTS:
            self._leave_out(node, old, carried.ARGUMENTS[old])
        if old == "TPUEstimator":
            self._estimators.append(node)
        if not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        if method in carried.METHODS:
            self._remove(node.func, carried.METHODS[method])
        elif method in carried.REFUSED_METHODS:
            self._refused.append((node, _GRADIENTS))
        elif method in ("train", "evaluate", "predict"):
            taken = tuple(
                argument.keyword.value
                for argument in node.args
                if argument.keyword and argument.keyword.value not in carried.METHOD_ARGUMENTS
            )
            self._leave_out(node, method, taken)
        elif method in carried.EXPORTS:
            self._export(node, node.func)
        elif method == "minimize" and self._is_optimizer(node.func):
            start, end = self._span(node.func.value)
            self._edits.replace(start, start, f"{self._added['minimize']}(")
            self._edits.replace(end, self._span(node.args[0])[0], ", ")
            self._say(node, "name", one_line(node.func), self._added["minimize"])

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if isinstance(node.value, cst.Attribute) and (node.attr.value, node.value.attr.value) == (
            "name",
            "op",
        ):
            # Variables of TensorFlow 2 have no op.
            _, start = self._span(node.value.value)
            self._edits.replace(start, self._span(node)[1], ".name.split(':')[0]")
            self._say(node, "name", one_line(node), ".name.split(':')[0]")
        if node.attr.value in carried.EXPORTS:
            self._exporting.append(node)
        return self._reference(node)

    def visit_Name(self, node: cst.Name) -> None:
        self._reference(node)

    def _reference(self, node: Any) -> bool:
        """Handles a name; returns whether its parts are to be looked at."""
        if self._removal.is_gone(node):
            return False
        for full in self._qualified(node):
            short = full.rpartition(".")[2]
            if full.endswith("cluster_resolver.TPUClusterResolver"):
                return False
            if below_tensorflow(full) in carried.OF_TF1:
                self._remove(node, carried.OF_TF1[below_tensorflow(full)])
                return False
            if below_tensorflow(full) in carried.REFUSED:
                self._refused.append((node, carried.REFUSED[below_tensorflow(full)]))
                return False
            if below_tensorflow(full) in carried.CHANGED:
                why = carried.CHANGED[below_tensorflow(full)]
                self._say(node, "changes", one_line(node), "", _sentence(why))
                return False
            if short == "CrossShardOptimizer":
                self._cross_shard(node)
                return False
            if not is_stock(full):
                continue
            place = place_of(full)
            if short in carried.REPLACED:
                name = carried.REPLACED[short]
                new = self._added[name]
                if name in added.of_exports():
                    self._exporting.append(node)
                self._early = self._early or self._removal.is_at_top(node)
            elif short == carried.SPEC[1]:
                new = short
                self._imported.add(carried.SPEC)
            elif place is not None and place.module in carried.KEPT:
                new = short
                self._imported.add((place.module, short))
            elif isinstance(node, cst.Attribute) and is_stock(full.rpartition(".")[0]):
                return True  # A part of it may have a place: ModeKeys of ModeKeys.TRAIN.
            else:
                whole = self._removal.whole(node)
                self._remove(whole, self._reason(whole))
                return False
            self._edits.replace(*self._span(node), new)
            self._say(node, "name", one_line(node), new)
            return False
        return True

    def _cross_shard(self, node: Any) -> None:
        """Takes away what sums gradients over cores: a strategy does."""
        why = "the strategy adds the gradients of its replicas"
        call = self._removal.call_of(node)
        statement = self._removal.statement_of(node)
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        wrapped = call.args[0].value if call is not None and call.args else None
        if (
            isinstance(assign, cst.Assign)
            and assign.value is call
            and isinstance(wrapped, cst.Name)
            and one_line(assign.targets[0].target) == wrapped.value
        ):
            owner = self._removal.owner(statement)
            alone = len(self._removal.block_of(statement).body) == 1
            whole = owner if isinstance(owner, cst.If) and alone and not owner.orelse else statement
            # What it binds is bound before, to the same but for the sum.
            self._removal.reasons[whole] = f"CrossShardOptimizer is left out: {why}"
            return
        if wrapped is None:
            self._remove(node, why)
            return
        (start, end), (inner, after) = self._span(call), self._span(wrapped)
        self._edits.replace(start, inner, "")
        self._edits.replace(after, end, "")
        self._say(node, "left out", one_line(call), one_line(wrapped), _sentence(why))

    def _leave_out(self, call: cst.Call, old: str, taken: tuple[str, ...]) -> None:
        """Leaves out arguments of a call that have no counterpart; they go into a comment."""
        positional = [each for each in call.args if each.keyword is None]
        if old in carried.POSITIONAL and len(positional) > carried.POSITIONAL[old]:
            raise errors.Untranslatable(
                f"{self._name}, line {self._line(call)}: {old} has {len(positional)} arguments "
                "without a name, of which not all are carried. Write their names."
            )
        gone = [each for each in call.args if each.keyword and each.keyword.value not in taken]
        if not gone:
            return
        statement = self._removal.statement_of(call)
        for first, last, kept_before, kept_after in runs(call.args, gone):
            alone = kept_before is None or kept_after is not None
            start = self._span(first)[0] if alone else self._span(kept_before)[1]
            end = self._span(kept_after)[0] if kept_after else self._span(last)[1]
            self._edits.replace(start, end, "")
            around = self._edits.text(start, end)
            for argument in gone:
                around = around.replace(self._edits.text(*self._span(argument)), "")
            for comment in re.findall(r"#[^\r\n]*", around):
                self._comments[statement] = self._comments.get(statement, "") + (
                    f"{' ' * self._indent(statement)}{comment}\n"
                )
        for argument in gone:
            self._removal.bury(argument)
            assert argument.keyword is not None
            key = argument.keyword.value
            why = carried.ARGUMENT_REASONS.get(key, carried.NO_COUNTERPART)
            text = self._edits.text(*self._span(argument))
            self._left_out.append((argument, text.splitlines()[0], _sentence(why)))
            self._comment(statement, f"{old}({key}) is left out: {why}.", text)

    def _export(self, call: cst.Call, method: cst.Attribute) -> None:
        """Handles a call that exports a model: for predictions it stays."""
        argument, mode, why = carried.MODE_OF_EXPORT
        modes = [each for each in call.args if each.keyword and each.keyword.value == argument]
        if any(not one_line(each.value).endswith(mode) for each in modes):
            self._remove(method, why)
            return
        new = carried.EXPORTS[0]
        self._leave_out(call, new, carried.ARGUMENTS[new])
        if method.attr.value != new:
            self._edits.replace(*self._span(method.attr), new)
            self._say(call, "name", method.attr.value, new)

    def _comment(self, statement: Any, why: str, text: str) -> None:
        indent = self._indent(statement)
        self._comments[statement] = (
            self._comments.get(statement, "")
            + f"{' ' * indent}{_MARK}{why}\n"
            + in_comment(text, indent)
        )

    def _remove(self, node: Any, why: str) -> None:
        # Later: what only a left-out argument uses falls without its user.
        self._to_remove.append((node, f"{get_full_name_for_node(node)} is left out: {why}"))

    def _import(self, node: Any) -> None:
        found = imports.read(node)
        stock = [each for each in found if each.place is not None or each.by_use]
        stock = [each for each in stock if not each.full.endswith("TPUClusterResolver")]
        if not stock:
            return
        statement = self._removal.statement_of(node)
        if len(stock) < len(found):
            rest = {each.full for each in found if each not in stock}
            self._edits.replace(*self._span(node), one_line(imports.only(node, rest)))
        else:
            position = self.get_metadata(metadata.PositionProvider, statement)
            start = self._edits.line_start(position.start.line)
            self._edits.replace(start, self._edits.line_start(position.end.line + 1), "")
        self._say(node, "import", one_line(node), "")

    # What is made of it.

    def leave_Module(self, original_node: cst.Module) -> None:
        for node, why in self._to_remove:
            self._removal.remove(node, why)
        self._check()
        kept = [each for each in self._comments if not self._removal.is_gone(each)]
        for statement in kept:
            start = self._edits.line_start(self._line(statement))
            self._insert_at(start, self._comments[statement])
        lines = [line for node, line in self._said if not self._removal.is_gone(node)]
        for argument, text, why in self._left_out:
            lines.append(Line(self._line(argument), "left out", text, "", why))
        lines += self._comment_out()
        self._insert()
        lines += [Line(0, "added", "", "Trainer", "Model, strategy, loop, checkpoints"), HONOURED]
        lines.sort(key=lambda each: each.line)
        source = self._edits.apply()
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise errors.Untranslatable(
                f"{self._name}: what would be written is no Python: {error}. Put each import and "
                "each statement on a line of its own, imports at the top."
            ) from error
        self.made = Rewritten(source, tuple(lines))

    def _check(self) -> None:
        """Raises Untranslatable if nothing is left to train, or it would train something else."""
        if not [each for each in self._estimators if not self._removal.is_gone(each)]:
            reasons = "; ".join(dict.fromkeys(self._removal.reasons.values()))
            raise errors.Untranslatable(
                f"{self._name} makes no TPUEstimator that can be carried to TensorFlow 2"
                f"{': ' if reasons else ''}{reasons}. The first form of `migrate` is for any "
                "program."
            )
        for node, why in self._refused:
            if not self._removal.is_gone(node):
                name = one_line(getattr(node, "func", node))
                raise errors.Untranslatable(
                    f"{self._name}, line {self._line(node)}: {name} cannot be carried to "
                    f"TensorFlow 2: {why}. Do without it, or migrate to the first form."
                )

    def _comment_out(self) -> Iterator[Line]:
        """Puts what cannot be carried under comments; yields a line for each."""
        blocks: dict[Any, list[Any]] = {}
        for statement, why in self._removal.reasons.items():
            position = self.get_metadata(metadata.PositionProvider, statement)
            column = position.start.column
            decorators = getattr(statement, "decorators", ())
            first = min([position.start.line, *map(self._line, decorators)])
            last = self._last_line(statement)
            start, end = self._edits.line_start(first), self._edits.line_start(last + 1)
            text = (
                f"{' ' * column}{_MARK}{why}.\n{in_comment(self._edits.text(start, end), column)}"
            )
            block = self._removal.block_of(statement)
            blocks.setdefault(block, []).append(statement)
            if len(blocks[block]) == len(block.body) and not isinstance(block, cst.Module):
                text += f"{' ' * column}pass\n"
            self._edits.replace(start, end, text)
            yield Line(first, "left out", _first_line(statement), "", why)

    def _last_line(self, statement: Any) -> int:
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock) and not getattr(statement, "orelse", None):
            return max(self._last_line(each) for each in body.body)
        return int(self.get_metadata(metadata.PositionProvider, statement).end.line)

    def _insert(self) -> None:
        """Puts in the training loop and what it needs."""
        exports = any(not self._removal.is_gone(each) for each in self._exporting)
        head, body = added.program(self._added, exports=exports)
        own = {one_line(each) for each in self._module.body}
        head = "".join(f"{line}\n" for line in head.splitlines() if line not in own)
        by_module: dict[str, list[str]] = {}
        for module, name in sorted(self._imported):
            by_module.setdefault(module, []).append(name)
        head += "".join(f"from {m} import {', '.join(names)}\n" for m, names in by_module.items())
        statements = list(self._module.body)
        of_tf = [each for each in statements if imports.of_tensorflow(each)]
        if not of_tf:
            raise errors.Untranslatable(f"{self._name} imports no TensorFlow.")
        start = self._edits.line_start(self._line(of_tf[0]))
        self._insert_at(start, f"{added.START}\n")
        after = self._edits.line_start(self._last_line(of_tf[-1]) + 1)
        self._insert_at(after, head)
        if self._early:
            self._insert_at(after, f"\n\n{body}")
        else:
            self._insert_at(self._before_main(statements), f"{body}\n\n")

    def _before_main(self, statements: list[Any]) -> int:
        """Returns where `if __name__ == ...` begins, or the end."""
        for each in statements:
            if isinstance(each, cst.If) and "__name__" in one_line(each.test):
                return self._edits.line_start(self._line(each))
        return self._edits.line_start(self._last_line(statements[-1]) + 1)

    def _insert_at(self, where: int, text: str) -> None:
        self._edits.replace(where, where, text)

    # What nodes are.

    def _is_optimizer(self, method: Any) -> bool:
        """Returns whether a method may be of an optimizer: not of an imported module."""
        return all(name.startswith("tensorflow") for name in self._qualified(method))

    def _stock_name(self, node: Any) -> str:
        """Returns the last part of a name of stock's estimator; "" for other nodes."""
        if not isinstance(node, cst.Name | cst.Attribute):
            return ""
        for full in self._qualified(node):
            if is_stock(full):
                return full.rpartition(".")[2]
        return ""

    def _reason(self, node: Any) -> str:
        for full in self._qualified(node):
            why = refusal_of(full)
            if why is not None:
                return why
        parts = one_line(node).split(".")
        found = (carried.NAME_REASONS[part] for part in parts if part in carried.NAME_REASONS)
        return next(found, carried.NO_COUNTERPART)

    def _qualified(self, node: Any) -> list[str]:
        found = self.get_metadata(metadata.QualifiedNameProvider, node, ())
        return sorted(
            each.name for each in found if each.source is metadata.QualifiedNameSource.IMPORT
        )

    def _span(self, node: Any) -> tuple[int, int]:
        position = self.get_metadata(metadata.PositionProvider, node)
        return self._edits.offset(position.start), self._edits.offset(position.end)

    def _line(self, node: Any) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)

    def _indent(self, node: Any) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.column)

    def _say(self, node: Any, kind: str, old: str, new: str, why: str = "") -> None:
        self._said.append((node, Line(self._line(node), kind, old, new, why)))


def _sentence(why: str) -> str:
    return why[:1].upper() + why[1:]


def _first_line(statement: Any) -> str:
    return cst.Module([]).code_for_node(statement.with_changes(leading_lines=[])).splitlines()[0]

"""The rules of `--target sparsecore`: settings that SparseCores lack or treat differently."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping

import libcst as cst

from estimator_bridge.migrate.syntax.parsed_program import code_of, keyword_of
from estimator_bridge.migrate.tf2.tf2_edits import Tf2Edits
from estimator_bridge.migrate.tf2.tf2_rules import Action, NameRule
from estimator_bridge.settings.catalogue import ROWS, readers
from estimator_bridge.settings.row import is_set
from estimator_bridge.translation import on_sparse_cores
from tf2_engine.types import Object

TARGET = "sparsecore"

ARITHMETIC = f"arithmetic={TARGET!r}"
"""The argument that makes a `Trainer` compute as SparseCores do."""

_COMPUTED = object()  # stands for a value that is known only at run time
_COLUMNS = ("embedding_column", "shared_embedding_columns")

_REFUSED = (*on_sparse_cores.RAISING, "adam_not_lazy", "gradient_limits")
_REPORTED: Mapping[str, tuple[Action, str]] = {
    "no_gradient_accumulation": (
        Action.REPORT,
        "SparseCores ignore it, and so does the new program: a row is updated once in a step, with "
        "the sum of its gradients; with SGD the numbers are the same up to rounding",
    ),
    "pipelining": (
        Action.REPORT,
        "on a host lookups miss the update of the step before, as on the first generation; on "
        "SparseCores they see it, since only the TPU's compiler can overlap steps",
    ),
    "weight_limits": (Action.OTHER, f"it is {on_sparse_cores.KEPT['weight_limits']}"),
    "sequence": (Action.OTHER, f"it is {on_sparse_cores.KEPT['sequence']}"),
}
"""Settings that stay in the program: the action and the remark for each row of the catalogue."""

_ADDED, _LATER = "sparsecore-arithmetic", "sparsecore-computed"


def _rule_id(row: str) -> str:
    return f"{TARGET}-{row.replace('_', '-')}"


def _refusal(row: str) -> NameRule:
    outcome, effect, way_out = ROWS[row].sparse_core
    raised = "stock's TPUEmbeddingV2 raises: " if outcome == "raises" else ""
    way_out = f"{way_out[:1].upper()}{way_out[1:]}"
    return NameRule(Action.REFUSE, f"on SparseCores {raised}{effect}", way_out=way_out)


RULES: Mapping[str, NameRule] = {
    _ADDED: NameRule(
        Action.ADD,
        f"`Trainer` gets `{ARITHMETIC}`: the numbers of the TPU v5p, v6e and TPU7x, on a host too",
    ),
    _LATER: NameRule(
        Action.LOOK,
        "its value is known only when the program runs; the Trainer then refuses what SparseCores "
        "lack",
    ),
    **{_rule_id(row): _refusal(row) for row in _REFUSED},
    **{_rule_id(row): NameRule(action, why) for row, (action, why) in _REPORTED.items()},
}
"""The rules by id. They are applied in addition to the rules of the tf2 form."""


def apply(tf2_edits: Tf2Edits, call: cst.Call, *, is_trainer: bool) -> None:
    """Refuses settings of a call that SparseCores lack, and reports those they treat differently.

    A call that creates a Trainer also gets the argument for SparseCore arithmetic.
    """
    if is_trainer:
        _add_arithmetic(tf2_edits, call)
    full = next(iter(tf2_edits.program.imported_names(call.func)), code_of(call.func))
    *above, name = full.split(".")
    owners: tuple[str, ...] = (name,)
    if name in _COLUMNS and "tpu" in above:
        owners = ("TableConfig", "FeatureConfig", name)
    for row in _REFUSED:
        if name in ROWS[row].calls:
            _apply(tf2_edits, call, row, name)
    if any(each.star == "**" for each in call.args) and _is_read(owners):
        _say(tf2_edits, call, _LATER, code_of(call))
    for setting, node in _arguments(call, name):
        _check(tf2_edits, owners, setting, node)


def _add_arithmetic(tf2_edits: Tf2Edits, call: cst.Call) -> None:
    for each in call.args:
        is_spec = keyword_of(each) == "embedding_config_spec"
        if is_spec and tf2_edits.takes(call, _ADDED, RULES[_ADDED]):
            tf2_edits.edits.insert(tf2_edits.edits.span(each)[1], f", {ARITHMETIC}")
            why = "The numbers of SparseCores, on a host too"
            tf2_edits.say(each, "added", "", ARITHMETIC, _ADDED, why)


def _check(tf2_edits: Tf2Edits, owners: tuple[str, ...], setting: str, node: cst.CSTNode) -> None:
    value = _value(node)
    for row, when in (each for owner in owners for each in readers(owner, setting)):
        if when is None or row not in (*_REFUSED, *_REPORTED):
            continue
        if row == "sequence" and value == 0:
            continue  # this value turns the setting off
        is_known = value is not _COMPUTED or (when is is_set and row in _REPORTED)
        shown = f"{setting}={code_of(node)}"
        if not is_known:
            _say(tf2_edits, node, _LATER, shown)
        elif when(value):
            _apply(tf2_edits, node, row, shown)


def _apply(tf2_edits: Tf2Edits, node: cst.CSTNode, row: str, shown: str) -> None:
    rule_id = _rule_id(row)
    rule = RULES[rule_id]
    if rule.action is Action.REFUSE:
        tf2_edits.blockers.add(node, rule_id, rule.why, rule.way_out, shown)
    else:
        _say(tf2_edits, node, rule_id, shown)


def _say(tf2_edits: Tf2Edits, node: cst.CSTNode, rule_id: str, shown: str) -> None:
    rule = RULES[rule_id]
    if tf2_edits.takes(node, rule_id, rule):
        tf2_edits.say(node, "changes", shown, "", rule_id, f"{rule.why[:1].upper()}{rule.why[1:]}")


def _arguments(call: cst.Call, name: str) -> Iterator[tuple[str, cst.CSTNode]]:
    # These classes derive from TensorFlow's, which take five seconds to load.
    from estimator_bridge.legacy import parameters

    of_class = getattr(parameters, name, None) if name.endswith("Parameters") else None
    names = [each.name for each in dataclasses.fields(of_class)] if of_class is not None else []
    for position, each in enumerate(call.args):
        if each.keyword is not None:
            yield keyword_of(each), each.value
        elif not each.star and position < len(names):
            yield names[position], each.value


def _is_read(owners: tuple[str, ...]) -> bool:
    reads = {
        field.partition(".")[0] for row in (*_REFUSED, *_REPORTED) for field in ROWS[row].reads
    }
    return any(owner in reads or owner.endswith("Parameters") for owner in owners)


def _value(node: cst.CSTNode) -> Object:
    try:
        return ast.literal_eval(code_of(node))
    except (ValueError, SyntaxError):
        return _COMPUTED

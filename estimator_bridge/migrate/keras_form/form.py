"""Rewrites a program in the Keras form, or lists everything that prevents it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.keras_form import canned_estimators, rules
from estimator_bridge.migrate.keras_form.call_sites import sites, table_configs
from estimator_bridge.migrate.keras_form.call_sites.method_calls import CallWriter
from estimator_bridge.migrate.keras_form.canned_form import canned_site
from estimator_bridge.migrate.keras_form.model_class import (
    layers,
    models,
    optimizer_code,
)
from estimator_bridge.migrate.keras_form.program_text import (
    leftovers,
    long_lines,
    program_checks,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    Text,
    is_docstring,
    nodes_in,
)
from estimator_bridge.migrate.keras_form.straight import straightening
from estimator_bridge.migrate.rewrite_report import Line, Rewritten
from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax import import_statements
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.migrate.syntax.parsed_program import check_source

_V1 = ("disable_v2_behavior", "disable_eager_execution", "enable_eager_execution")
_FUTURE = {"absolute_import", "division", "print_function"}
_MODES = {"TRAIN": "train", "EVAL": "eval", "PREDICT": "infer"}
"""The strings that replace the members of ModeKeys."""


_OF_ESTIMATORS = frozenset(
    (
        *(
            "Estimator",
            "TPUEstimator",
            "RunConfig",
            "TPUConfig",
            "EmbeddingConfigSpec",
            "TrainSpec",
        ),
        *("EvalSpec", "train_and_evaluate", "TPUEstimatorSpec", "EstimatorSpec", "PredictOutput"),
        *("ClassificationOutput", "RegressionOutput", "FinalExporter", "LatestExporter"),
        *("BestExporter", *canned_estimators.CLASSES, *canned_estimators.NOT_CARRIED),
    )
)


def migrate_to_keras(
    source: str, name: str = "the program", target: str | None = None
) -> Rewritten:
    """Rewrites a program so that it trains a `keras.Model` with `tf2_engine.keras`.

    Args:
        name: the program's name in errors.
        target: "sparsecore" writes a program with SparseCore arithmetic. On a TPU, this program
            builds the tables for its batch size. Settings that SparseCores lack are not refused
            here.

    Raises:
        Untranslatable: the model_fn is too complicated to become a class, parts of the program
            cannot be carried over, or a `target` is given and the program has no tables.
    """
    check_source(source, name)
    if _is_keras_form(Source(source, name)):
        done = Line(0, "note", "", "", "The program is in the Keras form already")
        return Rewritten(source, (done,))
    source = _without_tabs(source)
    straight = straightening.straight(source, name)
    try:
        return _written(source, name, straight, target)
    except NotSimple as reason:
        raise _not_simple(name, reason) from reason


def _not_simple(name: str, reason: NotSimple) -> Refused:
    why = f"its model_fn does not become a class of Keras: {reason}"
    way_out = "Simplify it there, or migrate to the tf2 form"
    blocker = Blocker(reason.line, "keras-model-fn", "", why, way_out, name)
    return Refused(name, [blocker], "the Keras form")


def _written(
    source: str, name: str, straight: straightening.Straight, target: str | None
) -> Rewritten:
    program = Source(straight.text, name, straight.lines)
    site = sites.find(program)
    if site is None:
        program.check()
        raise errors.Untranslatable(f"{name} creates no TPUEstimator.")
    is_canned = site.canned is not None
    if target is not None and is_canned:
        raise errors.Untranslatable(
            f"{name} makes a canned estimator, which has no tables, and --target {target} is for "
            "tables. Leave --target out."
        )
    text = _of_canned(program, site) if is_canned else _of_tables(program, site, target)
    program.check()
    new, flags = leftovers.left_out(text(), source)
    new = long_lines.broken(new, {*lines_of(source)})
    new = _tidy(_with_imports(new, program.needed))
    program_checks.check(new, program)
    program.notes += [(0, leftovers.note(flags))] if flags else []
    lines = (
        Line(line, "left out", "", "", f"{why[:1].upper()}{why[1:]}")
        for line, why in sorted((program.old_line(line), why) for line, why in program.notes)
    )
    return Rewritten(new, tuple(lines), flags=flags)


def _without_tabs(source: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = {
        line
        for each in tokens
        if each.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        for line in range(each.start[0] + 1, each.end[0] + 1)
    }
    return "".join(
        line
        if number in texts
        else re.sub(r"^[\t ]+", lambda tabs: tabs[0].replace("\t", "    "), line)
        for number, line in enumerate(lines_of(source), 1)
    )


def _of_tables(program: Source, site: sites.Site, target: str | None) -> Text:
    calls = CallWriter(program, site)
    root, model = models.write(program, site, target)
    calls.write()
    table_configs.write(program)
    gone = [*model.functions, *model.left_out]
    _apply_rules(program, model.left_out)

    def text() -> str:
        class_text = model.text()
        for function in gone:
            if root not in program.above(function):
                program.drop(function)
                _trailing_blank(program, function)
        program.replace_span(*program.lines(root), class_text)
        return _finished(program)

    return text


def _of_canned(program: Source, site: sites.Site) -> Text:
    model = canned_site.write(program, site)
    CallWriter(program, site).write()
    _apply_rules(program)
    place = canned_site.place(program, site)

    def text() -> str:
        program.insert(place, f"{model.text()}\n\n")
        return _finished(program)

    return text


def _is_keras_form(program: Source) -> bool:
    models = [f"tf2_engine.keras.{each}Model" for each in ("Table", "Trainer")]
    return any(each in models for each in program.aliases.values())


def _apply_rules(program: Source, left_out: Sequence[ast.FunctionDef] = ()) -> None:
    _drop_v1(program)
    _imports(program)
    dead = [*_dropped_statements(program), *left_out]
    skipped = {*program.done, *_estimator_nodes(program)}.union(*map(ast.walk, dead))
    rules.apply(
        program,
        lambda node: node in skipped or _is_layer(program, node) or _is_gone(program, node),
    )


def _finished(program: Source) -> str:
    return _tidy(_reworded(program.rendered()))


def _trailing_blank(program: Source, function: ast.stmt) -> None:
    _, end = program.lines(function)
    rest = program.text[end:]
    if rest.startswith("\n"):
        program.replace_span(end, end + len(rest) - len(rest.lstrip("\n")), "")


def _estimator_nodes(program: Source) -> set[ast.AST]:
    nodes: set[ast.AST] = set()
    for node in nodes_in(program.tree, ast.Call):
        short = program.called(node)
        if short.startswith("estimator.") and short.rpartition(".")[2] in _OF_ESTIMATORS:
            nodes.update(ast.walk(node.func))
            if short.endswith(("RunConfig", "TPUConfig")):
                nodes.update(
                    each
                    for keyword in node.keywords
                    if keyword.arg in ("tpu_config", "per_host_input_for_training", "num_shards")
                    for each in ast.walk(keyword)
                )
    return nodes


def _is_layer(program: Source, node: ast.AST) -> bool:
    call = node
    while isinstance(call, (ast.Attribute, ast.Name)):
        up = program.parent(call)
        if up is None:
            return False
        if isinstance(up, ast.Call) and up.func is call:
            inner = program.parent(up)
            is_inner = isinstance(inner, ast.Call) and inner.func is up
            return (
                layers.read(program, up) is not None
                or (is_inner and layers.read(program, inner) is not None)  # type: ignore[arg-type]
                or optimizer_code.is_optimizer(program, up)
                or optimizer_code.wraps_for_tpu(program, up)
                or optimizer_code.is_global_step(program, up)
            )
        call = up
    return False


def _is_gone(program: Source, node: ast.AST) -> bool:
    """Whether a name belongs to GraphKeys or ModeKeys, to which no rule applies.

    Also replaces members of ModeKeys by strings.
    """
    short = program.short(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""
    key = short.rpartition(".")[2]
    if short.startswith("estimator.ModeKeys.") and key in _MODES:
        if node not in program.done:
            program.replace(node, repr(_MODES[key]))
        return True
    return "GraphKeys" in short or short == "estimator.ModeKeys"


def _dropped_statements(program: Source) -> Iterator[ast.stmt]:
    for node in nodes_in(program.tree, ast.stmt):
        if program.replacement(*program.lines(node)) == "" and node not in program.moved:
            yield node


def _drop_v1(program: Source) -> None:
    for node in nodes_in(program.tree, ast.stmt):
        if isinstance(node, ast.Expr) and program.called(node.value) in _V1:
            program.drop(node)
        if optimizer_code.is_cross_shard(program, node):
            program.done.update(ast.walk(node))


def _imports(program: Source) -> None:
    for node in nodes_in(program.tree, ast.stmt):
        is_late = program.parent(node) is not program.tree
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if {each.name for each in node.names} <= _FUTURE:
                program.drop(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and _is_of_tensorflow(node):
            if is_late:
                _late_import(program, node)
            else:
                program.drop(node)


def _late_import(program: Source, statement: ast.Import | ast.ImportFrom) -> None:
    block = getattr(program.parent(statement), "body", [])
    if statement in block and len(block) > 1:
        program.drop(statement)
    else:
        program.problem(
            *(statement, "keras-import", "it is the only statement in its block"),
            "Import TensorFlow at the top of the program",
        )


def _is_of_tensorflow(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return is_of_tensorflow(str(node.module))
    return any(is_of_tensorflow(each.name) for each in node.names)


def _with_imports(text: str, needed: Mapping[str, Collection[str]]) -> str:
    lines = ["import tensorflow as tf"]
    for module, names in sorted(needed.items()):
        used = sorted(name for name in names if name in text)
        if used:
            lines.append(import_statements.of_names(module, used))
    tree = ast.parse(text)
    docstring = [each for each in tree.body[:1] if is_docstring(each)]
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    rows = lines_of(text)
    at = [0, *(each.end_lineno or 0 for each in (*docstring, *imports))][-1]
    return "".join([*rows[:at], *(f"{line}\n" for line in lines), *rows[at:]])


def _reworded(text: str) -> str:
    tree = ast.parse(text)
    rows = lines_of(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and is_docstring(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                rows[number] = rows[number].replace("TPUEstimator", "Keras model")
    return "".join(rows)


def _tidy(text: str) -> str:
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    first, _, rest = text.partition("\nimport ")
    return f"{first.rstrip()}\n\nimport {rest}" if rest else text

"""Rewrites a program in the Keras form, or lists everything that prevents it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.keras_form import canned_estimators, rules
from estimator_bridge.migrate.keras_form.call_sites import sites, table_configs
from estimator_bridge.migrate.keras_form.call_sites.estimator_calls import SiteWriter
from estimator_bridge.migrate.keras_form.call_sites.method_calls import CallWriter
from estimator_bridge.migrate.keras_form.canned_form import canned_site
from estimator_bridge.migrate.keras_form.function_code import FunctionCode
from estimator_bridge.migrate.keras_form.model_class import (
    base_class,
    layers,
    models,
    optimizer_code,
)
from estimator_bridge.migrate.keras_form.program_text import (
    leftovers,
    long_lines,
    modes,
    program_checks,
)
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    all_names,
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
_WITHOUT_COUNTERPART = ("variable_scope", "name_scope", "group", "get_collection")
_MODES = {"TRAIN": "train", "EVAL": "eval", "PREDICT": "infer"}
"""The mode names in the new program."""


class NewProgram(NamedTuple):
    """A program in the Keras form, without its imports.

    Attributes:
        needed: names to import, by module.
        notes: (line of the old program, what happened to it).
        flags: names of the absl flags that are left out.
        is_complete: whether nothing in it is marked.
    """

    text: str
    needed: Mapping[str, Collection[str]]
    notes: list[tuple[int, str]]
    flags: tuple[str, ...]
    is_complete: bool = True

    def lines(self) -> tuple[Line, ...]:
        return tuple(
            Line(line, "left out", "", "", f"{why[:1].upper()}{why[1:]}")
            for line, why in self.notes
        )


def migrate_to_keras(
    source: str, name: str = "the program", target: str | None = None
) -> Rewritten:
    """Rewrites a program with a `keras.Model`, on TensorFlow 2 and `tf2_engine.keras`.

    Args:
        name: what error messages call the program.
        target: "sparsecore" makes the tables compute as SparseCores do and, on a TPU, builds them
            for the batch size. Features that SparseCores lack are not checked.

    Raises:
        InvalidInput: the source is not Python 3.
        Untranslatable: parts of the program cannot be carried over (the message lists all of them),
            or it has no tables although `target` is given.
    """
    check_source(source, name)
    if is_keras_form(Source(source, name)):
        return Rewritten(source, (ALREADY,))
    new = new_program(source, name, target)
    text = _tidy(with_imports(new.text, new.needed))
    return Rewritten(text, new.lines(), flags=new.flags)


ALREADY = Line(0, "by hand", "", "", "The program is in the Keras form already")


def new_program(source: str, name: str, target: str | None = None) -> NewProgram:
    """Rewrites a program that is not yet in the Keras form; see `migrate_to_keras`.

    The model_fn becomes a class, or stays a function where its class is refused or incomplete.
    """
    source = _without_tabs(source)
    of_class: NewProgram | None = None
    try:
        of_class = _new_program(source, name, target, straightening.STEPS)
        if of_class.is_complete:
            return of_class
    except Refused as refused:
        rules_of_sites = ("keras-estimators", "keras-estimator-class")
        if target is not None or any(each.rule in rules_of_sites for each in refused.blockers):
            raise
    try:
        return _new_program(source, name, target, straightening.FOR_FUNCTIONS)
    except Refused:
        if of_class is None:
            raise
        return of_class


def _new_program(
    source: str, name: str, target: str | None, steps: Sequence[straightening.Step]
) -> NewProgram:
    straight = straightening.straight(source, name, steps)
    program = Source(straight.text, name, straight.lines)
    places = sites.find(program)
    if not places:
        program.check()
        raise errors.Untranslatable(f"{name} makes no TPUEstimator.")
    is_canned = places[0].canned is not None
    if target is not None and is_canned:
        raise errors.Untranslatable(
            f"{name}: canned estimators have no tables, which --target {target} is for. Leave "
            "--target out."
        )
    is_function = steps is straightening.FOR_FUNCTIONS
    if is_canned:
        text = _of_canned(program, places[0])
    elif is_function:
        text = _of_functions(program, places, target)
    else:
        text = _of_tables(program, places, name, target)
    program.check(is_function)
    program.write_marks()
    new_source, flags = leftovers.left_out(text(), source)
    new_source = long_lines.broken(new_source, {*lines_of(source)})
    program_checks.check(with_imports(new_source, program.needed), program)
    is_complete = not program.problems
    new_source = program.with_lost_marks(new_source)
    program.notes += [(0, leftovers.note(flags))] if flags else []
    notes = sorted((program.old_line(line), why) for line, why in program.notes)
    return NewProgram(new_source, program.needed, notes, flags, is_complete)


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


def _of_tables(
    program: Source, places: Sequence[sites.Site], name: str, target: str | None
) -> Text:
    calls = CallWriter(program, *places)
    written = models.write(program, places, target)
    if not written:
        program.check()
        raise errors.Untranslatable(f"{name}: its model_fn is not found.")
    calls.write()
    table_configs.write(program)
    return _rest(program, written)


def _of_functions(program: Source, places: Sequence[sites.Site], target: str | None) -> Text:
    calls = CallWriter(program, *places)
    for site in places:
        site.model_fn = site.arguments.get("model_fn")
        site.class_name = program.need(rules.KERAS, "FunctionModel")
        params = site.arguments.get("params")
        SiteWriter(program, site, target).write({} if params is None else {"params": params})
    calls.write()
    FunctionCode(program).write()
    _apply_rules(program, [], [])
    return lambda: _finished(program)


def _of_canned(program: Source, site: sites.Site) -> Text:
    model = canned_site.write(program, site)
    CallWriter(program, site).write()
    _apply_rules(program, [], [])
    place = canned_site.place(program, site)

    def text() -> str:
        program.insert(place, f"{model.text()}\n\n")
        return _finished(program)

    return text


def is_keras_form(program: Source) -> bool:
    models = [f"tf2_engine.keras.{each}Model" for each in ("Table", "Function", "Trainer")]
    return any(each in models for each in program.aliases.values())


def _rest(program: Source, written: Sequence[models.ModelOfProgram]) -> Text:
    classes = [each.text for each in written if each.text is not None]
    roots = [each.root for each in written]
    left_out = list({each: None for one in classes for each in one.left_out})
    functions = {each: None for one in classes for each in one.functions}
    gone = list(dict.fromkeys([*functions, *left_out, *roots]))
    _apply_rules(program, gone, left_out)

    def text() -> str:
        sources = base_class.texts([each.pieces() for each in classes], all_names(program.tree))
        for function in dict.fromkeys([*gone, *left_out]):
            if function not in roots and not {*program.above(function)} & {*roots}:
                program.drop(function)
                _trailing_blank(program, function)
        for root, source in zip(roots, sources, strict=True):
            program.replace_span(*program.lines(root), source)
        return _finished(program)

    return text


def _apply_rules(program: Source, gone: Sequence[ast.AST], left_out: list[ast.FunctionDef]) -> None:
    """Applies the rules to all code that stays.

    Drops functions that nothing calls, except those in `gone`, and adds them to `left_out`.
    """
    _drop_v1(program)
    left_out.extend(_unused_functions(program, gone))
    _imports(program)
    dead = [*_dropped_statements(program), *left_out]
    skipped = {*program.done, *estimator_nodes(program)}.union(*map(ast.walk, dead))
    rules.apply(
        program,
        lambda node: node in skipped or _is_layer(program, node) or _is_gone(program, node),
    )


def _finished(program: Source) -> str:
    return _tidy(_reworded(program.rendered()))


def _unused_functions(program: Source, gone: Sequence[ast.AST]) -> Iterator[ast.FunctionDef]:
    for node in program.tree.body:
        if not isinstance(node, ast.FunctionDef) or node in gone or node.decorator_list:
            continue
        of_estimator = (
            program.short(each).startswith(("estimator.", "metrics.")) for each in ast.walk(node)
        )
        if sites.trains(program, node):
            continue
        if not program.uses(node.name, program.tree) and any(of_estimator):
            program.drop(node, f"{node.name} is left out: nothing calls it")
            _trailing_blank(program, node)
            yield node


def _trailing_blank(program: Source, function: ast.stmt) -> None:
    _, end = program.lines(function)
    rest = program.text[end:]
    if rest.startswith("\n"):
        program.replace_span(end, end + len(rest) - len(rest.lstrip("\n")), "")


def estimator_nodes(program: Source) -> set[ast.AST]:
    """Collects the nodes of estimator calls that the call writers replace; the rules skip them."""
    nodes: set[ast.AST] = set()
    for node in nodes_in(program.tree, ast.Call):
        short = program.called(node)
        if short.startswith("estimator.") and short.rpartition(".")[2] in (
            *(
                "Estimator",
                "TPUEstimator",
                "RunConfig",
                "TPUConfig",
                "EmbeddingConfigSpec",
                "TrainSpec",
            ),
            *("EvalSpec", "train_and_evaluate", "TPUEstimatorSpec", "EstimatorSpec"),
            *("PredictOutput", "ClassificationOutput", "RegressionOutput"),
            *(*canned_estimators.CLASSES, *canned_estimators.NOT_CARRIED, "FinalExporter"),
            *("LatestExporter", "BestExporter"),
        ):
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
    """Whether a node is the callee of a layer, optimizer or other call rewritten as a whole."""
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
                or program.called(up) in _WITHOUT_COUNTERPART
                or optimizer_code.wraps_for_tpu(program, up)
                or optimizer_code.is_global_step(program, up)
            )
        call = up
    return False


def _is_gone(program: Source, node: ast.AST) -> bool:
    """Whether a name needs no rule: a mode key (here replaced by a string) or GraphKeys."""
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
            *(statement, "keras-import", "it stands alone in a block"),
            "Import TensorFlow at the top of the program",
        )


def _is_of_tensorflow(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return is_of_tensorflow(str(node.module))
    return any(is_of_tensorflow(each.name) for each in node.names)


def with_imports(text: str, needed: Mapping[str, Collection[str]]) -> str:
    lines = ["import tensorflow as tf"]
    for module, names in sorted(needed.items()):
        used = sorted(name for name in names if name in text)
        if used:
            lines.append(import_statements.of_names(module, used))
    tree = ast.parse(text)
    docstring = [each for each in tree.body[:1] if modes.is_docstring(each)]
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    rows = lines_of(text)
    at = [0, *(each.end_lineno or 0 for each in (*docstring, *imports))][-1]
    return "".join([*rows[:at], *(f"{line}\n" for line in lines), *rows[at:]])


def _reworded(text: str) -> str:
    tree = ast.parse(text)
    rows = lines_of(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and modes.is_docstring(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                rows[number] = rows[number].replace("TPUEstimator", "Keras model")
    return "".join(rows)


def _tidy(text: str) -> str:
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    first, _, rest = text.partition("\nimport ")
    return f"{first.rstrip()}\n\nimport {rest}" if rest else text

"""The Keras form of a program: its text, or all that keeps it from being written."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from estimator_bridge import errors
from estimator_bridge.migrate.keras_form import (
    canned_estimators,
    canned_site,
    layers,
    modes,
    optimizer_code,
    program_checks,
    rules,
    sites,
    straightening,
    table_configs,
)
from estimator_bridge.migrate.keras_form.estimator_calls import SiteWriter
from estimator_bridge.migrate.keras_form.method_calls import CallWriter
from estimator_bridge.migrate.keras_form.model_text import ModelText, ModelWriter
from estimator_bridge.migrate.keras_form.source import Source
from estimator_bridge.migrate.parsed_program import check_source
from estimator_bridge.migrate.rewrite_report import Line, Rewritten

_V1 = ("disable_v2_behavior", "disable_eager_execution", "enable_eager_execution")
_FUTURE = {"absolute_import", "division", "print_function"}
_MODES = {"TRAIN": "train", "EVAL": "eval", "PREDICT": "predict"}
"""The names of the modes in the new program."""


def migrate_to_keras(
    source: str, name: str = "the program", target: str | None = None
) -> Rewritten:
    """Returns a program with a `keras.Model`, on TensorFlow 2 and `tf2_engine.keras`.

    Args:
        name: how errors call the program.
        target: "sparsecore" gives the tables the arithmetic of SparseCores, and on a TPU the
            batch size for which they are built; what they lack is not looked for.

    Raises:
        InvalidInput: the source is not Python 3.
        Untranslatable: parts of it cannot be carried over, and the message lists all of them; or
            it has no tables, for a target.
    """
    check_source(source, name)
    program = Source(source, name)
    if is_keras_form(program):
        nothing = Line(0, "by hand", "", "", "The program is in the Keras form already")
        return Rewritten(source, (nothing,))
    straight = straightening.straight(source, name)
    program = Source(straight.text, name, straight.lines)
    site = sites.find(program)
    if site is None:
        program.check()
        raise errors.Untranslatable(f"{name} makes no TPUEstimator.")
    _aliases(program)
    if target is not None and site.canned is not None:
        raise errors.Untranslatable(
            f"{name}: canned estimators have no tables, which --target {target} is for. Leave "
            "--target out."
        )
    text = (
        _of_tables(program, site, name, target)
        if site.canned is None
        else _of_canned(program, site)
    )
    program.check()
    new_source = text()
    program_checks.check(new_source, name)
    program.notes += _unused_flags(new_source)
    notes = sorted((program.old_line(line), why) for line, why in program.notes)
    lines = [Line(line, "left out", "", "", _sentence(why)) for line, why in notes]
    return Rewritten(new_source, tuple(lines))


def _of_tables(
    program: Source, site: sites.Site, name: str, target: str | None
) -> Callable[[], str]:
    """Returns the text of the form of a program with a TPUEstimator, to be made."""
    model, root, values = _model(program, site)
    if model is None or root is None:
        program.check()
        raise errors.Untranslatable(f"{name}: its model_fn is not found.")
    SiteWriter(program, site, target).write(values)
    CallWriter(program, site).write()
    table_configs.write(program)
    return _rest(program, model, root)


def _of_canned(program: Source, site: sites.Site) -> Callable[[], str]:
    """Returns the text of the form of a program with a canned estimator, to be made."""
    model = canned_site.write(program, site)
    CallWriter(program, site).write()
    _apply_rules(program, [])
    place = canned_site.place(program, site)

    def text() -> str:
        program.replace_span(place, place, f"{model.text()}\n\n")
        return _finished(program)

    return text


def is_keras_form(program: Source) -> bool:
    """Returns whether a program has a model of the Keras form."""
    return "tf2_engine.keras.TableModel" in program.aliases.values()


def _aliases(program: Source) -> None:
    """Follows names that are short for functions of TensorFlow, and leaves the assignments out."""
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute):
            continue
        full, target = program.full(node.value), node.targets[0]
        if isinstance(target, ast.Name) and program.short(node.value) in rules.WRITERS:
            program.locals[program.function_of(node), target.id] = full
            program.drop(node)
            program.done.update(ast.walk(node))


def _model(
    program: Source, site: sites.Site
) -> tuple[ModelText | None, ast.FunctionDef | None, dict[str, _Code]]:
    """Writes the model; returns it, the function whose place it takes, and its arguments."""
    model_fn = site.arguments.get("model_fn")
    name = model_fn.func if isinstance(model_fn, ast.Call) else model_fn
    root = program.function(name.id) if isinstance(name, ast.Name) else None
    if root is None:
        program.problem(
            *(site.call, "keras-model-fn", "its model_fn is not a function of the program"),
            "Pass the name of the model_fn, or a call of the function that returns it; with "
            "several models, make a TPUEstimator for each",
        )
        return None, None, {}
    function, values = root, {}
    if isinstance(model_fn, ast.Call):
        names = [each.arg for each in root.args.args]
        values = dict(zip(names, model_fn.args, strict=False))
        values.update({str(each.arg): each.value for each in model_fn.keywords})
        inner = _returned_function(program, root)
        if inner is None:
            program.problem(
                *(root, "keras-model-fn", "it does more than define and return the model_fn"),
                "Move that into the model_fn",
            )
            return None, None, {}
        function = inner
    keys = _params(program, site)
    parts = modes.take_apart(program, function, functools.partial(optimizer_code.trains, program))
    model = ModelWriter(program, parts, [*values], [*keys]).write()
    nodes = {**values, **keys}
    return model, root, {key: _Code(program, nodes[key]) for key in model.arguments if key in nodes}


def _returned_function(program: Source, outer: ast.FunctionDef) -> ast.FunctionDef | None:
    """Returns the function that a function defines and returns, if it does nothing else."""
    last = outer.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if not isinstance(value, ast.Name) or len(outer.body) > 2 + modes.is_docstring(outer.body[0]):
        return None
    return program.function(value.id, outer)


def _params(program: Source, site: sites.Site) -> dict[str, ast.expr]:
    """Returns the `params` of the estimator by their keys."""
    params = site.arguments.get("params")
    if isinstance(params, ast.Dict):
        pairs = zip(params.keys, params.values, strict=True)
        return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    if params is not None:
        program.problem(
            *(params, "keras-params", "its keys are not written out"),
            "Write params={...} where the TPUEstimator is made",
        )
    return {}


class _Code:
    """The code of a node, when it is asked for."""

    def __init__(self, program: Source, node: ast.expr) -> None:
        self._program, self._node = program, node

    def __str__(self) -> str:
        return self._program.code(self._node)


def _rest(program: Source, model: ModelText, root: ast.FunctionDef) -> Callable[[], str]:
    """Leaves out what the new program does not need, and returns its text, to be made."""
    left_out = model.left_out
    gone = [*model.functions, *left_out, root]
    _apply_rules(program, gone, left_out)

    def text() -> str:
        class_source = model.text()
        for function in gone:
            if function is not root and not _is_inside(program, function, root):
                program.drop(function)
                _trailing_blank(program, function)
        start, end = program.lines(root)
        program.replace_span(start, end, class_source)
        return _finished(program)

    return text


def _apply_rules(
    program: Source, gone: Sequence[ast.AST], left_out: list[ast.FunctionDef] | None = None
) -> None:
    """Applies the rules to all that stays of a program.

    Args:
        gone: functions that are left out, or written anew.
        left_out: those that nothing calls; more are added.
    """
    left_out = [] if left_out is None else left_out
    _drop_v1(program)
    left_out.extend(_unused_functions(program, gone))
    _imports(program)
    written = set(program.done)
    dead = {node for each in [*_dropped_statements(program), *left_out] for node in ast.walk(each)}
    handled = estimator_nodes(program)
    rules.apply(
        program,
        lambda node: (
            node in written
            or node in dead
            or node in handled
            or _is_layer(program, node)
            or _is_gone(program, node)
        ),
    )


def _finished(program: Source) -> str:
    whole = program.render(0, len(program.text))
    return _tidy(_reworded(_with_imports(program, whole)))


def _unused_functions(program: Source, gone: Sequence[ast.AST]) -> Iterator[ast.FunctionDef]:
    """Leaves functions of the estimator out that nothing calls; yields them."""
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


def _is_inside(program: Source, node: ast.AST, root: ast.AST) -> bool:
    return any(up is root for up in program.above(node))


def _trailing_blank(program: Source, function: ast.stmt) -> None:
    """Leaves the blank lines behind a function out with it."""
    _, end = program.lines(function)
    after = end
    while program.text[after : after + 1] == "\n":
        after += 1
    if after > end:
        program.replace_span(end, after, "")


def estimator_nodes(program: Source) -> set[ast.AST]:
    """Returns the nodes of calls of the estimator, which are written as a whole."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(program.tree):
        short = program.called(node)
        if short.startswith("estimator.") and short.rpartition(".")[2] in (
            *("TPUEstimator", "RunConfig", "TPUConfig", "EmbeddingConfigSpec", "TrainSpec"),
            *("EvalSpec", "train_and_evaluate", "TPUEstimatorSpec", "EstimatorSpec"),
            *("PredictOutput", "ClassificationOutput", "RegressionOutput"),
            *(*canned_estimators.CLASSES, *canned_estimators.NOT_CARRIED, "FinalExporter"),
            *("LatestExporter", "BestExporter"),
        ):
            assert isinstance(node, ast.Call)
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
    """Returns whether a node is the function of a call of a layer, or is written with one."""
    call = node
    while isinstance(call, (ast.Attribute, ast.Name)):
        up = program.parent(call)
        if up is None:
            return False
        if isinstance(up, ast.Call) and up.func is call:
            inner = program.parent(up)
            return (
                layers.read(program, up) is not None
                or (
                    isinstance(inner, ast.Call)
                    and inner.func is up
                    and layers.read(program, inner) is not None
                )
                or optimizer_code.is_optimizer(program, up)
                or (
                    program.called(up)
                    in ("variable_scope", "name_scope", "group", "get_collection")
                    or optimizer_code.wraps_for_tpu(program, up)
                    or optimizer_code.is_global_step(program, up)
                )
            )
        call = up
    return False


def _is_gone(program: Source, node: ast.AST) -> bool:
    """Returns whether a name is in a test of the mode, in a left-out function or statement."""
    short = program.short(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""
    key = short.rpartition(".")[2]
    if short.startswith("estimator.ModeKeys.") and key in _MODES:
        if node not in program.done:
            program.replace(node, repr(_MODES[key]))
        return True
    return "GraphKeys" in short or short == "estimator.ModeKeys"


def _dropped_statements(program: Source) -> Iterator[ast.stmt]:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Module):
            start, end = program.lines(node)
            if program.replacement(start, end) == "" and node not in program.moved:
                yield node


def _drop_v1(program: Source) -> None:
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Expr) and program.called(node.value) in _V1:
            program.drop(node)
        if isinstance(node, ast.stmt) and optimizer_code.is_cross_shard(program, node):
            program.done.update(ast.walk(node))


def _imports(program: Source) -> None:
    """Leaves out the imports of stock's estimator, of TensorFlow 1 and of the past."""
    for node in program.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if {each.name for each in node.names} <= _FUTURE:
                program.drop(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and _is_of_tensorflow(node):
            program.drop(node)
    for each in ast.walk(program.tree):
        if isinstance(each, (ast.Import, ast.ImportFrom)) and _is_of_tensorflow(each):
            if program.parent(each) is not program.tree:
                _late_import(program, each)


def _late_import(program: Source, statement: ast.Import | ast.ImportFrom) -> None:
    """Leaves out an import in a function, or refuses it where nothing else stands in its block."""
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
        return str(node.module).split(".")[0] in ("tensorflow", "tensorflow_estimator")
    return any(
        each.name.split(".")[0] in ("tensorflow", "tensorflow_estimator") for each in node.names
    )


def _with_imports(program: Source, text: str) -> str:
    """Returns a text with the imports that it needs, where those of TensorFlow were."""
    lines = ["import tensorflow as tf"]
    for module, names in sorted(program.needed.items()):
        used = sorted(name for name in names if name in text)
        if not used:
            continue
        line = f"from {module} import {', '.join(used)}"
        if len(line) > 80:
            inner = textwrap.fill(", ".join(used), 76)
            line = f"from {module} import (\n{textwrap.indent(inner, '    ')})"
        lines.append(line)
    tree = ast.parse(text)
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    rows = text.splitlines(keepends=True)
    if imports:
        at = imports[-1].end_lineno or 0
    else:
        at = (tree.body[0].end_lineno or 0) if modes.is_docstring(tree.body[0]) else 0
    return "".join([*rows[:at], *(f"{line}\n" for line in lines), *rows[at:]])


def _unused_flags(text: str) -> list[tuple[int, str]]:
    """Returns a note of the flags that a program defines and does not use."""
    defined = re.findall(r"DEFINE_\w+\(\s*['\"](\w+)", text)
    unused = [flag for flag in defined if not re.search(rf"FLAGS\.{flag}\b", text)]
    listed = ", ".join(unused)
    why = f"flags are not used any more: {listed}. Remove them where no command line has them"
    return [(0, why)] if unused else []


def _reworded(text: str) -> str:
    """Returns a text whose docstrings and comments call the estimator what it is now."""
    tree = ast.parse(text)
    rows = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and modes.is_docstring(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                rows[number] = rows[number].replace("TPUEstimator", "Keras model")
    return "".join(rows)


def _tidy(text: str) -> str:
    """Returns a text without blank lines that were left over."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    first, _, rest = text.partition("\nimport ")
    return f"{first.rstrip()}\n\nimport {rest}" if rest else text


def _sentence(why: str) -> str:
    return f"{why[:1].upper()}{why[1:]}"

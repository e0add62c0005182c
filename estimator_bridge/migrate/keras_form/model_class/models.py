"""The models of a program: the model_fns of its estimators, and the class that replaces each."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from estimator_bridge.migrate.keras_form.call_sites.estimator_calls import SiteWriter
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.model_class import model_functions, optimizer_code
from estimator_bridge.migrate.keras_form.model_class.model_text import ModelText, ModelWriter
from estimator_bridge.migrate.keras_form.program_text import modes
from estimator_bridge.migrate.keras_form.program_text.source import (
    COPY,
    Source,
    Text,
    all_names,
    every_argument,
    free_name,
    nodes_in,
    returned_by,
)

_Nodes = Mapping[str, ast.expr]


@dataclasses.dataclass(eq=False)
class ModelOfProgram:
    """A model_fn, and the estimators that are created from it.

    Attributes:
        root: the function that the class replaces: the model_fn, or the function that returns it.
        uses: the sites, each with the arguments of the function that returns the model_fn.
    """

    root: ast.FunctionDef
    class_name: str = "Model"
    uses: list[tuple[Site, _Nodes]] = dataclasses.field(default_factory=list)
    text: ModelText | None = None


def write(
    program: Source, sites: Sequence[Site], target: str | None = None
) -> list[ModelOfProgram]:
    """Writes the model classes and the code that creates the models.

    Returns the models in program order, or none if a model_fn is unknown.
    """
    models = _find(program, sites)
    for model in models:
        is_whole = not _reads_keys(program, model)
        for site, _ in model.uses:
            site.takes_params = site.takes_params or is_whole
    classes: dict[str, Text] = {}
    for model in models:
        _write_class(program, model, classes)
    for site in sites:
        of_site = [each for each in models if _nodes_of(each, site) is not None]
        _write_site(program, site, of_site, target)
    return models if all(each.text is not None for each in models) else []


def _reads_keys(program: Source, model: ModelOfProgram) -> bool:
    values = [site.arguments.get("params") for site, _ in model.uses]
    keys = [{ast.unparse(key) for key in each.keys if key} for each in values if _is_dict(each)]
    uses = [program.parent(each) for each in program.uses("params", model.root)]
    reads = [ast.unparse(each.slice) for each in uses if isinstance(each, ast.Subscript)]
    return (
        len(keys) == len(values)
        and len(reads) == len(uses)
        and all(each >= {*reads} for each in keys)
    )


def _is_dict(node: ast.expr | None) -> TypeGuard[ast.Dict]:
    return isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys)


def _find(program: Source, sites: Sequence[Site]) -> list[ModelOfProgram]:
    models: dict[ast.FunctionDef, ModelOfProgram] = {}
    passed: list[tuple[Site, list[ast.expr]]] = []
    for site in sites:
        value = site.arguments.get("model_fn")
        values = [] if value is None else model_functions.passed(program, value)
        roots = [model_functions.function_of(program, each) for each in values]
        is_call = any(isinstance(each, ast.Call) for each in values)
        if not values or None in roots or (is_call and values != [value]):
            program.problem(
                *(site.call, "keras-model-fn", "its model_fn is not a function of the program"),
                "Pass the name of the model_fn, or a call of the function that returns it; a "
                "function that makes the TPUEstimator may take the name",
            )
            return []
        passed.append((site, values))
        for root, each in zip(roots, values, strict=True):
            assert root is not None
            model = models.setdefault(root, ModelOfProgram(root))
            if _nodes_of(model, site) is None:
                model.uses.append((site, _arguments(root, each)))
    _name_classes(program, [*models.values()])
    for site, values in passed:
        _pass_classes(program, site, values, models)
    return sorted(models.values(), key=lambda each: each.root.lineno)


def _arguments(root: ast.FunctionDef, value: ast.expr) -> _Nodes:
    if not isinstance(value, ast.Call):
        return {}
    return every_argument(value, [each.arg for each in root.args.args])


def _nodes_of(model: ModelOfProgram, site: Site) -> _Nodes | None:
    return next((nodes for each, nodes in model.uses if each is site), None)


def _name_classes(program: Source, models: Sequence[ModelOfProgram]) -> None:
    taken = all_names(program.tree)
    for model in models if len(models) > 1 else ():
        words = re.sub(r"(_model)?(_fn)?$", "", model.root.name.partition(COPY)[0]).split("_")
        wanted = "".join(f"{each[:1].upper()}{each[1:]}" for each in words) + "Model"
        wanted = wanted.removesuffix("ModelModel") + "Model" * wanted.endswith("ModelModel")
        model.class_name = free_name(wanted, taken)
        taken.add(model.class_name)


def _pass_classes(
    program: Source,
    site: Site,
    values: Sequence[ast.expr],
    models: Mapping[ast.FunctionDef, ModelOfProgram],
) -> None:
    """Makes the callers of a function that creates an estimator pass the model class."""
    parameter = site.arguments["model_fn"]
    if values == [parameter]:
        root = model_functions.function_of(program, parameter)
        site.class_name = models[root].class_name if root is not None else "Model"
        return
    assert isinstance(parameter, ast.Name)
    site.class_name = free_name("model_class", all_names(site.function))
    for node in nodes_in(site.function, ast.arg):
        if node.arg == parameter.id:
            program.replace(node, site.class_name)
    if len(program.uses(parameter.id, site.function)) > 1:
        program.problem(
            *(site.call, "keras-model-fn", f"{parameter.id} is also used for something else"),
            "Pass the model_fn only to the TPUEstimator",
        )
    for value in values:
        root = model_functions.function_of(program, value)
        name = models[root].class_name if root is not None else "Model"
        keyword = program.parent(value)
        if isinstance(keyword, ast.keyword):
            program.replace(keyword, f"{site.class_name}={name}")
        else:
            program.replace(value, name)


def _write_class(program: Source, model: ModelOfProgram, classes: dict[str, Text]) -> None:
    closure = [name for _, nodes in model.uses for name in nodes]
    is_outer = bool(closure) or not _returns_a_spec(program, model.root)
    function = _returned_function(program, model.root) if is_outer else model.root
    if function is None:
        program.problem(
            *(model.root, "keras-model-fn", "it does more than define and return the model_fn"),
            "Move that into the model_fn",
        )
        return
    keys = [key for site, _ in model.uses for key in _params(program, site)]
    parts = modes.take_apart(program, function, functools.partial(optimizer_code.trains, program))
    writer = ModelWriter(
        *(program, parts, list(dict.fromkeys(closure)), list(dict.fromkeys(keys))),
        *(model.class_name, classes),
        has_tables=any(site.has_tables for site, _ in model.uses),
    )
    model.text = writer.write()


def _returns_a_spec(program: Source, function: ast.FunctionDef) -> bool:
    value = returned_by(function)
    return not isinstance(value, ast.Name) or program.function(value.id, function) is None


def _returned_function(program: Source, outer: ast.FunctionDef) -> ast.FunctionDef | None:
    value = returned_by(outer)
    if not isinstance(value, ast.Name) or len(outer.body) > 2 + modes.is_docstring(outer.body[0]):
        return None
    return program.function(value.id, outer)


def _params(program: Source, site: Site) -> _Nodes:
    params = site.arguments.get("params")
    if isinstance(params, ast.Dict) and not site.takes_params:
        pairs = zip(params.keys, params.values, strict=True)
        return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    return {} if params is None else {"params": params}


def _write_site(
    program: Source, site: Site, models: Sequence[ModelOfProgram], target: str | None
) -> None:
    """Writes the code that creates a model; classes created at one site take the same arguments."""
    texts = [each.text for each in models if each.text is not None]
    uses = [use for each in models for use in each.uses]
    known = {name for use, nodes in uses for name in (*nodes, *_params(program, use))}
    used = dict.fromkeys(name for text in texts for name in text.arguments)
    names = [name for name in used if name in known]
    for text in texts:
        text.arguments += [name for name in names if name not in text.arguments]
    nodes = _params(program, site)
    for model in models:
        nodes = {**(_nodes_of(model, site) or {}), **nodes}
    lacking = [name for name in names if name not in nodes]
    if lacking and len(texts) == len(models):
        program.problem(
            *(site.call, "keras-model-fn", f"its model_fn also uses {', '.join(lacking)}"),
            "Give it the same keys of params as the other TPUEstimators of the model_fn",
        )
    SiteWriter(program, site, target).write({name: nodes[name] for name in names if name in nodes})

"""Writes a program's model: the class that replaces the model_fn of the estimator."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.migrate.keras_form.call_sites.estimator_calls import SiteWriter
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.model_class.model_text import ModelText, ModelWriter
from estimator_bridge.migrate.keras_form.program_text import modes
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    every_argument,
    is_docstring,
    returned_by,
)


class WrittenModel(NamedTuple):
    """A model, and the function that its class replaces."""

    root: ast.FunctionDef
    text: ModelText


def write(program: Source, site: Site, target: str | None = None) -> WrittenModel:
    value = site.arguments.get("model_fn")
    name = value.func if isinstance(value, ast.Call) else value
    root = program.function(name.id) if isinstance(name, ast.Name) else None
    if root is None or len(program.uses(root.name, program.tree)) != 1:
        raise NotSimple(
            site.call, "its model_fn is not a function of the program, or is used elsewhere too"
        )
    given: dict[str, ast.expr] = {}
    function = root
    if isinstance(value, ast.Call):
        given = every_argument(value, [each.arg for each in root.args.args])
        function = _returned_function(program, root)
    if root.decorator_list or function.decorator_list:
        raise NotSimple(function, "its model_fn has decorators")
    given = {**given, **_params(program, site, function)}
    parts = modes.take_apart(program, function)
    text = ModelWriter(program, parts, [*given], site.has_tables).write()
    nodes = {each: given[each] for each in text.arguments}
    SiteWriter(program, site, target).write(nodes)
    return WrittenModel(root, text)


def _returned_function(program: Source, outer: ast.FunctionDef) -> ast.FunctionDef:
    value = returned_by(outer)
    inner = program.function(value.id, outer) if isinstance(value, ast.Name) else None
    if inner is None or len(outer.body) > 2 + is_docstring(outer.body[0]):
        raise NotSimple(
            outer, "the function around the model_fn does more than define and return it"
        )
    return inner


def _params(program: Source, site: Site, function: ast.FunctionDef) -> Mapping[str, ast.expr]:
    params = site.arguments.get("params")
    keys = params.keys if isinstance(params, ast.Dict) else []
    known = {ast.unparse(key): str(getattr(key, "value", "")) for key in keys if key is not None}
    for use in program.uses("params", function):
        up = program.parent(use)
        if not isinstance(up, ast.Subscript) or ast.unparse(up.slice) not in known:
            raise NotSimple(
                use,
                "it uses params, but not as params[key] with a key that the estimator has",
            )
    values = params.values if isinstance(params, ast.Dict) else []
    return dict(zip(known.values(), values, strict=True))

"""Finds the names under which a program uses its estimator, and chooses the names of the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import Source, bound_in, nodes_in


class EstimatorNames:
    """The names under which a program uses its estimator."""

    def __init__(self, source: Source, site: Site) -> None:
        self._source, self._site = source, site
        self._statement = source.statement_of(site.call)
        self._taken = {
            getattr(node, part)
            for node in ast.walk(source.tree)
            for part in ("id", "arg", "name")
            if isinstance(getattr(node, part, None), str)
        }
        self._attribute = self._attribute_of_site()
        names = self._names_of_site()
        self._maker = self._made_by(names)
        self._held = {(site.function, name) for name in names} | {*self._calls_of_maker()}
        self._new = self._new_names()
        site.name = self._new[names[0]] if names else self._model()
        if self._attribute is not None:
            site.name = ast.unparse(self._attribute)

    def has(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            is_one = self._attribute is not None and node.attr == self._attribute.attr
            return is_one and not self._source.full(node)
        return isinstance(node, ast.Name) and node.id in self._new

    def new_name(self, name: str) -> str:
        return self._new[name]

    def is_returned(self, node: ast.Name) -> bool:
        is_value = isinstance(self._source.parent(node), ast.Return)
        return is_value and self._source.function_of(node) is self._maker

    def rename_maker(self) -> None:
        source = self._source
        if self._maker is None:
            return
        name, new = self._maker.name, self._without_estimator(self._maker.name)
        if new != name:
            for use in source.uses(name, source.tree):
                source.replace(use, new)
            start, _ = source.span(self._maker)
            source.replace_span(start + len("def "), start + len(f"def {name}"), new)

    def _names_of_site(self) -> list[str]:
        if not isinstance(self._statement, ast.Assign):
            return []
        names = bound_in(self._statement)
        if not names and self._attribute is None:
            self._source.problem(
                *(self._site.call, "keras-estimator", "the source does not show how it is used"),
                "Assign the estimator to a variable, or migrate to the tf2 form",
            )
        return names

    def _attribute_of_site(self) -> ast.Attribute | None:
        targets = self._statement.targets if isinstance(self._statement, ast.Assign) else []
        target = targets[0] if len(targets) == 1 else None
        is_of_name = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        return target if is_of_name else None  # type: ignore[return-value]

    def _made_by(self, names: list[str]) -> ast.FunctionDef | None:
        function = self._site.function
        values = [each.value for each in nodes_in(function, ast.Return)]
        returns = isinstance(self._statement, ast.Return) or any(
            isinstance(each, ast.Name) and each.id in names for each in values
        )
        return function if returns and isinstance(function, ast.FunctionDef) else None

    def _calls_of_maker(self) -> Iterator[tuple[ast.AST, str]]:
        for node in nodes_in(self._source.tree, ast.Assign):
            function = node.value.func if isinstance(node.value, ast.Call) else None
            if self._maker and isinstance(function, ast.Name) and function.id == self._maker.name:
                yield from ((self._source.function_of(node), name) for name in bound_in(node))

    def _new_names(self) -> dict[str, str]:
        names = {name for _, name in self._held}
        scopes = {scope for scope, _ in self._held}
        if len(scopes) == len(self._held) or len(names) == 1:
            return dict.fromkeys(names, self._model())
        return {name: self._without_estimator(name) for name in names}

    def _model(self) -> str:
        tree = self._source.tree
        bound = {each.id for each in nodes_in(tree, ast.Name) if isinstance(each.ctx, ast.Store)}
        others = bound - {name for _, name in self._held}
        return "keras_model" if "model" in others else "model"

    def _without_estimator(self, name: str) -> str:
        new = name.replace("estimator", "model").replace("Estimator", "Model")
        return name if new in self._taken else new

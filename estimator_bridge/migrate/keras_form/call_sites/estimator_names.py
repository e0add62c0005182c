"""The variables that hold estimators, the functions that return them, and their new names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import Source, bound_in, nodes_in


class EstimatorNames:
    """The names under which a program uses its estimators."""

    def __init__(self, source: Source, sites: Sequence[Site]) -> None:
        self._source, self._sites = source, sites
        self._held: dict[tuple[ast.AST, str], Site] = {}
        self._makers: dict[str, Site] = {}
        self._attributes: dict[str, Site] = {}
        self._taken = {
            getattr(node, part)
            for node in ast.walk(source.tree)
            for part in ("id", "arg", "name")
            if isinstance(getattr(node, part, None), str)
        }
        self._collect()
        self._new = self._new_names()
        for site in sites:
            names = self._assigned(site)
            site.name = self._new[names[0]] if names else self._model()
            attribute = self._attribute(site)
            if attribute is not None:
                site.name = ast.unparse(attribute)

    def site_of(self, node: ast.AST) -> Site | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return None if self._source.full(node) else self._attributes.get(node.attr)
        if not isinstance(node, ast.Name):
            return None
        for scope in (self._source.function_of(node), *self._source.above(node)):
            if (scope, node.id) in self._held:
                return self._held[scope, node.id]
        others = {site for (_, name), site in self._held.items() if name == node.id}
        return self._sites[0] if others and len(self._sites) == 1 else None

    def new_name(self, name: str) -> str:
        return self._new[name]

    def is_returned(self, node: ast.Name) -> bool:
        function = self._source.function_of(node)
        return (
            isinstance(self._source.parent(node), ast.Return)
            and isinstance(function, ast.FunctionDef)
            and function.name in self._makers
        )

    def rename_makers(self) -> None:
        source = self._source
        for name, site in self._makers.items():
            function = site.function
            assert isinstance(function, ast.FunctionDef)
            new = self._without_estimator(name)
            if new == name:
                continue
            for use in source.uses(name, source.tree):
                source.replace(use, new)
            start, _ = source.span(function)
            source.replace_span(start + len("def "), start + len(f"def {name}"), new)

    def _collect(self) -> None:
        for site in self._sites:
            attribute = self._attribute(site)
            if attribute is not None:
                if attribute.attr in self._attributes:
                    self._refuse(site, "which of several estimators an attribute holds")
                self._attributes[attribute.attr] = site
            for name in self._assigned(site):
                self._held[site.function, name] = site
            if isinstance(site.function, ast.FunctionDef) and self._returns(site):
                if site.function.name in self._makers:
                    self._refuse(site, "which of several estimators its function returns")
                self._makers[site.function.name] = site
        for scope, name, maker in self._calls_of_makers():
            self._held[scope, name] = self._makers[maker]

    def _assigned(self, site: Site) -> list[str]:
        statement = self._source.statement_of(site.call)
        if not isinstance(statement, ast.Assign):
            return []
        names = bound_in(statement)
        if not names and self._attribute(site) is None:
            self._refuse(site, "what is done with it")
        return names

    def _attribute(self, site: Site) -> ast.Attribute | None:
        """Returns the attribute of an object, such as `self.estimator`, that a site assigns."""
        statement = self._source.statement_of(site.call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        target = targets[0] if len(targets) == 1 else None
        is_of_name = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        return target if is_of_name else None  # type: ignore[return-value]

    def _refuse(self, site: Site, what: str) -> None:
        self._source.problem(
            *(site.call, "keras-estimator", f"{what} is not known here"),
            "Assign each estimator to a variable, or migrate to the tf2 form",
        )

    def _returns(self, site: Site) -> bool:
        if isinstance(self._source.statement_of(site.call), ast.Return):
            return True
        names = self._assigned(site)
        values = [each.value for each in nodes_in(site.function, ast.Return)]
        return any(isinstance(each, ast.Name) and each.id in names for each in values)

    def _calls_of_makers(self) -> Iterator[tuple[ast.AST, str, str]]:
        for node in nodes_in(self._source.tree, ast.Assign):
            function = node.value.func if isinstance(node.value, ast.Call) else None
            if isinstance(function, ast.Name) and function.id in self._makers:
                scope = self._source.function_of(node)
                yield from ((scope, name, function.id) for name in bound_in(node))

    def _new_names(self) -> dict[str, str]:
        names = {name for _, name in self._held}
        scopes = {scope for scope, _ in self._held}
        alone = len(self._sites) == 1 and len(scopes) == len(self._held)
        if alone or len(names) == 1:
            return dict.fromkeys(names, self._model())
        return {name: self._without_estimator(name) for name in names}

    def _model(self) -> str:
        """Returns the name of the only model, unless the program calls something else so."""
        tree = self._source.tree
        bound = {each.id for each in nodes_in(tree, ast.Name) if isinstance(each.ctx, ast.Store)}
        others = bound - {name for _, name in self._held}
        return "keras_model" if "model" in others else "model"

    def _without_estimator(self, name: str) -> str:
        new = name.replace("estimator", "model").replace("Estimator", "Model")
        return name if new in self._taken else new

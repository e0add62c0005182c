"""Turns the exporters of an EvalSpec into callbacks of `fit`, or a statement after `fit`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import config_arguments, serving_receivers
from estimator_bridge.migrate.keras_form.call_sites.sites import Site, followed
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    call_text,
    is_none,
    nodes_in,
)

AtColumn = Callable[[int], str]
"""A function from the column at which a statement starts to the statement's code."""

_OPTIONS = "assets_extra as_text"
_NAMES: Mapping[str, str] = {
    "FinalExporter": f"name serving_input_receiver_fn {_OPTIONS}",
    "LatestExporter": f"name serving_input_receiver_fn {_OPTIONS} exports_to_keep",
    "BestExporter": (
        f"name serving_input_receiver_fn event_file_pattern compare_fn {_OPTIONS} exports_to_keep"
    ),
}
"""The arguments of each exporter, in order."""

_RECEIVER = "serving_input_receiver_fn"
_CARRIED = ("compare_fn", "event_file_pattern", "exports_to_keep")
_DEFAULT_NAME = "best_exporter"


class Exporters:
    """Turns the exporters of an EvalSpec into code in the place of a `call`.

    If the EvalSpec has a name (`is_named`), its evaluations go to a folder of their own.
    """

    def __init__(
        self,
        source: Source,
        site: Site,
        call: ast.Call,
        node: ast.expr | None,
        evaluates: bool,
        is_named: bool,
    ) -> None:
        self._source, self._site, self._call = source, site, call
        self._evaluates, self._is_named = evaluates, is_named
        self.at_end: list[AtColumn] = []
        self.callbacks: list[AtColumn] = []
        exporters = followed(source, node)
        is_list = isinstance(exporters, (ast.List, ast.Tuple))
        for each in exporters.elts if is_list else [exporters]:  # type: ignore[union-attr]
            if each is not None and not is_none(each):
                self._read(each)

    def _read(self, node: ast.expr) -> None:
        source = self._source
        exporter = followed(source, node)
        kind = source.called(exporter or node).rpartition(".")[2]
        folder = config_arguments.model_dir(self._site)
        if not isinstance(exporter, ast.Call) or kind not in _NAMES or folder is None:
            source.problem(
                *(node, "keras-exporter", "a Keras model has no such exporter"),
                "Use a FinalExporter, LatestExporter or BestExporter, made where the EvalSpec is, "
                "and give the estimator a model_dir",
            )
            return
        required = _RECEIVER if kind == "BestExporter" else f"name {_RECEIVER}"
        by_name = rules.known_arguments(source, exporter, _NAMES[kind], required)
        for key in _OPTIONS.split():
            if key in by_name and not _is_empty(by_name[key]):
                why = f"its argument {key} is not supported"
                source.problem(by_name[key], "keras-exporter", why, f"Do without {key}")
        receiver = serving_receivers.arguments_of(source, exporter, by_name[_RECEIVER])
        if kind == "FinalExporter":
            self.at_end.append(lambda column: self._export(by_name, receiver, folder, column))
            return
        self._check_evaluates(exporter)
        source.need(rules.KERAS, kind)
        self.callbacks.append(
            lambda column: self._callback(kind, by_name, receiver, folder, column)
        )

    def _check_evaluates(self, exporter: ast.Call) -> None:
        if not self._evaluates:
            self._source.problem(
                *(exporter, "keras-exporter", "it is not known when checkpoints are evaluated"),
                "Give the TrainSpec max_steps, and the estimator a model_dir and a "
                "RunConfig(save_checkpoints_steps=...)",
            )

    def _path(self, by_name: Mapping[str, ast.expr], folder: ast.expr) -> str:
        source = self._source
        name = source.code(by_name["name"]) if "name" in by_name else repr(_DEFAULT_NAME)
        calls = any(nodes_in(folder, ast.Call))  # Another call might return another folder.
        is_known = not calls and not source.changed_names(folder, self._call)
        code = source.code(folder) if is_known else f"{self._site.name}.checkpoints.directory"
        return f"tf.io.gfile.join({code}, 'export', {name})"

    def _export(
        self, by_name: Mapping[str, ast.expr], receiver: Text, folder: ast.expr, column: int
    ) -> str:
        pad = " " * (column + 4)
        path = self._path(by_name, folder)
        return f"{self._site.name}.export_saved_model(\n{pad}{path}, {receiver()})"

    def _callback(
        self,
        kind: str,
        by_name: Mapping[str, ast.expr],
        receiver: Text,
        folder: ast.expr,
        column: int,
    ) -> str:
        parts = [self._path(by_name, folder), receiver()]
        options = {key: self._source.code(by_name[key]) for key in _CARRIED if key in by_name}
        if kind == "BestExporter" and self._is_named:
            # The default pattern only finds evaluations without a name.
            options.setdefault("event_file_pattern", "None")
        parts += [f"{key}={code}" for key, code in options.items()]
        return call_text(kind, parts, column)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value

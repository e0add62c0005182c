"""Replaces a canned estimator by a Keras model, which needs no tables of the engine."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form.call_sites import config_arguments, warm_start_line
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.canned_form import canned_heads
from estimator_bridge.migrate.keras_form.canned_form.canned_model import CARRIED, CannedModelWriter
from estimator_bridge.migrate.keras_form.program_text.source import Source

_EXPORTS = ("estimator.FinalExporter", "estimator.LatestExporter", "estimator.BestExporter")


def write(source: Source, site: Site) -> CannedModelWriter:
    head = canned_heads.read(source, site)
    starts_warm = "warm_start_from" in site.arguments
    warm_start = warm_start_line.lines(source, site)
    config_arguments.check(source, site, CARRIED)
    model = CannedModelWriter(source, site, head, starts_warm, _exports(source))
    statement = source.statement_of(site.call)

    def write_statement() -> str:
        pad = " " * statement.col_offset
        lines = [
            *config_arguments.seed_lines(source, site),
            f"{site.name} = {model.construction(statement.col_offset)}",
            config_arguments.checkpoints_line(source, site, site.name),
            *warm_start(),
        ]
        if isinstance(statement, ast.Return):
            lines.append(f"return {site.name}")
        return f"\n{pad}".join(lines)

    source.replace(statement, write_statement)
    return model


def place(source: Source, site: Site) -> int:
    statement = source.statement_of(site.call)
    around = [statement, *source.above(statement)]
    outermost = next(each for each in around if source.parent(each) is source.tree)
    assert isinstance(outermost, ast.stmt)
    return source.lines(outermost)[0]


def _exports(source: Source) -> bool:
    return any(
        source.called(node) in _EXPORTS
        or (isinstance(node, ast.Attribute) and node.attr.startswith("export_saved"))
        for node in ast.walk(source.tree)
    )

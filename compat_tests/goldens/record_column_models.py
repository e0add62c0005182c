"""Records the reports of audit, to_tf2 and migrate on the programs in compat_tests/column_models.

    python -m compat_tests.goldens.record_column_models

What changes in these files is what users will see: read the diff.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from compat_tests import column_models
from estimator_bridge import audit, migrate
from estimator_bridge.cli import program_arguments
from estimator_bridge.run import install

GOLDENS = pathlib.Path(__file__).parent / "column_models"
NAMES = column_models.NAMES


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    column_models.write(pathlib.Path(folder.name))
    return folder


def path_of_program(name: str) -> pathlib.Path:
    """Returns the file of a program, which is there until the process ends."""
    return pathlib.Path(_folder().name, f"{name}.py")


def spec_of(name: str) -> Any:
    try:
        return program_arguments.load(f"{path_of_program(name)}:make_spec")
    finally:
        install.uninstall()


def audited(name: str) -> str:
    """Returns the findings in the source, and those in the spec."""
    of_script = audit.audit_script(str(path_of_program(name)))
    of_script = dataclasses.replace(of_script, subject=f"{name}.py")
    of_spec = audit.audit_spec(spec_of(name), f"{name}.py:make_spec", hosts=(1, 2))
    return _text([*of_script.lines(), "", *of_spec.lines()])


def in_tf2(name: str) -> str:
    """Returns the objects of TensorFlow 2, and the changes."""
    tf2 = migrate.to_tf2(spec_of(name))
    return _text([*_described(tf2), "", *tf2.report.lines()]).replace(f"{_folder().name}/", "")


def migrated(name: str) -> str:
    """Returns the bridge form of a program, and the report."""
    rewritten = migrate.adopt(column_models.source(name), f"{name}.py")
    return _text([*map(str, rewritten.lines), "", rewritten.source.rstrip("\n")])


KINDS = {"audit": audited, "tf2": in_tf2, "migrated": migrated}


def path_of(name: str, kind: str) -> pathlib.Path:
    return GOLDENS / f"{name}.{kind}.txt"


def _described(tf2: Any) -> Iterator[str]:
    for key, feature in sorted(tf2.feature_config.items()):
        table = feature.table
        yield f"{key}: {table.name} [{table.vocabulary_size}, {table.dim}], {table.combiner}"
        if feature.max_sequence_length:
            yield f"  max_sequence_length={feature.max_sequence_length}"
        kind = type(table.optimizer)
        yield f"  {kind.__module__.split('.')[0]} {kind.__name__}"
        for name, value in sorted(vars(table.optimizer).items()):
            if value not in (None, False):
                yield f"    {name}={'a function' if callable(value) else value}"
        yield f"  {tf2.preprocessing.columns[key]}"
    yield f"options: {tf2.options}, partition_strategy={tf2.engine_spec.partition_strategy!r}"
    yield f"for stock's TPUEmbedding: {tf2.for_stock}"


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def main() -> None:
    GOLDENS.mkdir(exist_ok=True)
    for name in NAMES:
        for kind, make in KINDS.items():
            path_of(name, kind).write_text(make(name), encoding="utf-8")


if __name__ == "__main__":
    main()

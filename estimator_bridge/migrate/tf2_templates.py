"""The texts that the tf2 form inserts into a program, under names that are free in it."""

from __future__ import annotations

import ast
import itertools
import pathlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from estimator_bridge.migrate import import_statements
from estimator_bridge.migrate.parsed_program import ParsedProgram

_MODEL, _EXPORT, _TRAINING = "tf2_model", "tf2_export", "tf2_program"
_TEXTS = {
    name: pathlib.Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    for name in (_MODEL, _EXPORT, _TRAINING)
}
"""In the order in which they are inserted: each uses names of those before it."""

_ALIAS = "v1 = tf2.compat.v1\n"
"""The line that ends the imports of each text."""

_TRAINER_BASE = ("class Trainer(EmbeddingModel):", "class Trainer(ExportableModel):")
"""The trainer's class in programs that do not export, and in those that do."""

START = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def program(names: Mapping[str, str], *, exports: bool) -> tuple[str, str]:
    """Returns the imports, and the rest of the texts.

    Args:
        names: the new name of each name, as `free_names` returns them.
        exports: whether to include the export of SavedModels.
    """
    texts = [text for name, text in _TEXTS.items() if exports or name != _EXPORT]
    body = "\n\n\n".join([_ALIAS.strip(), *(text.partition(_ALIAS)[2].strip() for text in texts)])
    if exports:
        assert _TRAINER_BASE[0] in body
        body = body.replace(*_TRAINER_BASE)
    parts = [_imports(texts), f"{body}\n"]
    for old, new in names.items():
        if old != new:
            parts = [re.sub(rf"(?<![\w.]){old}\b", new, part) for part in parts]
    return parts[0], parts[1]


def free_name(name: str, taken: Collection[str]) -> str:
    """Returns a name that is not taken: the given one if possible."""
    while name in taken:
        name = f"tf2_{name}"
    return name


def free_names(taken: Collection[str]) -> dict[str, str]:
    """Returns, for each name that the texts define, one that is not taken."""
    defined = itertools.chain.from_iterable(map(_defined, _TEXTS.values()))
    return {name: free_name(name, taken) for name in defined}


def names_in(program: ParsedProgram) -> set[str]:
    """Returns the names that a program binds, but for imports that are removed."""
    return set(_names_in(program))


def _names_in(program: ParsedProgram) -> Iterator[str]:
    for scope in set(program.scopes.values()):
        for assignment in scope.assignments if scope is not None else ():
            node = getattr(assignment, "node", None)
            if not isinstance(node, cst.Import | cst.ImportFrom):
                yield assignment.name
                continue
            for each in import_statements.read(node):
                if not (each.place or each.by_use):
                    yield str(each.bound)


def _defined(text: str) -> Iterator[str]:
    """Yields the names that a text defines at its top, but for modules under their own names."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield ast.unparse(statement.targets[0])
        elif isinstance(statement, ast.AnnAssign):
            yield ast.unparse(statement.target)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname for alias in statement.names if alias.asname)


def _imports(texts: Sequence[str]) -> str:
    """Returns the import statements of texts, merged; without imports of one text by another."""
    names: dict[tuple[int, bool, str, str], set[str]] = {}
    for statement in (each for text in texts for each in ast.parse(text).body):
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        for alias in statement.names:
            is_from = isinstance(statement, ast.ImportFrom)
            module = str(getattr(statement, "module", alias.name))
            if module.rpartition(".")[2] in _TEXTS:
                continue
            code = ast.unparse(alias)
            start = f"from {module} import " if is_from else "import "
            # A name with an alias has a line of its own.
            alone = code if alias.asname or not is_from else ""
            root = module.partition(".")[0]
            # The standard library, TensorFlow, ours.
            section = 0 if root in sys.stdlib_module_names else 1 if root == "tensorflow" else 2
            names.setdefault((section, is_from, start, alone), set()).add(code)
    return "".join(f"{key[2]}{', '.join(sorted(names[key]))}\n" for key in sorted(names))

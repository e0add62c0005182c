"""The texts that the second form adds to a program, under names that are free in it."""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

import libcst as cst
from libcst import metadata

from estimator_bridge.migrate import imports

_MODEL, _EXPORT, _TRAINING = "tf2_model", "tf2_export", "tf2_program"
_TEXTS = {
    name: pathlib.Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    for name in (_MODEL, _EXPORT, _TRAINING)
}
"""In the order in which they are written: each uses names of those before it."""

_ALIAS = "v1 = tf2.compat.v1\n"
"""What ends the imports of each."""

_BASE = ("class Trainer(EmbeddingModel):", "class Trainer(ExportableModel):")
"""What the trainer is made of, in programs that do not export and in those that do."""

START = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def program(names: dict[str, str], *, exports: bool) -> tuple[str, str]:
    """Returns the imports and the rest of what is added, under the given names."""
    texts = [text for name, text in _TEXTS.items() if exports or name != _EXPORT]
    body = "\n\n\n".join([_ALIAS.strip(), *(text.partition(_ALIAS)[2].strip() for text in texts)])
    if exports:
        assert _BASE[0] in body
        body = body.replace(*_BASE)
    parts = [_imports(texts), f"{body}\n"]
    for old, new in names.items():
        if old != new:
            parts = [re.sub(rf"(?<![\w.]){old}\b", new, part) for part in parts]
    return parts[0], parts[1]


def of_exports() -> frozenset[str]:
    """Returns the names that are added only where a program exports or uses them."""
    return frozenset(_names_of(_TEXTS[_EXPORT])) - frozenset(_names_of(_TEXTS[_MODEL]))


def free_names(wrapper: metadata.MetadataWrapper) -> dict[str, str]:
    """Returns, by the names that are added, those under which the program has room for them."""
    taken = set()
    for scope in set(wrapper.resolve(metadata.ScopeProvider).values()):
        for assignment in scope.assignments if scope is not None else ():
            node = getattr(assignment, "node", None)
            if not isinstance(node, cst.Import | cst.ImportFrom):
                taken.add(assignment.name)
                continue
            taken.update(
                str(each.bound) for each in imports.read(node) if not (each.place or each.by_use)
            )
    found = {}
    for text in _TEXTS.values():
        for name in _names_of(text):
            found[name] = name
            while found[name] in taken:
                found[name] = f"tf2_{found[name]}"
    return found


def _names_of(text: str) -> Iterator[str]:
    """Yields what a text adds at the top, but for modules under their own names."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            yield ast.unparse(target)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname for alias in statement.names if alias.asname)


def _imports(texts: list[str]) -> str:
    """Returns the imports of texts in one; none are those of a text by another."""
    found: dict[tuple[int, str, str, str], set[str]] = {}
    for statement in (each for text in texts for each in ast.parse(text).body):
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        for alias in statement.names:
            what = ast.unparse(alias)
            module = str(getattr(statement, "module", alias.name))
            if module.rpartition(".")[2] in _TEXTS:
                continue
            start = f"from {module} import " if isinstance(statement, ast.ImportFrom) else "import "
            # What has another name here has a line of its own.
            alone = what if alias.asname or start == "import " else ""
            found.setdefault((_section(module), start, module, alone), set()).add(what)
    in_order = sorted(found.items(), key=lambda each: (each[0][0], each[0][1] != "import ", each))
    return "".join(f"{key[1]}{', '.join(sorted(names))}\n" for key, names in in_order)


def _section(module: str) -> int:
    """Returns where an import stands: of Python, of others, ours."""
    root = module.partition(".")[0]
    return 0 if root in sys.stdlib_module_names else 1 if root == "tensorflow" else 2

"""Finds the files of a program: those that it imports, and those in its folder."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

from estimator_bridge.migrate.syntax.modules import Modules, written_module
from estimator_bridge.run.program_lines import Libraries


def is_own(path: pathlib.PurePath) -> bool:
    """Whether a file, given by its path below a program's folder, is not part of an environment."""
    return not any(
        part.startswith(".") or part in ("site-packages", "dist-packages") for part in path.parts
    )


def imported_files(program: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """Yields the files that a program imports, directly or indirectly, and their module names.

    Files of libraries are left out. The names of modules in the program's package are relative to
    that package. The imports of a file that cannot be read or parsed are unknown.
    """
    libraries, folder = Libraries(str(program)), program.parent
    seen, queue = {program.resolve()}, [program]
    while queue:
        for path, name in sorted(_imported_by(queue.pop(), folder).items()):
            if path not in seen and not libraries.have(str(path)):
                seen.add(path)
                queue.append(path)
                yield path, name


def package_name(folder: pathlib.Path) -> str:
    parts: list[str] = []
    folder = folder.resolve()
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _imported_by(file: pathlib.Path, folder: pathlib.Path) -> dict[pathlib.Path, str]:
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    is_package = file.name == "__init__.py"
    parts = [package_name(file.parent), *([] if is_package else [file.stem])]
    here = Modules(".".join(filter(None, parts)), is_package)
    written = {each for node in nodes for each in _names_imported(node)}
    package = package_name(folder)
    above = folder.resolve().parents[package.count(".")] if package else folder
    imported = [(root, here.absolute(each)) for each in written for root in (folder, above)]
    for each in written:
        dots = len(each) - len(each.lstrip("."))
        # A package without __init__.py has no full name.
        imported += [(root, each[dots:]) for root in [*file.resolve().parents][:dots][-1:]]
    modules: dict[pathlib.Path, str] = {}
    for root, name in imported:
        module = root.resolve().joinpath(*name.split("."))
        for path in (module.with_suffix(".py"), module / "__init__.py"):
            if name and path.is_file():
                modules[path] = name.removeprefix(f"{package}.")
    return modules


def _names_imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield written_module(node)
        yield from _below(node)


def _below(statement: ast.ImportFrom) -> list[str]:
    module = written_module(statement)
    return [f"{module}{'' if module.endswith('.') else '.'}{each.name}" for each in statement.names]

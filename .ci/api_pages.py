"""Puts the reference of public names into the pages of docs/api: signatures and docstrings.

A page of docs/api has a heading for each public name of a package, or for several, and an example
below it. The site has the reference between the two. Sources are read and not imported, so that no
TensorFlow is needed.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = "docs/api"

PACKAGES = (
    "tf2_engine",
    "tf2_engine.keras",
    "tf2_engine.preprocessing",
    "tf2_engine.training",
    "tf2_engine.summaries",
    "estimator_bridge",
    "estimator_bridge.install",
    "estimator_bridge.hooks",
    "estimator_bridge.legacy.parameters",
    "estimator_bridge.convert",
    "estimator_bridge.audit",
    "estimator_bridge.migrate",
    "estimator_bridge.planner",
    "estimator_bridge.recording",
)
"""The packages with public names; docs/install.md has those names that are stock's."""

MADE_ELSEWHERE = {
    "tf2_engine.keras.classes.Baseline": (
        "tf2_engine.keras.layer_bases.linear_layer.BaselineLayer"
    ),
    "tf2_engine.keras.classes.BinaryClassHead": (
        "tf2_engine.keras.heads.class_heads.BinaryClassHeadLayer"
    ),
    "tf2_engine.keras.classes.LinearFeatures": (
        "tf2_engine.keras.layer_bases.linear_layer.LinearFeaturesLayer"
    ),
    "tf2_engine.keras.classes.MultiClassHead": (
        "tf2_engine.keras.heads.class_heads.MultiClassHeadLayer"
    ),
    "tf2_engine.keras.classes.LogisticRegressionHead": (
        "tf2_engine.keras.heads.number_heads.LogisticRegressionHeadLayer"
    ),
    "tf2_engine.keras.classes.MultiHead": "tf2_engine.keras.heads.combined_heads.MultiHeadLayer",
    "tf2_engine.keras.classes.MultiLabelHead": (
        "tf2_engine.keras.heads.class_heads.MultiLabelHeadLayer"
    ),
    "tf2_engine.keras.classes.PoissonRegressionHead": (
        "tf2_engine.keras.heads.number_heads.PoissonRegressionHeadLayer"
    ),
    "tf2_engine.keras.classes.RegressionHead": (
        "tf2_engine.keras.heads.number_heads.RegressionHeadLayer"
    ),
    "tf2_engine.keras.classes.RateByStep": "tf2_engine.keras.rule_optimizer.RateByStepBase",
    "tf2_engine.keras.classes.RuleOptimizer": "tf2_engine.keras.rule_optimizer.RuleOptimizerBase",
    "tf2_engine.keras.classes.ColumnEmbedding": (
        "tf2_engine.keras.layer_bases.column_layers.ColumnEmbeddingLayer"
    ),
    "tf2_engine.keras.classes.DenseFeatures": (
        "tf2_engine.keras.layer_bases.column_layers.DenseFeaturesLayer"
    ),
    "tf2_engine.keras.classes.GRUCell": "tf2_engine.keras.layer_bases.sequence_layer.GRUCellBase",
    "tf2_engine.keras.classes.Preprocessing": (
        "tf2_engine.keras.layer_bases.column_layers.PreprocessingLayer"
    ),
    "tf2_engine.keras.classes.SequenceFeatures": (
        "tf2_engine.keras.layer_bases.sequence_layer.SequenceFeaturesLayer"
    ),
    "tf2_engine.keras.classes.SequenceHead": (
        "tf2_engine.keras.heads.combined_heads.SequenceHeadLayer"
    ),
    "tf2_engine.keras.classes.BestExporter": ("tf2_engine.keras.callbacks.BestExporterBase"),
    "tf2_engine.keras.classes.LatestExporter": ("tf2_engine.keras.callbacks.LatestExporterBase"),
    "tf2_engine.keras.classes.StepLog": "tf2_engine.keras.callbacks.StepLogBase",
    "tf2_engine.keras.classes.StopAtStep": ("tf2_engine.keras.callbacks.StopAtStepBase"),
    "tf2_engine.keras.classes.StopIfHigher": ("tf2_engine.keras.callbacks.StopIfHigherBase"),
    "tf2_engine.keras.classes.StopIfLower": ("tf2_engine.keras.callbacks.StopIfLowerBase"),
    "tf2_engine.keras.classes.StopIfNaN": "tf2_engine.keras.callbacks.StopIfNaNBase",
    "tf2_engine.keras.classes.StopIfNoDecrease": (
        "tf2_engine.keras.callbacks.StopIfNoDecreaseBase"
    ),
    "tf2_engine.keras.classes.StopIfNoIncrease": (
        "tf2_engine.keras.callbacks.StopIfNoIncreaseBase"
    ),
    "tf2_engine.keras.classes.StopWhen": "tf2_engine.keras.callbacks.StopWhenBase",
    "tf2_engine.keras.classes.TPUEmbedding": (
        "tf2_engine.keras.layer_bases.embedding_layer.EmbeddingLayer"
    ),
    "tf2_engine.keras.classes.TableModel": "tf2_engine.keras.table_model.TableModelBase",
    "tf2_engine.keras.classes.TrainerModel": "tf2_engine.keras.trainer_model.TrainerModelBase",
    "tf2_engine.keras.classes.TableSummaryCallback": (
        "tf2_engine.keras.callbacks.TableSummaryCallbackBase"
    ),
}
"""Classes that are made of others for each Keras, and the sources that describe them."""

WIDTH = 88
"""The longest signature on one line."""

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Slots")


class Source(NamedTuple):
    """A class, a function or a constant in a module."""

    module: str
    node: ast.AST
    doc: str


def public_names(package: str) -> dict[str, str]:
    """Returns the public names of a package, and the module that each is imported from."""
    tree = _module(package)
    names: dict[str, str] = {}
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                names |= _imported(statement)
    chosen = _all_of(tree)
    if package == "estimator_bridge.legacy.parameters":
        return {
            node.name: package
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name.endswith("Parameters")
        }
    if not names:
        for statement in tree.body:
            names |= _imported(statement)
    return {name: module for name, module in names.items() if not chosen or name in chosen}


def source_of(module: str, name: str) -> Source:
    """Returns where a name is defined; raises KeyError if it is not found."""
    module, _, name = MADE_ELSEWHERE.get(f"{module}.{name}", f"{module}.{name}").rpartition(".")
    tree = _module(module)
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return Source(module, node, ast.get_docstring(node) or "")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            return Source(module, node, str(following.value.value) if is_text else "")
    for node in tree.body:
        for imported, home in _imported(node).items():
            if imported == name:
                return source_of(home, name)
    raise KeyError(f"{module} has no {name}")


def reference(package: str, name: str, level: int) -> str:
    """Returns the Markdown of a name: its signature, its docstring and its methods."""
    source = source_of(public_names(package)[name], name)
    parts = [_code(f"{package}.{_signature(source, name)}"), markdown(source.doc)]
    if isinstance(source.node, ast.ClassDef):
        for method in _methods(source, set(public_names(package))):
            title = f"{'#' * level} `{name}.{method.name}` {{ #{name}.{method.name} }}"
            text = markdown(ast.get_docstring(method) or "")
            decorators = [ast.unparse(each) for each in method.decorator_list]
            shown = method.name if "property" in decorators else method.name + _arguments(method)
            parts += [title, _code(shown), text]
    return "\n\n".join(parts)


def with_references(page: str, text: str) -> str:
    """Returns the text of a page of docs/api with the reference below each heading."""
    package = pathlib.PurePath(page).stem

    def entry(heading: re.Match[str]) -> str:
        names = [name.strip(" `") for name in heading[1].split(",")]
        if len(names) == 1:
            return f"{heading[0]}\n\n{reference(package, names[0], 3)}\n\nExample:"
        entries = (f"### {name}\n\n{reference(package, name, 4)}" for name in names)
        return "\n\n".join([heading[0], *entries, "Example:"])

    return re.sub(r"^## (.*)$", entry, text, flags=re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str | None:
    """Adds the references while MkDocs builds a page of docs/api."""
    is_package = page.file.src_uri.startswith(f"{FOLDER}/")
    return with_references(page.file.src_uri, markdown) if is_package else None


def markdown(doc: str) -> str:
    """Returns a docstring as Markdown: its sections become lists."""
    shown: list[str] = []
    section = ""
    for line in doc.splitlines():
        title = line.removesuffix(":")
        if line.endswith(":") and title in SECTIONS:
            section = title
            shown += ["", f"**{title}**", ""]
        elif section and line.startswith("    "):
            shown.append(_item(line[4:]))
        elif line.startswith("    "):
            shown.append(line)
        else:
            section = section if not line.strip() else ""
            shown.append(_text(line))
    return "\n".join(shown).strip()


def _item(line: str) -> str:
    entry = re.match(r"(\*{0,2}[\w, *]+): (.*)", line)
    if line.startswith(" ") or not entry:
        return f"    {_text(line.strip())}" if line.startswith(" ") else f"- {_text(line)}"
    return f"- `{entry[1]}`: {_text(entry[2])}"


def _text(line: str) -> str:
    """Returns a line in which nothing is HTML or emphasis, outside of code."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*])", r"\\\1", part) for part in parts
    )


def _code(signature: str) -> str:
    """Returns a signature as code: one of more than a line has a line for each argument."""
    name, opened, rest = signature.partition("(")
    inside, closed, result = rest.rpartition(") ->") if ") ->" in rest else rest.rpartition(")")
    if opened and len(signature) > WIDTH:
        lines = "".join(f"    {each},\n" for each in _split(inside))
        signature = f"{name}(\n{lines}{closed}{result}"
    return f"```python\n{signature}\n```"


def _split(arguments: str) -> list[str]:
    """Returns the parts between commas that are in no bracket."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _signature(source: Source, name: str) -> str:
    node = source.node
    if isinstance(node, ast.FunctionDef):
        return name + _arguments(node)
    if not isinstance(node, ast.ClassDef):
        return name
    for each in _classes(source):
        for part in each.node.body:  # type: ignore[attr-defined]
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                return name + _arguments(part)
    # In the order in which they come first, as the last class has them.
    fields: dict[str, str] = {}
    for each in reversed(list(_classes(source))):
        fields |= {field.partition(":")[0]: field for field in _fields(each.node)}
    return f"{name}({', '.join(fields.values())})" if fields else name


def _fields(node: Any) -> Iterator[str]:
    """Yields the fields of a dataclass or of a NamedTuple, with types and defaults."""
    if not node.decorator_list and "NamedTuple" not in map(ast.unparse, node.bases):
        return
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or "ClassVar" in ast.unparse(part.annotation):
            continue
        default, kind = part.value, ast.unparse(part.annotation)
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "setting":
            default = default.args[0]
        text = "" if default is None else ast.unparse(default)
        shown = f" = {text}" if text not in ("", "REQUIRED") else ""
        yield f"{ast.unparse(part.target)}: {kind}{shown}"


def _arguments(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    result = "" if node.returns is None or node.name == "__init__" else ast.unparse(node.returns)
    return f"({arguments})" + (f" -> {result}" if result else "")


def _methods(source: Source, described: set[str]) -> Iterator[ast.FunctionDef]:
    """Yields public methods, but for those of bases that are `described` elsewhere."""
    seen = set()
    for each in _classes(source):
        if each.node is not source.node and each.node.name in described:  # type: ignore[attr-defined]
            continue
        for part in each.node.body:  # type: ignore[attr-defined]
            is_public = isinstance(part, ast.FunctionDef) and not part.name.startswith("_")
            if is_public and part.name not in seen and ast.get_docstring(part):
                seen.add(part.name)
                yield part


def _classes(source: Source) -> Iterator[Source]:
    """Yields a class, and its bases as far as they are this project's."""
    yield source
    assert isinstance(source.node, ast.ClassDef)
    for base in source.node.bases:
        if isinstance(base, ast.Name):
            try:
                base_source = source_of(source.module, base.id)
            except KeyError:
                continue
            if isinstance(base_source.node, ast.ClassDef):
                yield from _classes(base_source)


def _imported(statement: ast.AST) -> dict[str, str]:
    """Returns the names that a statement imports from this project, and from where."""
    if not isinstance(statement, ast.ImportFrom) or not statement.module:
        return {}
    if not statement.module.startswith(("estimator_bridge", "tf2_engine")):
        return {}
    names = {alias.name: statement.module for alias in statement.names if alias.name != "*"}
    if any(alias.name == "*" for alias in statement.names):
        for inner in _module(statement.module).body:
            if isinstance(inner, ast.ImportFrom):
                listed = [alias.name for alias in inner.names if alias.asname == alias.name]
                names |= dict.fromkeys(listed, str(inner.module))
    return names


def _all_of(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@functools.cache
def _module(name: str) -> ast.Module:
    path = ROOT.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise KeyError(f"{name} is no module")
    return ast.parse(file.read_text(encoding="utf-8"))

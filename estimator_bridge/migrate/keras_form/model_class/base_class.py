"""The base class of several models: the methods and the end of `__init__` that all share."""

from __future__ import annotations

import ast
import dataclasses
import textwrap
from collections.abc import Sequence

from estimator_bridge.migrate.keras_form.program_text.source import (
    free_name,
    names_in,
    nodes_in,
)

_TABLE_MODEL = "TableModel"


@dataclasses.dataclass
class ClassPieces:
    """The text of a model class, in pieces.

    Attributes:
        layers: the layer classes that precede it.
        doc: its docstring, one line without quotes.
        arguments: the arguments of `__init__` after the embedding.
        names: code of the layer names in checkpoints, if they differ; or "".
        init: the statements of `__init__` that create attributes and layers.
        end: the statements of `__init__` that create metrics and compile.
    """

    layers: str
    name: str
    doc: str
    arguments: list[str]
    names: str
    init: str
    end: str
    methods: list[str]
    base: str = _TABLE_MODEL

    def text(self) -> str:
        names = f", names={self.names}" if self.names else ""
        methods = "".join(f"\n{each}" for each in self.methods)
        return (
            f"{self.layers}class {self.name}({self.base}):\n{_quoted(self.doc)}\n"
            f"  def __init__(self, {', '.join(['embedding', *self.arguments])}):\n"
            f"    super().__init__(embedding{names})\n{self.init}{self.end}{methods}"
        )


def texts(classes: Sequence[ClassPieces], taken: set[str]) -> list[str]:
    """Returns the text of each class; the first text starts with the base class, if any."""
    methods = [each for each in classes[0].methods if all(each in one.methods for one in classes)]
    if len(classes) < 2 or not methods:
        return [each.text() for each in classes]
    name = free_name("BaseModel", taken)
    end = classes[0].end if all(_is_base_end(each, classes[0].end) for each in classes) else ""
    base = _base(name, end, methods, has_names=any(each.names for each in classes))
    new = [
        dataclasses.replace(
            each,
            base=name,
            end=each.end.removesuffix(end),
            methods=[one for one in each.methods if one not in methods],
        ).text()
        for each in classes
    ]
    return [f"{base}\n\n{new[0]}", *new[1:]]


def _base(name: str, end: str, methods: Sequence[str], has_names: bool) -> str:
    names = (", names=None", ", names=names") if has_names else ("", "")
    init = (
        f"  def __init__(self, embedding{names[0]}):\n    super().__init__(embedding{names[1]})\n"
        f"{end}\n"
        if end
        else ""
    )
    doc = _quoted("What the models have in common.")
    return f"class {name}({_TABLE_MODEL}):\n{doc}\n{init}" + "\n".join(methods)


def _is_base_end(pieces: ClassPieces, end: str) -> bool:
    """Whether `__init__` has this end, and the end reads no attribute, argument or local name."""
    if pieces.end != end:
        return False
    before, statements = (ast.parse(textwrap.dedent(each)) for each in (pieces.init, pieces.end))
    names = nodes_in(before, ast.Name)
    made_before = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    reads_attributes = any(
        isinstance(each.ctx, ast.Load)
        and ast.unparse(each.value) == "self"
        and each.attr != "compile"
        for each in nodes_in(statements, ast.Attribute)
    )
    return not reads_attributes and not names_in(statements) & {*pieces.arguments, *made_before}


def _quoted(doc: str) -> str:
    return f'  """{doc}"""\n'

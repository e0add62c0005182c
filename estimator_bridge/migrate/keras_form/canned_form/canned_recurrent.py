"""The recurrent network of RNNClassifier and RNNEstimator: its layer, cells and names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    call_text,
    is_none,
    nodes_in,
)

ARGUMENTS = ("units", "cell_type", "rnn_cell_fn", "return_sequences", "sequence_mask")

_LAYERS: Mapping[str, tuple[str, str]] = {
    "simple_rnn": ("SimpleRNN", "SimpleRNNCell"),
    "lstm": ("LSTM", "LSTMCell"),
    "gru": ("GRU", "GRUCell"),
}
"""The layer and the cell of `tf.keras.layers` for each `cell_type`."""

_KERAS = "tensorflow.keras.layers."
_LAYER = "rnn"
"""The name of an `RNN` layer, which is made from cells."""


class RecurrentWriter:
    """Writes the recurrent layer of a model.

    If `units` is a number and `cell_type` a string, the layer is an `LSTM` or similar. Otherwise it
    is an `RNN` with cells. The two name variables differently, so both arguments must be known.
    """

    def __init__(self, source: Source, site: Site) -> None:
        self._source = source
        self._arguments = {
            key: node
            for key, node in site.arguments.items()
            if key in ARGUMENTS and not is_none(node)
        }
        self.returns_sequences = self._read_returns_sequences()
        self._cell_fn = self._arguments.get("rnn_cell_fn")
        self._kind, self._cell_class = self._read_cell_type()
        self._units, self._is_number = ([], False) if self._cell_fn else self._read_units()
        self._keep_cells()

    @property
    def nodes(self) -> list[ast.expr]:
        return [*self._units, *filter(None, (self._cell_class, self._cell_fn))]

    @property
    def name(self) -> str:
        return self._kind if self._is_number else _LAYER

    def text(self) -> str:
        options = ["return_sequences=True"] if self.returns_sequences else []
        options.append(f"name='{self.name}'")
        if self._is_number:
            layer, first = f"tf.keras.layers.{_LAYERS[self._kind][0]}", self._code(self._units[0])
        else:
            layer, first = "tf.keras.layers.RNN", self._cells()
        return call_text(layer, [first, *options], 4, "self.rnn = ")

    def _cells(self) -> str:
        if self._cell_fn is not None:
            is_lambda = isinstance(self._cell_fn, ast.Lambda)
            return self._code(self._cell_fn.body) if is_lambda else f"{self._code(self._cell_fn)}()"  # type: ignore[attr-defined]
        cells = [*self._each_cell()]
        if len(cells) == 1:
            return cells[0]
        inner = ",\n        ".join(cells)
        return f"tf.keras.layers.StackedRNNCells([\n        {inner}], name='stacked_rnn_cells')"

    def _each_cell(self) -> Iterator[str]:
        for number, units in enumerate(self._units):
            if self._cell_class is not None:
                yield f"{self._code(self._cell_class)}(units={self._code(units)})"
                continue
            ending = f"_{number}" if number else ""
            cell = f"tf.keras.layers.{_LAYERS[self._kind][1]}"
            yield f"{cell}({self._code(units)}, name='{self._kind}_cell{ending}')"

    def _code(self, node: ast.expr) -> str:
        return self._source.code_at(node, 4)

    # Reading the arguments.

    def _read_returns_sequences(self) -> bool:
        node = self._arguments.get("return_sequences")
        self._source.need_constant(node, "keras-argument", "return_sequences", "truth value")
        return isinstance(node, ast.Constant) and bool(node.value)

    def _read_cell_type(self) -> tuple[str, ast.expr | None]:
        node = self._arguments.get("cell_type")
        if node is None:
            return "simple_rnn", None
        value = self._followed(node)
        if isinstance(value, ast.Constant) and value.value in _LAYERS:
            return str(value.value), None
        if self._is_class(node):
            return self._of_keras(node)
        self._source.problem(
            *(node, "keras-argument", "it is not known which cells these are"),
            "Write 'simple_rnn', 'lstm', 'gru', or a class of the program or of tf.keras.layers, "
            "into the call",
        )
        return "simple_rnn", None

    def _is_class(self, node: ast.expr) -> bool:
        classes = {each.name for each in nodes_in(self._source.tree, ast.ClassDef)}
        is_of_program = isinstance(node, ast.Name) and node.id in classes
        return is_of_program or self._source.full(node).startswith(_KERAS)

    def _of_keras(self, node: ast.expr) -> tuple[str, ast.expr | None]:
        last = self._source.full(node).rpartition(".")[2]
        kinds = {cell: kind for kind, (_, cell) in _LAYERS.items()}
        is_of_keras = self._source.full(node) == f"{_KERAS}{last}"
        if is_of_keras and last in kinds and not self._is_one_number():
            self._source.done.update(ast.walk(node))
            return kinds[last], None
        return "", node

    def _read_units(self) -> tuple[list[ast.expr], bool]:
        node = self._arguments.get("units")
        value = self._followed(node)
        widths = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
        if widths and not any(isinstance(each, ast.Starred) for each in widths):
            return list(widths), False
        if self._is_one_number() and self._kind and "cell_type" in self._arguments:
            assert node is not None
            return [node], True
        why, way_out = "it is not known how many cells there are", "Write a list of numbers into"
        if self._is_one_number():
            why, way_out = (
                "a single number of units needs the name of a cell",
                "Add cell_type='simple_rnn' to",
            )
        place = self._source.tree if node is None else node
        self._source.problem(place, "keras-argument", why, f"{way_out} the call")
        return [], False

    def _is_one_number(self) -> bool:
        value = self._followed(self._arguments.get("units"))
        if isinstance(value, ast.Constant):
            return isinstance(value.value, int)
        return isinstance(value, ast.Call) and getattr(value.func, "id", "") == "int"

    def _followed(self, node: ast.expr | None) -> ast.expr | None:
        return self._source.value_of(node) or node

    def _keep_cells(self) -> None:
        for node in ast.walk(self._source.tree):
            full = self._source.full(node)
            if full.startswith(_KERAS) and full.endswith(("Cell", "Cells")):
                self._source.done.add(node)

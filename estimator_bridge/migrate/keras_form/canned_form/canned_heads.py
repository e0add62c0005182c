"""Writes the heads of canned estimators: built-in heads, and heads passed as an argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import config_arguments
from estimator_bridge.migrate.keras_form.call_sites.sites import Site, all_arguments, followed
from estimator_bridge.migrate.keras_form.canned_estimators import Canned
from estimator_bridge.migrate.keras_form.program_text.source import Source, call_text


class HeadRow(NamedTuple):
    """A head: its arguments in order, and the argument that sets the number of logits, if any."""

    arguments: str
    units: str = ""


HEADS: Mapping[str, HeadRow] = {
    "BinaryClassHead": HeadRow(
        "weight_column thresholds label_vocabulary loss_reduction loss_fn name"
    ),
    "MultiClassHead": HeadRow(
        "n_classes weight_column label_vocabulary loss_reduction loss_fn name", "n_classes"
    ),
    "MultiLabelHead": HeadRow(
        "n_classes weight_column thresholds label_vocabulary loss_reduction loss_fn "
        "classes_for_class_based_metrics name",
        "n_classes",
    ),
    "RegressionHead": HeadRow(
        "label_dimension weight_column loss_reduction loss_fn inverse_link_fn name",
        "label_dimension",
    ),
    "PoissonRegressionHead": HeadRow(
        "label_dimension weight_column loss_reduction compute_full_loss name", "label_dimension"
    ),
    "LogisticRegressionHead": HeadRow("weight_column loss_reduction name"),
}
"""All heads except MultiHead. `tf2_engine.keras` has heads with the same names."""

_MULTI_HEAD = "MultiHead"
_KNOWN = ", ".join([*HEADS, _MULTI_HEAD])

_OF_ESTIMATOR = "n_classes label_dimension weight_column label_vocabulary loss_reduction"
"""Arguments of classifiers and regressors that configure the head."""

_RENAMED = {"loss_reduction": "reduction", "name": "suffix"}

_ORDER = (
    *("label_vocabulary", "weight_column", "thresholds", "classes_for_class_based_metrics"),
    *("compute_full_loss", "loss_fn", "inverse_link_fn", "loss_reduction", "name"),
)
"""The order in which the new program writes a head's arguments, after the number of logits."""

_REDUCTIONS: Mapping[str, str] = {
    "SUM": "sum",
    "SUM_OVER_BATCH_SIZE": "",
    "AUTO": "",
    "MEAN": "mean",
    "SUM_BY_NONZERO_WEIGHTS": "sum_by_nonzero_weights",
    "SUM_OVER_NONZERO_WEIGHTS": "sum_by_nonzero_weights",
}
"""Maps the last part of a legacy reduction's name to the reduction of `tf2_engine.keras`; "" is
the default of heads.
"""


class HeadWriter:
    """Writes a single head."""

    def __init__(
        self, source: Source, kind: str, by_name: Mapping[str, ast.expr], is_v1: bool
    ) -> None:
        self._source, self._kind, self._is_v1 = source, kind, is_v1
        self._by_name = dict(by_name)
        source.need(rules.KERAS, kind)
        self._reduction = self._read_reduction(self._by_name.pop("loss_reduction", None))

    @property
    def units(self) -> str:
        key = HEADS[self._kind].units
        return self._code(key) if key in self._by_name else "1"

    @property
    def needs_features(self) -> bool:
        return not {"weight_column", "loss_fn"}.isdisjoint(self._by_name)

    @property
    def scope(self) -> str:
        return "training"

    @property
    def nodes(self) -> list[ast.expr]:
        return [*self._by_name.values()]

    def text(self, column: int, prefix: str) -> str:
        return call_text(self._kind, [*self._parts()], column, prefix)

    def _parts(self) -> Iterator[str]:
        if self.units != "1":
            yield self.units
        for key in _ORDER:
            if key in self._by_name:
                yield f"{_RENAMED.get(key, key)}={self._code(key)}"
            elif key == "loss_reduction" and self._reduction:
                yield f"reduction={self._reduction!r}"
        if self._kind == "BinaryClassHead" and self._is_v1:
            yield "v1_auc=True"

    def _code(self, key: str) -> str:
        return self._source.code_at(self._by_name[key], 4)

    def _read_reduction(self, node: ast.expr | None) -> str:
        if node is None:
            return "sum" if self._is_v1 else ""
        self._source.done.update(ast.walk(node))
        name = node.value if isinstance(node, ast.Constant) else self._source.short(node)
        key = str(name).rpartition(".")[2].upper().removeprefix("WEIGHTED_")
        if key not in _REDUCTIONS:
            self._source.problem(
                *(node, "keras-loss", "no head of tf2_engine.keras has this reduction"),
                "Write a reduction to one number, such as SUM or SUM_OVER_BATCH_SIZE, in the call",
            )
        return _REDUCTIONS.get(key, "")


class MultiHeadWriter:
    """Writes a MultiHead; `weights` are the factors of the heads' losses."""

    def __init__(self, source: Source, heads: list[HeadWriter], weights: ast.expr | None) -> None:
        self._source, self._heads, self._weights = source, heads, weights
        source.need(rules.KERAS, _MULTI_HEAD)

    @property
    def units(self) -> str:
        return " + ".join(each.units for each in self._heads)

    @property
    def needs_features(self) -> bool:
        return any(each.needs_features for each in self._heads)

    @property
    def scope(self) -> str:
        return f"training_{len(self._heads)}"

    @property
    def nodes(self) -> list[ast.expr]:
        weights = [] if self._weights is None else [self._weights]
        return [node for each in self._heads for node in each.nodes] + weights

    def text(self, column: int, prefix: str) -> str:
        pad = " " * (column + 8)
        heads = "".join(f"\n{pad}{each.text(column + 8, '')}," for each in self._heads)
        parts = [f"[{heads.removesuffix(',')}]"]
        if self._weights is not None:
            parts.append(self._source.code_at(self._weights, column))
        return f"{_MULTI_HEAD}({', '.join(parts)})"


class SequenceHeadWriter(HeadWriter):
    """Writes a head for every step of a sequence; `mask_key` is the mask's key in predictions."""

    def __init__(
        self,
        source: Source,
        kind: str,
        by_name: Mapping[str, ast.expr],
        is_v1: bool,
        mask_key: ast.expr | None,
    ) -> None:
        super().__init__(source, kind, by_name, is_v1)
        self._mask_key = [] if mask_key is None else [mask_key]
        source.need(rules.KERAS, "SequenceHead")

    @property
    def nodes(self) -> list[ast.expr]:
        return [*super().nodes, *self._mask_key]

    def text(self, column: int, prefix: str) -> str:
        mask_key = [self._source.code_at(each, column) for each in self._mask_key]
        parts = [super().text(column + 4, ""), *mask_key]
        return call_text("SequenceHead", parts, column, prefix)


AnyHeadWriter = HeadWriter | MultiHeadWriter


def read(source: Source, site: Site) -> AnyHeadWriter:
    canned = site.canned
    assert canned is not None
    if canned.name.endswith("Estimator"):
        if _has_steps(site):  # the head for sequences is private
            source.problem(
                *(site.arguments["return_sequences"], "keras-estimator-class"),
                "the head of an RNNEstimator with return_sequences is private",
                "Use an RNNClassifier, or migrate to the bridge form",
            )
        writer = _writer_of(source, site.arguments.pop("head", None), canned)
        return writer or HeadWriter(source, "RegressionHead", {}, canned.is_v1)
    names = [key for key in _OF_ESTIMATOR.split() if key in site.arguments]
    by_name = {key: site.arguments.pop(key) for key in names}
    kind = _kind(source, by_name, canned)
    mask_key = site.arguments.pop("sequence_mask", None)
    if _has_steps(site):
        return SequenceHeadWriter(source, kind, by_name, canned.is_v1, mask_key)
    return HeadWriter(source, kind, by_name, canned.is_v1)


def _has_steps(site: Site) -> bool:
    node = site.arguments.get("return_sequences")
    return isinstance(node, ast.Constant) and bool(node.value)


def _kind(source: Source, by_name: dict[str, ast.expr], canned: Canned) -> str:
    if canned.name.endswith("Regressor"):
        return "RegressionHead"
    count = by_name.get("n_classes")
    source.need_constant(count, "keras-argument", "n_classes", "number")
    if count is None or (isinstance(count, ast.Constant) and count.value == 2):
        by_name.pop("n_classes", None)
        return "BinaryClassHead"
    return "MultiClassHead"


def _writer_of(source: Source, argument: ast.expr | None, canned: Canned) -> AnyHeadWriter | None:
    if argument is None:
        return None
    head = followed(source, argument)
    # The heads of TensorFlow 1's estimators are private, so no program can name them.
    if canned.is_v1 or not isinstance(head, ast.Call):
        _refused(source, argument)
        return None
    source.done.update(ast.walk(head.func))
    name = source.called(head).rpartition(".")[2]
    if name == _MULTI_HEAD:
        return _several(source, head, canned)
    if name not in HEADS:
        _refused(source, argument)
        return None
    by_name = _carried(source, head, HEADS[name].arguments.split())
    return HeadWriter(source, name, by_name, canned.is_v1)


def _several(source: Source, head: ast.Call, canned: Canned) -> AnyHeadWriter | None:
    by_name = _carried(source, head, ["heads", "head_weights"])
    heads = followed(source, by_name.get("heads"))
    if not isinstance(heads, (ast.List, ast.Tuple)):
        _refused(source, by_name.get("heads", head))
        return None
    known: list[HeadWriter] = []
    for each in heads.elts:
        writer = _writer_of(source, each, canned)
        if isinstance(writer, HeadWriter):
            known.append(writer)
        elif writer is not None:
            _refused(source, each)
    return MultiHeadWriter(source, known, by_name.get("head_weights"))


def _carried(source: Source, head: ast.Call, known: list[str]) -> dict[str, ast.expr]:
    by_name = all_arguments(source, head, known)
    for key in by_name.keys() - known:
        config_arguments.refuse(source, by_name[key], key)
    return by_name


def _refused(source: Source, node: ast.expr) -> None:
    source.done.update(ast.walk(node.func if isinstance(node, ast.Call) else node))
    source.problem(
        *(node, "keras-estimator-class", "its head is not supported"),
        f"Use one of {_KNOWN} with an estimator of TensorFlow 2, made where the "
        "estimator is, or migrate to the bridge form",
    )

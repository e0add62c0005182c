"""Audits a program by reading its source: what is written there, not what it computes."""

from __future__ import annotations

import ast
import pathlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_bridge.audit.report import Audit, Finding, ordered
from estimator_bridge.run.unsupported import ESTIMATOR as LEFT_OUT

_COMPUTED = object()
"""Stands for a value that only a run can tell."""

_Check = Callable[[Any], bool]


def _given(value: Any) -> bool:
    return value is not None


def _equals(*wanted: Any) -> _Check:
    return lambda value: any(value is each or value == each for each in wanted)


def _zero(value: Any) -> bool:
    return not isinstance(value, bool) and value == 0


_LIMITS = ("clip_weight_min", "clip_weight_max", "clip_gradient_min", "clip_gradient_max")
_TABLE = (
    ("learning_rate", _zero, "learning_rate_zero"),
    ("learning_rate_fn", _given, "learning_rate_fn"),
    ("combiner", _equals(None), "combiner_none"),
    ("hot_id_replication", _equals(True), "hot_id_replication"),
)
_COLUMN = (
    *_TABLE[1:3],
    *((name, _given, "sequence") for name in ("max_sequence_length", "max_sequence_lengths")),
    ("embedding_lookup_device", _equals("tpu_tensor_core"), "tensor_core_column"),
)
_PARAMETERS = (
    ("use_gradient_accumulation", _equals(False), "no_gradient_accumulation"),
    ("weight_decay_factor", _zero, "weight_decay_zero"),
    *((name, _given, "sparse_core") for name in _LIMITS),
)
_ARGUMENTS: Mapping[str, tuple[tuple[str, _Check, str], ...]] = {
    "EmbeddingConfigSpec": (
        ("clipping_limit", _given, "clipping_limit"),
        ("optimization_parameters", _given, "optimization_parameters"),
        ("experimental_gradient_multiplier_fn", _given, "gradient_multiplier"),
        ("pipeline_execution_with_tensor_core", _equals(True), "pipelining"),
        ("profile_data_directory", _given, "profile_data_directory"),
        ("partition_strategy", _equals("mod"), "mod_partitioning"),
        ("table_to_config_dict", _given, "config_dicts"),
    ),
    "TableConfig": _TABLE,
    "embedding_column": _COLUMN,
    "shared_embedding_columns": _COLUMN,
    "FeatureConfig": (
        ("max_sequence_length", _given, "sequence"),
        ("weight_key", _given, "weighted_feature"),
    ),
    "FtrlParameters": (("initial_accumulator_value", _zero, "ftrl_zero_accumulator"),),
    "TPUConfig": (
        ("num_shards", _equals(1), "one_core"),
        (
            "per_host_input_for_training",
            _equals(False, "PER_SHARD_V1", "BROADCAST", "SLICED"),
            "input_per_host",
        ),
    ),
}
"""By the function that is called: an argument, which of its values matter, and the rule."""

_CALLS = {
    "AdamParameters": "adam_without_correction",
    "MomentumParameters": "optimizer_lost",
    "RMSPropParameters": "optimizer_lost",
    "ProximalAdagradParameters": "optimizer_lost",
    "ProximalYogiParameters": "optimizer_lost",
    "FrequencyEstimatorParameters": "optimizer_lost",
    "weighted_categorical_column": "weighted_feature",
}
"""Functions whose call is enough."""

_TRANSFORMING = (
    "categorical_column_with_hash_bucket",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "bucketized_column",
    "crossed_column",
)


def audit_script(path: str) -> Audit:
    """Returns what the source of a program shows.

    Values that are computed, and calls with `*` and `**`, are told as remarks: a run knows them.

    Raises:
        SyntaxError: it is no Python 3.
    """
    tree = ast.parse(pathlib.Path(path).read_bytes(), path)
    visitor = _Visitor(pathlib.Path(path).name)
    visitor.visit(tree)
    remarks = [
        f"{where}: `{what}` is computed; --run tells its value" for where, what in visitor.computed
    ]
    if not visitor.specs:
        remarks.insert(0, "no EmbeddingConfigSpec is made in this file")
    findings = [*visitor.findings, *visitor.on_cpu_only()]
    if visitor.specs:
        findings += [Finding(rule, where) for rule, where in visitor.predicts]
        findings.append(Finding("ids_out_of_range", "all features"))
    return Audit(path, (), (), ordered(findings), tuple(remarks))


class _Visitor(ast.NodeVisitor):
    """Collects findings from calls, told apart by the last part of the name."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._transforming: dict[str, str] = {}
        self._tpu_inputs: list[tuple[ast.expr, str]] = []
        self.findings: list[Finding] = []
        self.computed: list[tuple[str, str]] = []
        self.predicts: list[tuple[str, str]] = []
        self.specs = 0

    def visit_Assign(self, node: ast.Assign) -> None:
        kind = _transformation(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and kind is not None:
                self._transforming[target.id] = kind
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in LEFT_OUT:
            self.findings.append(Finding("canned_estimator", self._at(node), node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _last_name(node.func)
        where = self._at(node)
        self.specs += name == "EmbeddingConfigSpec"
        if name in _CALLS:
            self.findings.append(Finding(_CALLS[name], where, name))
        if name == "predict":
            self.predicts.append(("predict", where))
        arguments = _ARGUMENTS.get(name, ())
        if name.endswith("Parameters"):
            arguments = (*arguments, *_PARAMETERS)
        if name in ("embedding_column", "shared_embedding_columns"):
            if "tpu" not in ast.unparse(node.func).split("."):
                arguments = ()
            elif node.args:
                self._tpu_inputs.append((node.args[0], where))
        self._arguments(node, arguments, where)
        self.generic_visit(node)

    def on_cpu_only(self) -> Iterator[Finding]:
        """Yields the TPU columns whose input is transformed, as far as the source shows it."""
        for argument, where in self._tpu_inputs:
            for part in ast.walk(argument):
                kind = _transformation(part)
                if isinstance(part, ast.Name):
                    kind = self._transforming.get(part.id)
                if kind is not None:
                    yield Finding("column_transforms_on_cpu_only", where, kind)

    def _arguments(
        self, node: ast.Call, arguments: tuple[tuple[str, _Check, str], ...], where: str
    ) -> None:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if arguments and None in given:
            self.computed.append((where, f"**{ast.unparse(given[None])}"))
        for name, matters, rule in arguments:
            if name not in given:
                continue
            value = _value(given[name])
            text = textwrap.shorten(ast.unparse(given[name]), 60, placeholder=" ...")
            if value is _COMPUTED and matters is not _given:
                self.computed.append((where, f"{name}={text}"))
            elif matters(value):
                self.findings.append(Finding(rule, where, f"{name}={text}"))

    def _at(self, node: ast.expr) -> str:
        return f"{self._file}:{node.lineno}"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _transformation(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    name = _last_name(node.func).removeprefix("sequence_")
    return name if name in _TRANSFORMING else None


def _value(node: ast.expr) -> Any:
    """Returns a constant; the last name of an attribute in capitals, as enums have; or a mark."""
    if isinstance(node, ast.Attribute) and node.attr.isupper():
        return node.attr
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _COMPUTED

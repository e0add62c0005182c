"""Audits a program by reading its source, without running it."""

from __future__ import annotations

import ast
import itertools
import os
import pathlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import errors
from estimator_bridge.audit import of_torch
from estimator_bridge.audit.of_sparse_cores import TORCH, SparseCoreAudit, Target, effects_of
from estimator_bridge.audit.report import Audit, findings_of
from estimator_bridge.migrate.imported_files import imported_files, is_own
from estimator_bridge.migrate.syntax.name_flow import NameFlow
from estimator_bridge.run import stock_names
from estimator_bridge.run.program_lines import Libraries
from estimator_bridge.run.stock_names import CANNED, CANNED_EXPERIMENTAL, UNSUPPORTED
from estimator_bridge.settings.catalogue import RULES, finding_of, readers
from estimator_bridge.settings.legacy_spec import Note, Place, SourceText
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.settings.row import is_set
from tf2_engine.types import Object

if TYPE_CHECKING:
    from estimator_bridge.migrate.verdicts import Verdict

# Marks a value that is known only when the program runs.
_COMPUTED = object()
_KERAS_OPTIMIZER = re.compile(r"\bkeras\.optimizers\.(?!legacy\b)(\w+)\(")
_COLUMN_FUNCTIONS = ("embedding_column", "shared_embedding_columns")
# Functions that make columns whose input can be transformed only on a CPU.
_TRANSFORMING = {
    *("bucketized_column", "crossed_column", "categorical_column_with_hash_bucket"),
    *("categorical_column_with_vocabulary_file", "categorical_column_with_vocabulary_list"),
}
# Maps functions to rules: each call to such a function is a finding under its rule.
_CALLS = {name: rule for rule, row in RULES.items() for name in row.calls}
# The functions and classes whose arguments the rules read; "*Parameters" stands for the
# parameter classes of all optimizers.
_READ = {field.partition(".")[0] for row in RULES.values() for field in row.reads}
_PACKAGES = {parent for path in stock_names.MODULES for parent in stock_names.parents(path)}
_REPLACED = (*stock_names.ROOTS, *set(stock_names.MODULES).difference(stock_names.KEPT))
_DOTTED = re.compile(r"\w+(\.\w+)+")


def audit_script(path: str, target: Target | None = None) -> Audit:
    """Finds settings in a program's source; with a `target`, also reports their effects there.

    The modules of its folder or package that the program imports are part of its source. If a
    setting's value is known only when the program runs, the report has a remark about it instead
    of a finding.
    """
    source = pathlib.Path(path)
    tree = ast.parse(source.read_bytes(), path)
    # Some errors only appear when the tree is compiled, for instance a repeated keyword.
    compile(tree, path, "exec", dont_inherit=True)
    folder = source.parent.resolve()
    modules, remarks = _parsed(
        {os.path.relpath(each, folder): each for each, _ in imported_files(source)}
    )
    trees = {source.name: tree, **modules}
    for name, each in trees.items():
        remarks += private_remarks_of(each, name if modules else "")
    return _audit(path, trees, remarks, target)


def _parsed(paths: Mapping[str, pathlib.Path]) -> tuple[dict[str, ast.Module], list[str]]:
    """Parses files; the second result has a remark about each file that Python 3 cannot read."""
    trees, remarks = {}, []
    for name, path in paths.items():
        try:
            trees[name] = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError) as error:
            remarks.append(str(errors.not_python(name, error)))
    return trees, remarks


def _audit(
    subject: str,
    trees: Mapping[str, ast.Module],
    remarks: Sequence[str],
    target: Target | None,
    *,
    is_library: bool = False,
) -> Audit:
    visitors = []
    for name, tree in trees.items():
        visitors.append(_Visitor(name, NameFlow(tree)))
        visitors[-1].visit(tree)
    notes = [note for each in visitors for note in (*each.notes, *each.on_cpu_only())]
    computed = [
        f"{text} is computed when the program runs; audit the program with --run to see the value"
        for each in visitors
        for text in each.computed
    ]
    if any(each.specs for each in visitors):
        notes += itertools.chain(*(each.predicts for each in visitors))
        notes.append(Note("ids_out_of_range", Place("all features")))
    elif any(note.rule == "canned_estimator" for note in notes):
        computed.insert(0, "canned models have no tables on a TPU: `inspect` lists their variables")
    else:
        files = "this file creates" if len(trees) == 1 else f"these {len(trees)} files create"
        computed.insert(0, f"{files} no EmbeddingConfigSpec")
    on_target, on_torch = None, None
    if target is not None and target.kind == TORCH:
        optimizers = {where: each for one in visitors for where, each in one.optimizers.items()}
        on_torch = of_torch.audit_source(optimizers, notes)
    elif target is not None:
        on_target = SparseCoreAudit(target, effects_of(notes))
    # The migration is tried only for programs with estimators, because it needs a list of
    # TensorFlow's names, which takes seconds to load. For a library it could take minutes.
    tries = not is_library and any(map(_makes_estimators, trees.values()))
    migration, more = _migration(subject, on_target) if tries else ((), [])
    every = tuple(dict.fromkeys([*computed, *remarks, *more]))
    return Audit(subject, (), (), findings_of(notes), every, on_target, migration, on_torch)


def _makes_estimators(tree: ast.AST) -> bool:
    names = {_last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return any(name.endswith("Estimator") for name in names) or not names.isdisjoint(
        CANNED | CANNED_EXPERIMENTAL
    )


def _migration(
    path: str, on_target: SparseCoreAudit | None
) -> tuple[tuple[Verdict, ...], list[str]]:
    try:
        from estimator_bridge.migrate import verdicts
    except ModuleNotFoundError as error:
        way_out = f"needs {error.name}. Type: pip install 'estimator-bridge[migrate]'"
        return (), [f"to report whether the program can be migrated, audit {way_out}"]
    try:
        answers, folder = verdicts.of_program(
            pathlib.Path(path), on_sparse_cores=on_target is not None
        )
    except errors.InvalidInput as error:
        return (), [f"it is not known whether the program can be migrated: {error}"]
    if folder is None or os.path.isdir(path):
        return tuple(answers), []
    name = os.path.relpath(folder)
    together = "the program has to be migrated together with modules that it imports"
    return tuple(answers), [f"{together}: give `migrate` their folder, {name}"]


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str, flow: NameFlow) -> None:
        self._file, self._flow, self.specs = file, flow, 0
        self._transforming: dict[str, str] = {}
        self._tpu_inputs: list[tuple[ast.expr, Place]] = []
        self.notes: list[Note] = []
        self.computed: list[str] = []
        self.predicts: list[Note] = []
        self.optimizers: dict[str, str] = {}

    def visit_Assign(self, node: ast.Assign) -> None:
        kind = _transformation(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and kind is not None:
                self._transforming[target.id] = kind
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_experimental = _last_name(node.value) == "experimental"
        if (
            node.attr in CANNED
            or node.attr in UNSUPPORTED
            or (is_experimental and node.attr in CANNED_EXPERIMENTAL)
        ):
            self.notes.append(Note("canned_estimator", self._at(node), SourceText(node.attr)))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        full = (self._flow.full_names(node.func) or [ast.unparse(node.func)])[0]
        name = full.rpartition(".")[2]
        where = self._at(node)
        self.specs += name == "EmbeddingConfigSpec"
        if name in OPTIMIZERS:
            self.optimizers[str(where)] = name
        if name in _CALLS:
            self.notes.append(Note(_CALLS[name], where, SourceText(name)))
        self.notes += _canned_notes(node, name, where)
        if name == "predict":
            self.predicts.append(Note("predict", where))
        if name not in _COLUMN_FUNCTIONS:
            self._arguments(node, (name,), where)
        elif "tpu" in full.split("."):
            # A column has the settings of a table and a feature.
            self._arguments(node, ("TableConfig", "FeatureConfig", *_COLUMN_FUNCTIONS), where)
            self._tpu_inputs += [(argument, where) for argument in node.args[:1]]
        self.generic_visit(node)

    def on_cpu_only(self) -> Iterator[Note]:
        for argument, where in self._tpu_inputs:
            for part in ast.walk(argument):
                kind = _transformation(part)
                if isinstance(part, ast.Name):
                    kind = self._transforming.get(part.id)
                if kind is not None:
                    yield Note("column_transforms_on_cpu_only", where, SourceText(kind))

    def _arguments(self, node: ast.Call, owners: tuple[str, ...], where: Place) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._argument(keyword.arg, keyword.value, owners, where)
            elif any(owner in _READ or owner.endswith("Parameters") for owner in owners):
                self.computed.append(f"{where}: `**{ast.unparse(keyword.value)}`")

    def _argument(self, name: str, node: ast.expr, owners: tuple[str, ...], where: Place) -> None:
        value = _value(node)
        text = f"{name}={textwrap.shorten(ast.unparse(node), 60, placeholder=' ...')}"
        for rule, when in itertools.chain(*(readers(owner, name) for owner in owners)):
            if when is None or finding_of(rule) is None:
                continue
            if value is _COMPUTED and when is not is_set:
                self.computed.append(f"{where}: `{text}`")
            elif when(value):
                self.notes.append(Note(rule, where, SourceText(text)))

    def _at(self, node: ast.expr) -> Place:
        return Place(f"{self._file}:{node.lineno}")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _transformation(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    name = _last_name(node.func).removeprefix("sequence_")
    return name if name in _TRANSFORMING else None


def _value(node: ast.expr) -> Object:
    if isinstance(node, ast.Attribute) and node.attr.isupper():
        return node.attr
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _COMPUTED


def _canned_notes(call: ast.Call, name: str, where: Place) -> Iterator[Note]:
    if name not in CANNED or name.startswith("Baseline"):
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in keywords:  # `**options` may contain any argument
        return
    # Classes whose names end in "Estimator" take their loss from a head; others have a default.
    if "loss_reduction" not in keywords and not name.endswith("Estimator"):
        yield Note("canned_loss", where, SourceText(f"{name} without loss_reduction"))
    optimizer = keywords.get("optimizer")
    is_named = optimizer is None or isinstance(optimizer, ast.Constant)
    if name.startswith("DNN") and "LinearCombined" not in name and is_named:
        shown = "without optimizer" if optimizer is None else f"optimizer={ast.unparse(optimizer)}"
        yield Note("canned_rate", where, SourceText(f"{name} {shown}"))
    for argument, value in keywords.items():
        keras_optimizer = _KERAS_OPTIMIZER.search(ast.unparse(value))
        if keras_optimizer and str(argument).endswith("optimizer"):
            yield Note(
                "canned_optimizer", where, SourceText(f"{argument}={keras_optimizer[0]}...)")
            )


def audit_folder(folder: str, target: Target | None = None) -> Audit:
    """Finds settings in all sources of a folder, except those of an environment in the folder.

    Also reports the private names of stock that the sources use but the bridge does not have.

    Raises:
        InvalidInput: the folder has no Python file.
    """
    paths = sorted(pathlib.Path(folder).rglob("*.py"))
    if not paths:
        raise errors.InvalidInput(f"audit: {folder} has no Python file.")
    trees, remarks = _parsed({str(path.relative_to(folder)): path for path in paths})
    for name, tree in trees.items():
        remarks += private_remarks_of(tree, name)
    if not remarks:
        remarks = [f"{len(paths)} source(s) use no private name of stock that the bridge lacks"]
    own = {name: tree for name, tree in trees.items() if is_own(pathlib.PurePath(name))}
    is_library = Libraries(os.path.join(folder, "__init__.py")).have_script
    return _audit(folder, own, remarks, target, is_library=is_library)


def private_remarks_of(tree: ast.Module, file: str = "") -> Iterator[str]:
    flow = NameFlow(tree)
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        for path in _paths(node, flow):
            found.setdefault(path, getattr(node, "lineno", 0))
    for path, line in sorted(found.items(), key=lambda item: item[1]):
        outcome = _outcome(path)
        if outcome is not None:
            yield f"{f'{file}, ' if file else ''}line {line}: {outcome}"


def _paths(node: ast.AST, flow: NameFlow) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}".removesuffix(".*") for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield from flow.full_names(node)
    elif isinstance(node, ast.Constant) and _DOTTED.fullmatch(str(node.value)):
        yield str(node.value)  # such strings are passed to importlib and mock


def _outcome(path: str) -> str | None:
    if not any(f"{path}.".startswith(f"{root}.") for root in _REPLACED):
        return None
    if path in stock_names.MODULES or path in _PACKAGES:
        return None
    module, _, name = path.rpartition(".")
    while module and module not in stock_names.MODULES and module not in _PACKAGES:
        module, _, name = module.rpartition(".")
    full = f"{module}.{name}"
    if name in stock_names.MODULES.get(module, ()):
        return None
    if name in stock_names.lacking(module):
        return f"the bridge lacks stock's {full}: importing the name works, but using it fails"
    what = "name" if module in stock_names.MODULES else "module"
    return f"the bridge has no {what} {full}: code that imports or reads it fails"

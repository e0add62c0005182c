"""Finds everything that blocks a migration, with line, rule, reason and way out."""

from __future__ import annotations

import ast
import dataclasses
import textwrap
from collections.abc import Iterable, Iterator

import libcst as cst

from estimator_bridge import errors
from estimator_bridge.migrate.rewrite_report import TODO
from estimator_bridge.migrate.syntax.node_search import find
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram, code_of
from estimator_bridge.migrate.syntax.removal import Removal
from tf2_engine import plain_text

BRIDGE_FORM = "Migrate to the bridge form, which is for any program"

_WIDTH = 88  # independent of the indentation, so the first line of a mark can be searched for

_STOPS = (
    *("no-estimator", "no-training", "loses-training", "loses-a-name"),
    *("imports-star", "imports-legacy-module"),
    *(
        "gradient-tape",
        "model-variables",
        "init-from-checkpoint",
    ),  # code under these rules would run without an error
)
"""Rules that refuse a whole program. Other rules only mark code that fails if it runs."""

_WAY_OUT = "Do without it, or migrate to the bridge form, which is for any program"

_TRAINING = (
    *("train", "evaluate", "predict", "train_and_evaluate", "minimize", "compute_gradients"),
    *("apply_gradients", "export_saved_model", "export_savedmodel", "save", "TPUEstimator"),
    *("experimental_export_all_saved_models", "TPUEstimatorSpec", "EstimatorSpec"),
)
"""Functions, methods and classes with which programs train, evaluate, predict, save or export."""

_GRADIENTS = ("minimize", "compute_gradients", "gradients")

_LOST = "it trains, evaluates, predicts, saves or exports, and would be left out: {}"


def trains_unseen(sources: Iterable[str]) -> bool:
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    called = {_last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    named = {_last_name(node) for node in nodes}
    return bool(called & {"train", "train_and_evaluate"}) and not named & {*_GRADIENTS}


def _last_name(node: ast.AST) -> str:
    parts = (getattr(node, part, None) for part in ("attr", "id", "name"))
    return next((each for each in parts if isinstance(each, str)), "")


@dataclasses.dataclass(frozen=True)
class Blocker:
    """A reason why a program, or one place in it, cannot be migrated.

    `line` is 0 if the blocker concerns the whole program. `why` starts in lower case and `way_out`
    with a capital, both without a full stop, because `__str__` adds the full stops.
    """

    line: int
    rule: str
    code: str
    why: str
    way_out: str = _WAY_OUT
    file: str = ""

    @property
    def stops(self) -> bool:
        """Whether the whole program is refused. If not, only a place in it is marked."""
        return self.rule in _STOPS or self.rule.startswith("sparsecore-")

    @property
    def by_hand(self) -> bool:
        """Whether editing the program can remove the blocker. If not, only another form helps."""
        return self.way_out != BRIDGE_FORM

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        code = f"{self.code}: " if self.code else ""
        return f"{self.file}{line}: [{self.rule}] {code}{self.why}. {self.way_out}."


def marked(blocker: Blocker, indent: str, *, with_line: bool = True) -> str:
    code = f"{blocker.code}: " if blocker.code else ""
    line = f"line {blocker.line}: " if with_line else ""
    text = f"{TODO} {blocker.rule}: {line}{code}{blocker.why}. {blocker.way_out}."
    first, *rest = textwrap.wrap(" ".join(text.split()), _WIDTH, break_on_hyphens=False)
    return f"{indent}{first}\n" + "".join(f"{indent}#   {each}\n" for each in rest)


class Refused(errors.Untranslatable):
    """A program is refused; the message lists all `blockers`."""

    def __init__(self, subject: str, blockers: Iterable[Blocker], to: str = "TensorFlow 2") -> None:
        self.subject = subject
        self.blockers = sorted(set(blockers), key=lambda each: (each.file, each.line, str(each)))
        super().__init__(
            plain_text.Lines(
                f"{subject} cannot be migrated to {to}:", *(f"  {each}" for each in self.blockers)
            )
        )


class Blockers:
    """Collects the blockers of a program."""

    def __init__(self, program: ParsedProgram, removal: Removal) -> None:
        self._program = program
        self._removal = removal
        self._added: list[tuple[cst.CSTNode, Blocker]] = []

    def add(
        self, node: cst.CSTNode, rule: str, why: str, way_out: str = "", code: str = ""
    ) -> None:
        """Adds a blocker. It is not reported if `node` is left out for another reason.

        Messages show `code`, by default the code of `node`.
        """
        code = code or code_of(getattr(node, "func", node))
        line, file = self._program.line(node), self._program.name
        self._added.append((node, Blocker(line, rule, code, why, way_out or _WAY_OUT, file)))

    def listed(self) -> list[Blocker]:
        blockers = [each for node, each in self._added if not self._removal.is_removed(node)]
        return [*blockers, *self._lost(), *self._unbound()]

    def marks(self) -> Iterator[tuple[cst.CSTNode, Blocker]]:
        for node, blocker in dict.fromkeys(self._added):
            if not self._removal.is_removed(node):
                yield self._program.statement_of(node), blocker

    def _lost(self) -> Iterator[Blocker]:
        for statement in self._removal.reasons:
            if statement in self._removal.harmless:
                continue
            for call in find(statement, cst.Call):
                name = getattr(call.func, "attr", call.func)
                if isinstance(name, cst.Name) and name.value in _TRAINING:
                    line = self._program.line(call)
                    way_out = "Write it without that code, or migrate to the bridge form"
                    why = _LOST.format(self._removal.cause(statement))
                    code, file = code_of(call.func), self._program.name
                    yield Blocker(line, "loses-training", code, why, way_out, file)

    def _unbound(self) -> Iterator[Blocker]:
        for statement, name, use in self._removal.unbound():
            line, file = self._program.line(statement), self._program.name
            why = f"it would be left out, and line {self._program.line(use)} uses {name}"
            way_out = f"Give {name} a value before, or leave the branch out"
            yield Blocker(line, "loses-a-name", name, why, way_out, file)

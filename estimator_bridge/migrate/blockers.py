"""What keeps a program from being migrated: all of it, with line, rule, reason and way out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import libcst as cst
from libcst import matchers

from estimator_bridge import errors
from estimator_bridge.migrate.comments import Removal
from estimator_bridge.migrate.parsed_program import ParsedProgram, code_of

_WAY_OUT = "Do without it, or migrate to the bridge form, which is for any program"

_TRAINING = (
    *("train", "evaluate", "predict", "train_and_evaluate", "minimize", "compute_gradients"),
    *("apply_gradients", "export_saved_model", "export_savedmodel", "save", "TPUEstimator"),
    *("experimental_export_all_saved_models", "TPUEstimatorSpec", "EstimatorSpec"),
)
"""Functions and methods whose calls train, evaluate, predict, save or export, or say how."""

_LOST = "it trains, evaluates, predicts, saves or exports, and would be left out: {}"


@dataclasses.dataclass(frozen=True)
class Blocker:
    """A reason why a program is refused.

    Attributes:
        line: in the source; 0 for the program as a whole.
        rule: the id of the rule; see `tf2_rules`.
        code: what is refused.
        why, way_out: without a capital and a full stop, and with a capital.
    """

    line: int
    rule: str
    code: str
    why: str
    way_out: str = _WAY_OUT

    def __str__(self) -> str:
        return f"line {self.line}: [{self.rule}] {self.code}: {self.why}. {self.way_out}."


class Blockers:
    """The blockers that are found while a program is visited."""

    def __init__(self, program: ParsedProgram, removal: Removal) -> None:
        self._program = program
        self._removal = removal
        self._found: list[tuple[cst.CSTNode, Blocker]] = []

    def add(self, node: cst.CSTNode, rule: str, why: str, way_out: str = "") -> None:
        """Adds a blocker; it does not count if its code is left out for another reason."""
        code, line = code_of(getattr(node, "func", node)), self._program.line(node)
        self._found.append((node, Blocker(line, rule, code, why, way_out or _WAY_OUT)))

    def check(self) -> None:
        """Raises Untranslatable with all blockers, if there are any."""
        blockers = [each for node, each in self._found if not self._removal.is_removed(node)]
        blockers += self._lost()
        if blockers:
            listed = sorted(set(blockers), key=lambda each: (each.line, each.rule))
            raise errors.Untranslatable(
                f"{self._program.name} cannot be carried to TensorFlow 2:\n"
                + "\n".join(f"  {self._program.name}, {each}" for each in listed)
            )

    def _lost(self) -> Iterator[Blocker]:
        """Yields the statements that train and would be commented out."""
        for statement, reason in self._removal.reasons.items():
            if statement in self._removal.harmless:
                continue
            for call in matchers.findall(statement, matchers.Call()):
                name = getattr(call.func, "attr", call.func)
                if isinstance(name, cst.Name) and name.value in _TRAINING:
                    line = self._program.line(call)
                    way_out = "Write it without that, or migrate to the bridge form"
                    why = _LOST.format(reason)
                    yield Blocker(line, "loses-training", code_of(call.func), why, way_out)

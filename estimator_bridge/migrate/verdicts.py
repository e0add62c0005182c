"""Predicts, for `audit`, whether `migrate` can write each form of a program; writes nothing."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import textwrap
from collections.abc import Callable, Iterator

from estimator_bridge import errors
from estimator_bridge.migrate import packages, rewrite_report
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.forms import FORMS, ON_SPARSE_CORES, Form
from estimator_bridge.migrate.rewrite_report import Rewritten
from estimator_bridge.migrate.selection import ALL, Selection
from estimator_bridge.migrate.tf2 import sparse_core_rules
from estimator_bridge.migrate.tf2.tf2_rules import KEEP
from tf2_engine import plain_text
from tf2_engine.types import Object


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The forecast for migrating a program to a form.

    Attributes:
        reasons: the blockers, as `migrate` reports them. If there are none, the work that is left.
        possible: whether the program can be migrated, perhaps after changes by hand.
        keeps_estimators: whether the new program is complete but uses the bridge's estimators.
    """

    form: str
    reasons: tuple[str, ...] = ()
    possible: bool = True
    keeps_estimators: bool = False

    @property
    def answer(self) -> str:
        """The verdict: "yes" (perhaps with kept estimators), "with n changes by hand" or "no"."""
        if self.keeps_estimators:
            return "yes, with the bridge's estimators"
        if not self.possible:
            return "no"
        count = len(self.reasons)
        return f"with {count} change{'s'[: count > 1]} by hand" if count else "yes"

    def as_dict(self) -> dict[str, Object]:
        return {"form": self.form, "answer": self.answer, "reasons": list(self.reasons)}

    def lines(self) -> Iterator[str]:
        yield f"  migrate --form {self.form}: {self.answer}"
        for each in self.reasons:
            yield from textwrap.wrap(
                f"    {plain_text.plain(each)}",
                96,
                subsequent_indent=" " * 6,
                break_on_hyphens=False,
            )


def of_program(path: pathlib.Path, *, on_sparse_cores: bool = False) -> list[Verdict]:
    """Predicts the verdict of each form; `on_sparse_cores` adds the forms for SparseCores."""
    (source,) = packages.of_program(path, path.name)

    def rewrite(form: Form) -> Rewritten:
        return packages.rewrite_alone(form, source, _reasons_of(form))

    of_file = functools.partial(_verdict, path.name)
    forms = {**FORMS}
    if on_sparse_cores:
        target = sparse_core_rules.TARGET
        forms |= {f"{name} --target {target}": form for name, form in ON_SPARSE_CORES.items()}
    return [of_file(name, functools.partial(rewrite, form)) for name, form in forms.items()]


def of_source(name: str, form: Form, text: str) -> Verdict:
    program = "the program"
    selected = _reasons_of(form)
    return _verdict(program, name, lambda: packages.rewrite_text(form, text, program, selected))


def _reasons_of(form: Form) -> Selection:
    return Selection(skip={KEEP}) if form.marks_kept else ALL


def _verdict(program: str, name: str, rewrite: Callable[[], Rewritten]) -> Verdict:
    try:
        new = rewrite()
    except Refused as refused:
        possible = all(each.by_hand for each in refused.blockers)
        return Verdict(name, tuple(map(str, refused.blockers)), possible)
    except errors.Untranslatable as error:
        return Verdict(name, (str(error),), possible=False)
    kept = tuple(each.why for each in new.lines if each.rule == KEEP)
    if kept:
        return Verdict(name, kept[1:], keeps_estimators=True)
    unsupported = tuple(str(each) for each in new.lines if each.rule == "unsupported-names")
    if unsupported:
        return Verdict(name, unsupported)
    # Line numbers refer to the old program, because the old program is audited.
    marks = [each.split(": ", 3) for each in rewrite_report.left_to_do({name: new})]
    texts = [f"{program}, {line}: [{rule}] {text}" for _, rule, line, text in marks]
    return Verdict(name, tuple(texts))

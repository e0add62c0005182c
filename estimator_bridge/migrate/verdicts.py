"""Predicts, for `audit`, whether `migrate` can write each form of a program; writes nothing."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import textwrap
from collections.abc import Callable, Iterator, Mapping

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


def of_program(
    path: pathlib.Path, *, on_sparse_cores: bool = False
) -> tuple[list[Verdict], pathlib.Path | None]:
    """Predicts the verdict of each form; `on_sparse_cores` adds the forms for SparseCores.

    Also returns the folder to pass to `migrate`, or None if `migrate` takes the file alone. If a
    file imports modules that have to be migrated with it, the verdicts are for all these files.
    """
    folder = path.resolve() if path.is_dir() else None
    sources = packages.of_program(folder or path, path.name)
    if folder is None and packages.legacy_modules_beside(FORMS["tf2"], sources[0]):
        sources, folder = packages.with_modules(path)

    def rewrite(form: Form) -> Mapping[str, Rewritten]:
        selected = _reasons_of(form)
        if folder is None:
            return {path.name: packages.rewrite_alone(form, sources[0], selected)}
        if not form.takes_folders:
            raise errors.Untranslatable("this form takes only programs of one file")
        return packages.rewrite_all(form, sources, folder, selected)

    forms = {**FORMS}
    if on_sparse_cores:
        target = sparse_core_rules.TARGET
        forms |= {f"{name} --target {target}": form for name, form in ON_SPARSE_CORES.items()}
    verdicts = [_verdict(name, functools.partial(rewrite, form)) for name, form in forms.items()]
    return verdicts, folder


def of_source(name: str, form: Form, text: str) -> Verdict:
    program = "the program"
    selected = _reasons_of(form)
    return _verdict(name, lambda: {program: packages.rewrite_text(form, text, program, selected)})


def _reasons_of(form: Form) -> Selection:
    return Selection(skip={KEEP}) if form.marks_kept else ALL


def _verdict(name: str, rewrite: Callable[[], Mapping[str, Rewritten]]) -> Verdict:
    try:
        new = rewrite()
    except Refused as refused:
        possible = all(each.by_hand for each in refused.blockers)
        return Verdict(name, tuple(map(str, refused.blockers)), possible)
    except errors.Untranslatable as error:
        return Verdict(name, (str(error),), possible=False)
    lines = [line for each in new.values() for line in each.lines]
    kept = tuple(each.why for each in lines if each.rule == KEEP)
    if kept:
        return Verdict(name, kept[1:], keeps_estimators=True)
    unsupported = tuple(str(each) for each in lines if each.rule == "unsupported-names")
    if unsupported:
        return Verdict(name, unsupported)
    # Line numbers refer to the old program, because the old program is audited.
    marks = [each.split(": ", 3) for each in rewrite_report.left_to_do(new)]
    texts = [
        f"{place.rpartition(', line ')[0]}, {line}: [{rule}] {text}"
        for place, rule, line, text in marks
    ]
    return Verdict(name, tuple(texts))

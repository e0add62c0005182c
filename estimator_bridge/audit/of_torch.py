"""Audits a program for PyTorch: which optimizers have a counterpart, and what else changes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from estimator_bridge.audit.of_sparse_cores import lines_of_rule, wrapped
from estimator_bridge.settings import render, torch_rules
from estimator_bridge.settings.legacy_spec import LegacySpec, Note
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.settings.torch_rules import EFFECTS, LIBRARIES, RULES, TorchRule
from tf2_engine.types import Object


class OptimizerOnTorch(NamedTuple):
    """An optimizer of the program, and its counterparts in each PyTorch library.

    If the source does not show the settings, `settings` is None, and every counterpart that may
    compute the same results is listed.
    """

    where: str
    optimizer: str
    settings: Mapping[str, Object] | None
    counterparts: Mapping[str, tuple[TorchRule, ...]]

    def as_dict(self) -> dict[str, Object]:
        found = {
            library: [
                {
                    "outcome": rule.outcome,
                    "call": torch_rules.call(rule, self.settings),
                    "only": dict(rule.only),
                    "cause": rule.cause,
                    "note": rule.note,
                }
                for rule in rules
            ]
            for library, rules in self.counterparts.items()
        }
        return {"where": self.where, "optimizer": self.optimizer, "counterparts": found}

    def lines(self) -> Iterator[str]:
        yield f"  {self.where}: {self.optimizer}"
        for library, rules in self.counterparts.items():
            for rule in rules:
                told = torch_rules.described(rule, self.settings)
                yield from wrapped(4, f"{library}: {told}")


class Changed(NamedTuple):
    """A setting of the program that has a different effect in PyTorch; see `TorchEffect`."""

    rule: str
    where: str
    value: str
    effect: str
    way_out: str


@dataclasses.dataclass(frozen=True)
class TorchAudit:
    """What has to change so that a program computes the same results in PyTorch."""

    optimizers: tuple[OptimizerOnTorch, ...]
    changes: tuple[Changed, ...]

    def as_dict(self) -> dict[str, Object]:
        return {
            "optimizers": [each.as_dict() for each in self.optimizers],
            "settings": [each._asdict() for each in self.changes],
        }

    def lines(self) -> Iterator[str]:
        yield "On PyTorch (docs/torch.md has reference implementations of all rules):"
        for optimizer in self.optimizers:
            yield from optimizer.lines()
        for _, group in itertools.groupby(self.changes, lambda each: each.rule):
            yield from _lines_of_change(list(group))


def audit_tables(legacy: LegacySpec, notes: Iterable[Note]) -> TorchAudit:
    from estimator_bridge.translation.translate import translate_optimizer

    optimizers = []
    for where, optimizer in legacy.optimizers():
        engine = translate_optimizer(optimizer, lambda: 0.0, f"{where}: ")
        settings = {field.name: getattr(engine, field.name) for field in dataclasses.fields(engine)}
        settings["learning_rate"] = "rate"
        name = type(engine).__name__
        found = {
            library: (torch_rules.counterpart(name, library, settings),) for library in LIBRARIES
        }
        optimizers.append(OptimizerOnTorch(str(where), name, settings, found))
    return TorchAudit(tuple(optimizers), _changes(notes))


def audit_source(kinds: Mapping[str, str], notes: Iterable[Note]) -> TorchAudit:
    """Audits a source; `kinds` maps each place that creates an optimizer to the legacy class."""
    optimizers = []
    for where, kind in kinds.items():
        name = OPTIMIZERS[kind].engine_name
        equal = {
            library: tuple(rule for rule in rules if not rule.cause) or rules[:1]
            for library, rules in RULES[name].items()
        }
        optimizers.append(OptimizerOnTorch(where, name, None, equal))
    return TorchAudit(tuple(optimizers), _changes(notes))


def _changes(notes: Iterable[Note]) -> tuple[Changed, ...]:
    order = list(EFFECTS)
    changes = [
        Changed(note.rule, str(note.where), render.shown(note), *EFFECTS[note.rule])
        for note in notes
        if note.rule in EFFECTS
    ]
    return tuple(sorted(dict.fromkeys(changes), key=lambda each: order.index(each.rule)))


def _lines_of_change(changes: list[Changed]) -> Iterator[str]:
    places = "; ".join(
        dict.fromkeys(
            f"{each.where}: {each.value}" if each.value else each.where for each in changes
        )
    )
    yield from lines_of_rule(changes[0], places)

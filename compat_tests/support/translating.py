"""Helpers for the tests of translation: a small spec, which is read and translated."""

from __future__ import annotations

from typing import Any

from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table
from compat_tests.support import legacy_specs
from estimator_bridge.settings import render
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import translate
from tf2_engine.specs import EngineSpec

ADAGRAD = Optimizer("Adagrad", {"learning_rate": 0.2})


def case(**settings: Any) -> Case:
    """Creates a case of one table and one feature, with the given settings of a `Case`."""
    fields = {
        "optimizer": ADAGRAD,
        "tables": {"t": Table()},
        "features": {"f": Feature("t")},
        **settings,
    }
    return Case(name="here", **fields)


def optimizer(kind: str, **settings: Any) -> dict[str, Any]:
    """Creates an optimizer with a rate of 0.1, as a setting of a case."""
    return {"optimizer": Optimizer(kind, {"learning_rate": 0.1, **settings})}


def column() -> Any:
    return legacy_specs.build_columns((Column(("a",)),))[0]


def read(quirks: str | None = None, **settings: Any) -> LegacySpec:
    return read_spec(legacy_specs.build(case(**settings)), quirks)


def translate_read(
    legacy: LegacySpec, *, training: bool = True, step: Any = lambda: 3
) -> EngineSpec:
    return translate(legacy, training=training, step=step)


def warned(quirks: str | None = None, training: bool = True, **settings: Any) -> list[str]:
    return render.warnings_of_step(read(quirks, **settings), training=training)


def translated(quirks: str | None = None, **settings: Any) -> EngineSpec:
    return translate_read(read(quirks, **settings))

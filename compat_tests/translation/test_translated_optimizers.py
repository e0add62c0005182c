"""Every setting of a legacy optimizer, and every learning rate, is translated explicitly.

Oracle: stock's own code in tests that say so; otherwise the rules in stock's code.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Feature, Optimizer, Table
from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs, translating
from compat_tests.support.legacy_specs import OURS
from estimator_bridge import errors
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine.optimizers.optimizer import KEEPING

if HAS_STOCK:
    from compat_tests.support import stock

# --- Optimizers ----------------------------------------------------------------------------


def test_every_legacy_optimizer_has_a_row() -> None:
    ours = {name for name in vars(OURS) if name.endswith("Parameters")}
    assert set(OPTIMIZERS) == ours - {"OptimizationParameters"}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_setting_of_the_engine_is_carried_explicitly(kind: str) -> None:
    row = OPTIMIZERS[kind]
    fields = {field.name for field in dataclasses.fields(row.engine)} - KEEPING
    legacy = {field.name for field in dataclasses.fields(getattr(OURS, kind))} - set(row.only)
    weighted = {"weighted"} if kind == "FrequencyEstimatorParameters" else set()

    assert sorted(row.names.values()) == sorted(fields)
    assert set(row.names) == legacy | weighted


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_slot_has_a_legacy_name(kind: str) -> None:
    row = OPTIMIZERS[kind]
    assert tuple(row.slots) == row.engine.slot_names


@legacy_specs.needs_stock
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_slot_names_are_those_of_stock(kind: str) -> None:
    cls = getattr(stock.CLASSES, kind)
    required = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    names = stock.slot_names(cls(**dict.fromkeys(required, 0.1)), "scope/table")
    assert tuple(f"scope/table/{suffix}" for suffix in OPTIMIZERS[kind].slots.values()) == names


def test_unset_flags_are_false() -> None:
    (table,) = translating.translated(optimizer=translating.ADAGRAD).tables
    assert table.optimizer.multiply_weight_decay_factor_by_learning_rate is False


def test_a_setting_without_counterpart_is_refused_by_name() -> None:
    class AdagradParameters(OURS.AdagradParameters):  # type: ignore[misc,name-defined]
        pass

    parameters = AdagradParameters(0.1)
    parameters.warm_up = 7
    spec = OURS.EmbeddingConfigSpec([translating.column()], parameters)
    with pytest.raises(
        errors.Untranslatable, match=r"`AdagradParameters`.*'warm_up': 7.*`Adagrad`"
    ):
        translating.translate_read(read_spec(spec))


def test_an_unknown_optimizer_of_the_dicts_is_refused() -> None:
    spec = OURS.EmbeddingConfigSpec(
        feature_to_config_dict={"f": OURS.FeatureConfig("t")},
        table_to_config_dict={"t": OURS.TableConfig(9, 3)},
        optimization_parameters=tf.compat.v1.train.AdamOptimizer(0.1),
    )
    with pytest.raises(ValueError, match="AdamOptimizer"):
        read_spec(spec)


def test_a_table_without_any_optimizer_is_refused_in_training() -> None:
    """Training needs an optimizer for every table; the message names the one without."""
    legacy = translating.read(
        optimizer=None,
        tables={"a": Table(optimizer=translating.ADAGRAD), "b": Table()},
        features={"x": Feature("a"), "y": Feature("b")},
    )
    with pytest.raises(ValueError, match=r"Table 'b'.*`optimization_parameters`"):
        translating.translate_read(legacy)
    assert translating.translate_read(legacy, training=False).tables[1].name == "b"


# --- Learning rates ------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
@pytest.mark.parametrize("of_table", [True, False], ids=["table", "optimizer"])
def test_a_rate_that_is_no_finite_number_is_refused(rate: float, of_table: bool) -> None:
    settings: Mapping[str, Any] = (
        {"tables": {"t": Table(learning_rate=rate)}}
        if of_table
        else {"optimizer": Optimizer("Adagrad", {"learning_rate": rate})}
    )
    with pytest.raises(ValueError, match=f"Table 't': `Adagrad`: `learning_rate`.*{rate}"):
        translating.translated(**settings)


@pytest.mark.parametrize("rate", ["0.1", None, abs])
def test_a_rate_of_another_type_is_refused(rate: Any) -> None:
    with pytest.raises(TypeError, match="`AdagradParameters`: `learning_rate` must be a number"):
        translating.translated(optimizer=Optimizer("Adagrad", {"learning_rate": rate}))

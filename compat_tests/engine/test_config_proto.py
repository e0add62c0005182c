"""The device is configured as stock configures it, field by field.

Oracle: stock's own code on TensorFlow 2.15.1, recorded in goldens/config_protos.json.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases import optimizers as trained
from compat_tests.cases.config_protos import (
    CASES,
    KINDS,
    NOT_FOR_COLUMNS,
    optimizer_of,
    refused_columns,
)
from compat_tests.cases.legacy import Case, Table
from compat_tests.support import legacy_specs, translating
from compat_tests.support.paths import GOLDENS
from compat_tests.support.protos import in_order_of_use, parse
from estimator_bridge import errors
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import output_shapes, translate
from tf2_engine import OPTIMIZERS as OPTIMIZERS_OF_ENGINE
from tf2_engine import tf_compat
from tf2_engine.config_proto import config_proto
from tf2_engine.plan import make_plan

_PATH = GOLDENS / "config_protos.json"
_GOLDENS: dict[str, Any] = json.loads(_PATH.read_text())

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
some_cases = pytest.mark.parametrize("case", CASES[::9], ids=lambda case: case.name)


def _ours(case: Case, quirks: str, classes: Any = legacy_specs.OURS) -> Any:
    spec = legacy_specs.build(case, classes)
    legacy = read_spec(spec, quirks)
    plan = make_plan(
        translate(legacy, training=case.training, step=lambda: tf.constant(3, tf.int64)),
        output_shapes(legacy, case.batch_size, case.num_cores),
        num_hosts=case.num_hosts,
        num_cores=case.num_cores,
        training=case.training,
    )
    return config_proto(plan)


def _golden(case: Case) -> Any:
    return parse(_GOLDENS["cases"][case.name])


@every_case
def test_with_stock_quirks_the_configuration_is_that_of_stock(case: Case) -> None:
    """With quirks="stock" every field is stock's, dynamic rates numbered by first use."""
    assert _ours(case, "stock") == _golden(case), case.name


@every_case
def test_documented_quirks_change_weight_limits_only(case: Case) -> None:
    """With quirks="documented" `clipping_limit` limits the weights of tables without limits."""
    expected = _golden(case)
    limit = case.options.get("clipping_limit")
    if limit is not None and case.training:
        for table in expected.table_descriptor:
            parameters = table.optimization_parameters
            if not parameters.HasField("clipping_limits"):
                parameters.clipping_limits.lower.value = -limit
                parameters.clipping_limits.upper.value = limit
    assert _ours(case, "documented") == expected, case.name


def test_every_legacy_optimizer_has_cases() -> None:
    """No legacy optimizer is left out, and the form with columns has those that stock accepts."""
    assert {f"{kind}Parameters" for kind in KINDS} == set(OPTIMIZERS)
    refused = {kind for kind in KINDS if not OPTIMIZERS[f"{kind}Parameters"].for_columns}
    assert refused == set(NOT_FOR_COLUMNS)
    with_columns = {case.optimizer.kind for case in CASES if case.columns and case.optimizer}
    assert with_columns == set(KINDS) - refused


@pytest.mark.parametrize("kind", NOT_FOR_COLUMNS)
def test_columns_refuse_what_stock_refuses(kind: str) -> None:
    """Three optimizers beside `feature_columns` are a ValueError that names the way out."""
    with pytest.raises(ValueError, match=f"{kind}Parameters.*config dicts"):
        legacy_specs.build(refused_columns(kind))


@legacy_specs.needs_stock
@pytest.mark.parametrize("kind", NOT_FOR_COLUMNS)
def test_stock_refuses_these_columns(kind: str) -> None:
    from compat_tests.support import stock

    with pytest.raises(ValueError, match=f"{kind}Parameters"):
        legacy_specs.build(refused_columns(kind), stock.CLASSES)


@pytest.mark.parametrize("kind", OPTIMIZERS_OF_ENGINE)
def test_every_field_of_an_optimizers_message_is_filled(kind: str) -> None:
    """No field of the message is left to its default, and every name is one of the proto's."""
    optimizer = OPTIMIZERS_OF_ENGINE[kind]
    settings = next((case.settings for case in trained.CASES.values() if case.kind == kind), {})
    parameters = tf_compat.TPUEmbeddingConfiguration().table_descriptor.add()
    message = getattr(parameters.optimization_parameters, optimizer.proto_field).DESCRIPTOR
    filled = optimizer(learning_rate=lambda: 1.0, **settings).proto_fields()
    assert set(filled) == {field.name for field in message.fields}


def test_a_start_of_ftrl_that_the_engine_lacks_is_refused() -> None:
    """An attribute of stock's class that is no argument of it is refused unless it is plain."""
    spec = legacy_specs.build(next(case for case in CASES if case.name == "Ftrl-power_zero"))
    spec.optimization_parameters.initial_linear_value = 1.0
    with pytest.raises(errors.Untranslatable, match=r"`FtrlParameters`.*'initial_linear_value': 1"):
        translating.translate_read(read_spec(spec))


def test_a_frequency_needs_the_step() -> None:
    """A FrequencyEstimator's table without a `learning_rate_fn` is refused by name."""
    with pytest.raises(errors.InvalidSpec, match=r"Table 't': `FrequencyEstimator`.*global step"):
        translating.translated(
            optimizer=optimizer_of("FrequencyEstimator"), tables={"t": Table(dimension=1)}
        )


def test_dynamic_rates_are_numbered_by_first_use() -> None:
    """The tags of dynamic rates do not depend on the order in which functions hash."""
    case = next(case for case in CASES if case.name == "rate-dynamic-three-on-five")
    proto = _ours(case, "stock")
    tags = [
        table.optimization_parameters.learning_rate.dynamic.tag for table in proto.table_descriptor
    ]
    assert tags == [0, 1, 0, 2, 1]
    assert in_order_of_use(proto) == proto


@pytest.mark.whole
@legacy_specs.needs_stock
@some_cases
def test_goldens_are_fresh(case: Case) -> None:
    from compat_tests.goldens.record_config_protos import record

    assert parse(record(case)) == _golden(case)


@legacy_specs.needs_stock
@some_cases
def test_a_spec_of_stock_classes_is_read_like_ours(case: Case) -> None:
    """The translation of stock's own EmbeddingConfigSpec gives the same configuration."""
    from compat_tests.support import stock

    assert _ours(case, "stock", stock.CLASSES) == _golden(case)

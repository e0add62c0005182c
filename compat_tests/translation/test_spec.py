"""`EmbeddingConfigSpec` and its parts accept, refuse and return the same as stock's.

Oracle: stock's own classes, if TensorFlow has them. The exception types and defaults in the tests
were observed there.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Column
from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs
from compat_tests.support.legacy_specs import OURS, needs_stock
from estimator_bridge import errors
from estimator_bridge.legacy import spec as spec_module

if HAS_STOCK:
    from compat_tests.support import stock

PARAMETERS = sorted(
    name for name in vars(OURS) if name.endswith("Parameters") and name != "OptimizationParameters"
)
CLASSES = [*PARAMETERS, "TableConfig", "FeatureConfig", "EmbeddingConfigSpec"]

# Arguments each optimizer takes beside the rate, where it has no default for them.
_REQUIRED: dict[str, dict[str, Any]] = {
    "AdagradMomentumParameters": {"momentum": 0.9},
    "MomentumParameters": {"momentum": 0.9},
    "RMSPropParameters": {"rho": 0.8, "momentum": 0.9, "epsilon": 1e-4},
    "FrequencyEstimatorParameters": {
        "tau": 0.1,
        "max_delta": 9.0,
        "outlier_threshold": 2.0,
        "weight_exponent": 1.0,
    },
}


def _parameters(kind: str, classes: Any = OURS, **settings: Any) -> Any:
    arguments = {**_REQUIRED.get(kind, {}), **settings}
    if kind != "FrequencyEstimatorParameters":
        arguments.setdefault("learning_rate", 0.1)
    return getattr(classes, kind)(**arguments)


def _column(key: str = "a") -> Any:
    return legacy_specs.build_columns((Column((key,)),))[0]


def _from_columns(classes: Any = OURS, **settings: Any) -> Any:
    settings.setdefault("feature_columns", [_column()])
    settings.setdefault("optimization_parameters", classes.AdagradParameters(0.1))
    return classes.EmbeddingConfigSpec(**settings)


def _from_dicts(classes: Any = OURS, **settings: Any) -> Any:
    settings.setdefault("feature_to_config_dict", {"f": classes.FeatureConfig("t")})
    settings.setdefault("table_to_config_dict", {"t": classes.TableConfig(9, 3)})
    return classes.EmbeddingConfigSpec(**settings)


# --- Arguments and attributes ------------------------------------------------------------


@needs_stock
@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_those_of_stock(name: str) -> None:
    """Names, order and defaults of constructor arguments are stock's; the spec adds `quirks`."""
    arguments = legacy_specs.arguments
    assert arguments(getattr(OURS, name)) == arguments(getattr(stock.CLASSES, name))


@needs_stock
@pytest.mark.parametrize("kind", PARAMETERS)
def test_optimizers_have_the_attributes_of_stock(kind: str) -> None:
    assert vars(_parameters(kind)) == vars(_parameters(kind, stock.CLASSES))


def test_optimizers_are_compared_by_identity() -> None:
    """Two optimizers with equal settings are two, as in stock, and can be dict keys."""
    one, two = _parameters("AdamParameters"), _parameters("AdamParameters")
    assert len({one: 1, two: 2}) == 2


def test_repr_of_an_optimizer_shows_its_settings() -> None:
    shown = repr(_parameters("AdamParameters", beta2=0.25))
    assert shown.startswith("AdamParameters(learning_rate=0.1, beta1=0.9, beta2=0.25,")


def test_table_config_fills_in_a_truncated_normal() -> None:
    """Without an initializer a table starts as a truncated normal of 1 / sqrt(dimension)."""
    initializer = OURS.TableConfig(9, 16).initializer
    assert initializer.get_config()["stddev"] == 0.25


# --- What is refused -----------------------------------------------------------------------


def _bad(name: str, *args: Any, **settings: Any) -> Any:
    """A call of a class; what must be in the message is the value."""
    return name, args, settings


REFUSED_WITH_VALUE_ERROR = {
    "adagrad accumulator": _bad("AdagradParameters", 0.1, 0.0),
    "proximal accumulator": _bad("ProximalAdagradParameters", 0.1, -1.5),
    "proximal l1": _bad("ProximalAdagradParameters", 0.1, l1_regularization_strength=-2),
    "proximal l2": _bad("ProximalAdagradParameters", 0.1, l2_regularization_strength=-2),
    "adam beta1": _bad("AdamParameters", 0.1, 1.0),
    "adam beta2": _bad("AdamParameters", 0.1, beta2=-0.5),
    "adam epsilon": _bad("AdamParameters", 0.1, epsilon=0.0),
    "adam not lazy": _bad("AdamParameters", 0.1, lazy_adam=False, use_gradient_accumulation=False),
    "clipping without accumulation": _bad(
        "StochasticGradientDescentParameters",
        0.1,
        use_gradient_accumulation=False,
        clip_gradient_max=1.0,
    ),
    "ftrl power": _bad("FtrlParameters", 0.1, learning_rate_power=0.5),
    "ftrl accumulator": _bad("FtrlParameters", 0.1, initial_accumulator_value=-0.5),
    "ftrl l1": _bad("FtrlParameters", 0.1, l1_regularization_strength=-0.5),
    "ftrl l2": _bad("FtrlParameters", 0.1, l2_regularization_strength=-0.5),
    "yogi beta1": _bad("ProximalYogiParameters", 0.1, 1.5),
    "yogi epsilon": _bad("ProximalYogiParameters", 0.1, epsilon=-1.0),
    "momentum epsilon": _bad("AdagradMomentumParameters", 0.1, 0.9, epsilon=0.0),
    "momentum exponent": _bad("AdagradMomentumParameters", 0.1, 0.9, exponent=-2),
    "vocabulary zero": _bad("TableConfig", dimension=4, vocabulary_size=0),
    "vocabulary float": _bad("TableConfig", dimension=4, vocabulary_size=9.0),
    "dimension zero": _bad("TableConfig", 9, 0),
    "dimension float": _bad("TableConfig", 9, 4.5),
    "initializer": _bad("TableConfig", 9, 4, initializer=0.5),
    "combiner": _bad("TableConfig", 9, 4, combiner="max"),
    "both rates": _bad("TableConfig", 9, 4, learning_rate=0.5, learning_rate_fn=len),
    "table optimizer": _bad("TableConfig", 9, 4, optimization_parameters="Adam"),
    "sequence negative": _bad("FeatureConfig", "t", -1),
    "sequence float": _bad("FeatureConfig", "t", 2.5),
}


@pytest.mark.parametrize("call", REFUSED_WITH_VALUE_ERROR.values(), ids=REFUSED_WITH_VALUE_ERROR)
def test_settings_out_of_range_are_value_errors(call: Any) -> None:
    """A setting that stock refuses is a ValueError; our message names class and value."""
    name, args, settings = call
    with pytest.raises(ValueError, match=f"`{name}`") as caught:
        getattr(OURS, name)(*args, **settings)
    assert isinstance(caught.value, errors.EngineError)
    refused = [*args, *settings.values()][-1]
    assert repr(refused) in str(caught.value)
    if HAS_STOCK:
        with pytest.raises(ValueError):  # noqa: PT011  Stock's messages are not ours to fix.
            getattr(stock.CLASSES, name)(*args, **settings)


@pytest.mark.parametrize("value", [float("nan"), 1e-30, 5])
def test_range_checks_let_pass_what_stock_lets_pass(value: float) -> None:
    """NaN, tiny numbers and ints pass the constructors; translation refuses NaN."""
    assert OURS.AdagradParameters(value, value).initial_accumulator is value


def _specs(classes: Any) -> dict[str, tuple[type[Exception], Callable[[], Any]]]:
    """Constructor calls that must fail, with the built-in type of the error."""
    momentum = classes.AdagradMomentumParameters(0.1, 0.9)
    columns, dicts = _from_columns, _from_dicts
    indicator = tf.feature_column.indicator_column(_column().categorical_column)
    with tf.Graph().as_default():
        newer = tf.feature_column.shared_embeddings([_column().categorical_column], 4)
    embedded = tf.tpu.experimental.embedding
    return {
        "nothing": (ValueError, classes.EmbeddingConfigSpec),
        "no columns": (ValueError, lambda: columns(classes, feature_columns=[])),
        "features alone": (ValueError, lambda: dicts(classes, table_to_config_dict=None)),
        "tables alone": (ValueError, lambda: dicts(classes, feature_to_config_dict=None)),
        "both forms": (ValueError, lambda: dicts(classes, feature_columns=[_column()])),
        "partition": (ValueError, lambda: columns(classes, partition_strategy="range")),
        "column type": (TypeError, lambda: columns(classes, feature_columns=[indicator])),
        "newer shared columns": (TypeError, lambda: columns(classes, feature_columns=newer)),
        "column string": (TypeError, lambda: columns(classes, feature_columns=["a"])),
        "no optimizer": (ValueError, lambda: columns(classes, optimization_parameters=None)),
        "optimizer type": (
            ValueError,
            lambda: columns(classes, optimization_parameters=tf.compat.v1.train.AdamOptimizer(0.1)),
        ),
        "optimizer of dicts only": (
            ValueError,
            lambda: columns(classes, optimization_parameters=momentum),
        ),
        "feature config type": (
            TypeError,
            lambda: dicts(classes, feature_to_config_dict={"f": "t"}),
        ),
        "unknown table": (
            ValueError,
            lambda: dicts(classes, feature_to_config_dict={"f": classes.FeatureConfig("u")}),
        ),
        "table config type": (
            TypeError,
            lambda: dicts(classes, table_to_config_dict={"t": embedded.TableConfig(9, 3)}),
        ),
    }


SPECS = list(_specs(OURS))


@pytest.mark.parametrize("name", SPECS)
def test_a_bad_spec_is_refused_with_the_type_of_stock(name: str) -> None:
    """The error has the built-in type of stock's, and is one of ours."""
    kind, call = _specs(OURS)[name]
    with pytest.raises(kind, match=r"`.+`") as caught:
        call()
    assert isinstance(caught.value, errors.EngineError)
    if HAS_STOCK:
        assert stock.raised(_specs(stock.CLASSES)[name][1]) is kind


def test_ordinary_columns_pass_the_constructor() -> None:
    """Columns without a TPU table pass: whether there is a TPU is not known yet."""
    factory, categorical = tf.feature_column, _column().categorical_column
    with tf.Graph().as_default():
        shared, *_ = tf.compat.v1.feature_column.shared_embedding_columns([categorical], 4)
    for column in (factory.numeric_column("x"), factory.embedding_column(categorical, 4), shared):
        assert _from_columns(feature_columns=[column, _column()]).feature_columns[0] is column


# --- A tuple of ten ------------------------------------------------------------------------


@needs_stock
@pytest.mark.parametrize("make", [_from_columns, _from_dicts], ids=["columns", "dicts"])
def test_fields_hold_what_stock_holds(make: Any) -> None:
    settings = {"clipping_limit": 3.0, "profile_data_directory": "d", "partition_strategy": "mod"}
    if make is _from_columns:
        settings["feature_columns"] = [_column()]
    ours, theirs = (
        make(classes, optimization_parameters=classes.AdamParameters(0.1), **settings)._asdict()
        for classes in (OURS, stock.CLASSES)
    )
    assert type(ours) is type(theirs)
    assert list(ours) == list(theirs)
    for name in ours:
        if name == "optimization_parameters":
            assert vars(ours[name]) == vars(theirs[name])
        elif name == "table_to_config_dict" and ours[name]:
            # Initializers are different objects.
            assert [t._replace(initializer=None) for t in ours[name].values()] == [
                t._replace(initializer=None) for t in theirs[name].values()
            ]
        else:
            assert ours[name] == theirs[name], name


def test_a_spec_unpacks_and_compares_like_a_tuple() -> None:
    """A spec has length ten, equals the plain tuple of its fields, and is read by position."""
    spec = _from_columns(clipping_limit=3.0, quirks="stock")
    assert len(spec) == 10
    assert spec == tuple(spec)
    assert spec[3] == spec.clipping_limit == 3.0
    columns, *_ = spec
    assert columns is spec.feature_columns


def test_replace_changes_one_field_and_keeps_the_quirks() -> None:
    """`_replace` gives a spec with another value; the quirks stay unless they are given."""
    spec = _from_columns(quirks="stock")
    changed = spec._replace(partition_strategy="mod")
    assert (changed.partition_strategy, changed.quirks) == ("mod", "stock")
    assert spec.partition_strategy == "div"
    assert changed._replace(quirks="documented").quirks == "documented"
    # The tuple's own: a ValueError before Python 3.13.
    with pytest.raises((ValueError, TypeError), match="unexpected field names"):
        spec._replace(no_such_field=1)


@pytest.mark.parametrize("make", [_from_columns, _from_dicts], ids=["columns", "dicts"])
@pytest.mark.parametrize(
    "twin_of",
    [copy.copy, copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_are_whole(make: Any, twin_of: Any) -> None:
    """Copied, deep-copied and pickled specs have all fields, quirks and added attributes."""
    settings = {"clipping_limit": 2.5, "partition_strategy": "mod", "quirks": "stock"}
    spec = make(optimization_parameters=_parameters("AdamParameters", beta1=0.5), **settings)
    spec.note = "mine"
    twin = twin_of(spec)
    assert type(twin) is type(spec)
    assert (twin.quirks, twin.clipping_limit, twin.partition_strategy) == ("stock", 2.5, "mod")
    assert twin.note == "mine"
    assert repr(twin.feature_to_config_dict) == repr(spec.feature_to_config_dict)
    assert vars(twin.optimization_parameters) == vars(spec.optimization_parameters)
    assert len(twin) == 10


def test_a_deep_copy_shares_no_column() -> None:
    """A deep copy has columns of its own that name the same feature."""
    spec = _from_columns()
    twin = copy.deepcopy(spec)
    assert twin.feature_columns[0] is not spec.feature_columns[0]
    assert twin.feature_columns[0].get_feature_key_name() == "a"


def test_a_subclass_survives_a_deep_copy() -> None:
    class Mine(OURS.EmbeddingConfigSpec):  # type: ignore[misc,name-defined]
        pass

    spec = Mine([_column()], OURS.AdagradParameters(0.1), quirks="stock")
    twin = copy.deepcopy(spec)
    assert (type(twin), twin.quirks) == (Mine, "stock")


def test_quirks_are_documented_unless_set() -> None:
    """Code that imports the bridge gets "documented"; the process default can be changed."""
    assert _from_columns().quirks == "documented"
    spec_module.set_default_quirks("stock")
    assert _from_columns().quirks == "stock"
    assert _from_columns(quirks="documented").quirks == "documented"


def test_unknown_quirks_are_refused() -> None:
    with pytest.raises(ValueError, match="'both'"):
        _from_columns(quirks="both")
    with pytest.raises(ValueError, match="'both'"):
        spec_module.set_default_quirks("both")


def test_repr_shows_the_quirks() -> None:
    assert repr(_from_columns(quirks="stock")).endswith(", quirks='stock')")
    assert repr(_from_columns()).startswith("EmbeddingConfigSpec(feature_columns=[")

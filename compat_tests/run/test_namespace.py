"""`estimator_bridge.estimator` has the names of `tf.compat.v1.estimator`, with the same checks.

Oracle: stock's own names and classes, if TensorFlow has them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs
from compat_tests.support.legacy_specs import needs_stock
from estimator_bridge import errors, estimator

if HAS_STOCK:
    from compat_tests.support import stock

tf1 = tf.compat.v1

SUBMODULES = ("", "experimental", "export", "inputs", "tpu", "tpu.experimental")
OF_TF_DATA = {"CheckpointInputPipelineHook", "make_saveable_from_iterator"}
"""What of `tf.data.experimental` is for estimators; newer versions have not all of it."""


CANNED = [
    f"{family}{task}"
    for family in ("Baseline", "DNN", "DNNLinearCombined", "Linear")
    for task in ("Classifier", "Estimator", "Regressor")
]
RECURRENT = ["experimental.RNNClassifier", "experimental.RNNEstimator"]
HEADS = [
    *("BinaryClassHead", "LogisticRegressionHead", "MultiClassHead", "MultiHead"),
    *("MultiLabelHead", "PoissonRegressionHead", "RegressionHead"),
]


def inside(namespace: Any, path: str) -> Any:
    for name in path.split("."):
        namespace = getattr(namespace, name) if name else namespace
    return namespace


@needs_stock
@pytest.mark.parametrize("path", SUBMODULES)
def test_every_name_of_stock_is_here_or_refused_by_name(path: str) -> None:
    ours, theirs = inside(estimator, path), inside(stock.ESTIMATOR, path)
    names = {name for name in dir(theirs) if not name.startswith("_")}
    if path == "experimental":
        # One module for both versions: it has the names of version 2, too.
        names |= {name for name in dir(stock.NAMESPACES[2].experimental) if name[0] != "_"}
    here = {name for name in names if hasattr(ours, name)}
    for name in names - here:
        with pytest.raises(errors.Unsupported, match=rf"\.{name}` is not supported: .*\. .*\."):
            getattr(ours, name)

    if path == "experimental":
        theirs_too = {name for name in OF_TF_DATA if hasattr(tf.data.experimental, name)}
        assert theirs_too == OF_TF_DATA
        names |= OF_TF_DATA
    assert names >= set(ours.__all__), "a name that stock does not have"
    assert all(hasattr(ours, name) for name in ours.__all__)


@needs_stock
@pytest.mark.parametrize("path", ["", "experimental", "export"])
def test_every_name_of_version_2_is_here_or_refused_by_name(path: str) -> None:
    ours, theirs = inside(estimator.v2, path), inside(stock.NAMESPACES[2], path)
    for name in dir(theirs):
        if not name.startswith("_") and not hasattr(ours, name):
            with pytest.raises(errors.Unsupported, match=rf"\.{name}` is not supported: .*"):
                getattr(ours, name)


def test_the_versions_differ_as_stocks_do() -> None:
    """Canned estimators, Estimator and the parsing specs are others in version 2; heads are not."""
    others = {name for name in estimator.__all__ if _differ(name)}

    assert others == {
        *CANNED,
        *("Estimator", "classifier_parse_example_spec", "regressor_parse_example_spec"),
    }
    assert set(estimator.v2.__all__) == set(estimator.__all__)
    assert issubclass(estimator.v2.DNNClassifier, estimator.v2.Estimator)
    assert issubclass(estimator.v2.Estimator, estimator.Estimator)
    assert not hasattr(estimator.v2.Estimator(lambda features: None), "export_savedmodel")
    assert hasattr(estimator.Estimator(lambda features: None), "export_savedmodel")


def _differ(name: str) -> bool:
    return getattr(estimator, name) is not getattr(estimator.v2, name)


@pytest.mark.parametrize(
    "path, name, way_out",
    [
        ("", "BoostedTreesRegressor", "TensorFlow Decision Forests"),
        ("v2", "BoostedTreesClassifier", "TensorFlow Decision Forests"),
    ],
)
def test_unsupported_names_say_what_to_use(path: str, name: str, way_out: str) -> None:
    """A name that is not supported is an AttributeError, as `hasattr` and `getattr` expect."""
    namespace = inside(estimator, path)

    with pytest.raises(AttributeError, match=way_out):
        getattr(namespace, name)
    assert not hasattr(namespace, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        namespace.nonsense  # noqa: B018 - it is the access that raises


@needs_stock
def test_hooks_are_those_of_stock() -> None:
    """Stock exports no hook that is not here, and it is the same class."""
    for name in dir(stock.ESTIMATOR):
        if name.endswith(("Hook", "Listener", "Timer", "Error")) or name.startswith("SessionRun"):
            assert getattr(estimator, name) is getattr(stock.ESTIMATOR, name), name


FUNCTIONS = [
    "BestExporter",
    "EvalSpec",
    "FinalExporter",
    "LatestExporter",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "classifier_parse_example_spec",
    "experimental.InMemoryEvaluatorHook",
    "experimental.build_raw_supervised_input_receiver_fn",
    "experimental.make_early_stopping_hook",
    "experimental.make_stop_at_checkpoint_step_hook",
    "experimental.stop_if_higher_hook",
    "experimental.stop_if_lower_hook",
    "experimental.stop_if_no_decrease_hook",
    "experimental.stop_if_no_increase_hook",
    "export.ServingInputReceiver",
    "export.TensorServingInputReceiver",
    "export.build_parsing_serving_input_receiver_fn",
    "export.build_raw_serving_input_receiver_fn",
    "regressor_parse_example_spec",
    "train_and_evaluate",
    *("add_metrics", "inputs.numpy_input_fn", "inputs.pandas_input_fn"),
    *("experimental.call_logit_fn", "experimental.dnn_logit_fn_builder"),
    "experimental.linear_logit_fn_builder",
    "experimental.KMeans",
    *CANNED,
    *HEADS,
]


@needs_stock
@pytest.mark.parametrize("path", FUNCTIONS)
def test_arguments_are_those_of_stock(path: str) -> None:
    """Names, order and defaults are stock's, and so are the fields of tuples."""
    ours, theirs = inside(estimator, path), inside(stock.ESTIMATOR, path)

    # BestExporter's default function is one of each side.
    assert [(n, "f" if callable(d) else d) for n, d in legacy_specs.arguments(ours)] == [
        (n, "f" if callable(d) else d) for n, d in legacy_specs.arguments(theirs)
    ]
    assert getattr(ours, "_fields", None) == getattr(theirs, "_fields", None)


@needs_stock
@pytest.mark.parametrize("name", [*CANNED, *HEADS, "regressor_parse_example_spec", *RECURRENT])
def test_arguments_in_version_2_are_those_of_stock(name: str) -> None:
    """Names, order and defaults are those of stock's classes of TensorFlow 2."""
    ours, theirs = inside(estimator.v2, name), inside(stock.NAMESPACES[2], name)
    assert legacy_specs.arguments(ours) == legacy_specs.arguments(theirs)


def input_fn() -> None:
    """Stands for an input_fn."""


class AnExporter(estimator.Exporter):
    """Stands for a program's own."""

    def __init__(self, name: Any) -> None:
        self._name = name

    @property
    def name(self) -> Any:
        return self._name

    def export(self, *args: Any, **settings: Any) -> None:
        """Exports nothing."""


def columns() -> list[Any]:
    words = tf.feature_column.categorical_column_with_identity("words", 5)
    return [tf.feature_column.numeric_column("age"), tf.feature_column.embedding_column(words, 2)]


def placeholder() -> Any:
    return tf1.placeholder(tf.float32, [None, 2], "x")


Call = Callable[[Any], Any]

# What is refused: how it is called with a namespace, and what our message says.
REFUSED: dict[str, tuple[Call, str]] = {
    "eval: no function": (lambda e: e.EvalSpec(None), "`EvalSpec`: `input_fn`"),
    "eval: hooks": (
        lambda e: e.EvalSpec(input_fn, hooks=[3]),
        "All hooks must be `SessionRunHook`",
    ),
    "eval: throttle": (
        lambda e: e.EvalSpec(input_fn, throttle_secs=-1),
        "Must specify throttle_secs >= 0",
    ),
    "eval: exporters": (lambda e: e.EvalSpec(input_fn, exporters=[3]), "must be an Exporter"),
    "warm start: none": (lambda e: e.WarmStartSettings(""), "`ckpt_to_initialize_from`"),
    "best: no function": (lambda e: e.BestExporter(compare_fn=None), "`compare_fn`"),
    "best: arguments": (lambda e: e.BestExporter(compare_fn=lambda a, b: True), "`compare_fn`"),
    "best: too many": (
        lambda e: e.BestExporter(
            compare_fn=lambda best_eval_result, current_eval_result, third: True
        ),
        "`compare_fn`",
    ),
    "latest: to keep": (
        lambda e: e.LatestExporter("a", input_fn, exports_to_keep=-1),
        "`exports_to_keep`",
    ),
    "class: label is a feature": (
        lambda e: e.classifier_parse_example_spec(columns(), "age"),
        "label 'age' must not be a feature",
    ),
    "number: weight is a feature": (
        lambda e: e.regressor_parse_example_spec(columns(), "y", weight_column="age"),
        "weight 'age' must not be a feature",
    ),
    "number: weight is no column": (
        lambda e: e.regressor_parse_example_spec(columns(), "y", weight_column=3),
        "`weight_column` must be",
    ),
    "receiver: keys of tensors": (
        lambda e: e.export.ServingInputReceiver(placeholder(), {1: placeholder()}),
        "receiver_tensor keys must be strings",
    ),
    "receiver: alternatives": (
        lambda e: e.export.ServingInputReceiver(placeholder(), placeholder(), placeholder()),
        "receiver_tensors_alternatives must be a dict",
    ),
    "tensor receiver: none": (
        lambda e: e.export.TensorServingInputReceiver(None, placeholder()),
        "features must be defined",
    ),
    "tensor receiver: a dict": (
        lambda e: e.export.TensorServingInputReceiver({"a": placeholder()}, placeholder()),
        "feature must be a Tensor, SparseTensor, or RaggedTensor",
    ),
    "supervised: shared keys": (
        lambda e: e.experimental.build_raw_supervised_input_receiver_fn(
            {"a": placeholder()}, {"a": placeholder()}
        ),
        "Features and labels must have distinct keys",
    ),
}
"""Names of exporters have a test of their own: an exporter is of one side."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_setting(case: str) -> None:
    """A wrong argument is an error with class, setting and value, of the type that stock raises."""
    call, message = REFUSED[case]
    with tf.Graph().as_default(), pytest.raises(errors.EngineError, match=message) as ours:
        call(estimator)
    assert issubclass(ours.type, (ValueError, TypeError))
    if HAS_STOCK:
        with tf.Graph().as_default(), pytest.raises((ValueError, TypeError)) as theirs:
            call(stock.ESTIMATOR)
        assert issubclass(ours.type, theirs.type)


def test_exporters_need_names_of_their_own() -> None:
    """A name that is empty, no str or shared is refused; one exporter need not be in a list."""
    for names in ([""], [None], [3], ["a", "a"]):
        with pytest.raises(errors.InvalidSpec, match="name"):
            estimator.EvalSpec(input_fn, exporters=[AnExporter(name) for name in names])
    one = AnExporter("a")

    assert estimator.EvalSpec(input_fn, exporters=one).exporters == (one,)
    assert estimator.EvalSpec(input_fn, exporters=iter([one])).exporters == (one,)
    assert estimator.EvalSpec(input_fn).exporters == ()


def parsing(namespace: Any) -> dict[str, Any]:
    weight = tf.feature_column.numeric_column("weight")
    return {
        "class": namespace.classifier_parse_example_spec(columns(), "y"),
        "string": namespace.classifier_parse_example_spec(columns(), "y", tf.string, "none"),
        "number": namespace.regressor_parse_example_spec(columns(), "y", label_dimension=3),
        "weighted": namespace.regressor_parse_example_spec(columns(), "y", weight_column="weight"),
        "column": namespace.classifier_parse_example_spec(columns(), "y", weight_column=weight),
    }


@needs_stock
def test_parsing_specs_are_those_of_stock() -> None:
    assert parsing(estimator) == parsing(stock.ESTIMATOR)


def described(receiver: Any) -> dict[str, Any]:
    """Returns names, types and shapes of a receiver's tensors."""

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(each) for key, each in value.items()}
        if value is None:
            return None
        name = value.op.name if isinstance(value, tf.Tensor) else type(value).__name__
        return name, value.dtype, value.shape.as_list()

    return {field: tensors(value) for field, value in receiver._asdict().items()}


def receivers(namespace: Any) -> dict[str, Any]:
    """Receivers of all kinds, each in a graph of its own."""
    export, descriptions = namespace.export, {}
    spec = {"a": tf.io.FixedLenFeature([2], tf.float32), "ids": tf.io.VarLenFeature(tf.int64)}

    def features() -> dict[str, Any]:
        return {"a": tf1.placeholder(tf.float32, [7, 2], "first"), "b": tf.zeros([7])}

    supervised = namespace.experimental.build_raw_supervised_input_receiver_fn
    makers: dict[str, Callable[[], Any]] = {
        "parsing": lambda: export.build_parsing_serving_input_receiver_fn(spec)(),
        "parsing, batch": lambda: export.build_parsing_serving_input_receiver_fn(spec, 4)(),
        "raw": lambda: export.build_raw_serving_input_receiver_fn(features())(),
        "raw, batch": lambda: export.build_raw_serving_input_receiver_fn(features(), 3)(),
        "single": lambda: export.ServingInputReceiver(placeholder(), placeholder()),
        "alternatives": lambda: export.ServingInputReceiver(
            {1: placeholder()}, {"x": placeholder()}, {"other": placeholder()}
        ),
        "tensor": lambda: export.TensorServingInputReceiver(placeholder(), placeholder()),
        "supervised": lambda: supervised(features(), tf.zeros([7, 1]))(),
        "supervised, labels": lambda: supervised(tf.ones([7, 2]), {"y": tf.zeros([7])}, 5)(),
    }
    for name, make in makers.items():
        with tf.Graph().as_default():
            descriptions[name] = described(make())
    return descriptions


@needs_stock
def test_receivers_are_those_of_stock() -> None:
    assert receivers(estimator) == receivers(stock.ESTIMATOR)


@needs_stock
def test_export_outputs_are_stocks() -> None:
    """The classes of export outputs are TensorFlow's own."""
    for name in dir(stock.ESTIMATOR.export):
        if name.endswith("Output"):
            assert getattr(estimator.export, name) is getattr(stock.ESTIMATOR.export, name)


def test_a_model_of_an_exporter_is_abstract() -> None:
    """A program's own exporter needs a name (property or attribute) and `export`."""
    named = types.new_class("Named", (estimator.Exporter,), {}, lambda ns: ns.update(name="a"))

    with pytest.raises(TypeError, match="abstract"):
        named()
    assert AnExporter("b").name == "b"

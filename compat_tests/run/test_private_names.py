"""Names of stock's private modules have the same effect in the bridge as in stock."""

from __future__ import annotations

import importlib
import json
import pathlib
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from compat_tests import goldens
from compat_tests.support import fresh
from estimator_bridge import errors
from estimator_bridge.run import install, stock_names

STOCK = json.loads(pathlib.Path(goldens.__file__).with_name("private_names.json").read_text())
"""What stock 2.15.0 printed for the program on TensorFlow 2.15.1."""

PROGRAM = pathlib.Path(goldens.__file__).parents[1] / "programs/private_names.py"
LIBRARY = "tensorflow_estimator.python.estimator"


@pytest.fixture
def installed() -> Iterator[None]:
    """The bridge is in the place of stock."""
    install.install(replace=True)
    yield
    install.uninstall()


def _run(kind: str, tmp_path: pathlib.Path) -> Any:
    ran = fresh.script(PROGRAM, kind, tmp_path, check=True)
    return json.loads(ran.stdout)


@pytest.mark.full
@pytest.mark.stock
def test_the_golden_is_what_stock_does(tmp_path: pathlib.Path) -> None:
    """Stock prints what is recorded; with other numbers of its version, record them anew."""
    assert _run("stock", tmp_path) == STOCK


@pytest.mark.whole
def test_private_names_do_what_stocks_do(tmp_path: pathlib.Path) -> None:
    found = _run("bridge", tmp_path)

    assert {part: found[part].keys() for part in found} == {p: STOCK[p].keys() for p in STOCK}
    for part, by_name in STOCK.items():
        for name, did in by_name.items():
            assert found[part][name] == did, (part, name)


@pytest.mark.stock
def test_every_function_and_class_of_stock_is_here_or_known_to_lack() -> None:
    """A module of stock that the bridge stands for has no function or class beyond the rows."""
    code = """
        import importlib, inspect, json
        from estimator_bridge.run import stock_names
        found = {}
        for path in stock_names.MODULES:
            if path.startswith("tensorflow_estimator.python.") and "api" not in path:
                names = vars(importlib.import_module(path)).items()
                found[path] = [
                    name for name, value in names
                    if (inspect.isclass(value) or inspect.isroutine(value))
                    and getattr(value, "__module__", None) == path
                ]
        print(json.dumps(found))
    """
    found = json.loads(fresh.code(textwrap.dedent(code), check=True).stdout)

    for path, names in found.items():
        here = stock_names.MODULES[path].keys() | stock_names.lacking(path)
        assert set(names) <= here, path
        assert not stock_names.lacking(path).intersection(stock_names.MODULES[path]), path


@pytest.mark.parametrize("root", stock_names.LIBRARIES)
def test_what_the_bridge_lacks_fails_at_use(root: str, installed: None) -> None:
    """A name that stock has is imported and derived from; calls and attributes are refused."""
    names: dict[str, Any] = {}
    exec(f"from {root}.canned.dnn import _dnn_model_fn, dnn_model_fn_v2", names)
    head = importlib.import_module(f"{root}.canned.head")

    class Own(head._MultiClassHeadWithSoftmaxCrossEntropyLoss):  # type: ignore[misc, name-defined]
        """A docstring of the program."""

        @staticmethod
        def number() -> int:
            return 3

    assert Own.number() == 3
    for lacking, name in [
        (names["_dnn_model_fn"], "dnn._dnn_model_fn"),
        (names["dnn_model_fn_v2"], "dnn.dnn_model_fn_v2"),
        (Own, "head._MultiClassHead"),
    ]:
        with pytest.raises(errors.Unsupported, match=rf"{root}\.canned\.{name}.*not supported"):
            lacking(1, name="a")
        assert not hasattr(lacking, "nothing")
    with pytest.raises(ImportError, match="nonsense"):  # which stock lacks as well
        exec(f"from {root}.canned.head import nonsense", {})


def test_names_that_tensorflow_has_moved_are_where_they_were(installed: None) -> None:
    """A program may register a conversion by TensorFlow's old private path."""
    ops = importlib.import_module("tensorflow.python.framework.ops")

    class Three:
        pass

    ops.register_tensor_conversion_function(Three, lambda *_, **__: tf.constant(3.0))
    assert float(tf.convert_to_tensor(Three())) == 3.0
    tracking = importlib.import_module("tensorflow.python.training.tracking")
    assert isinstance(tracking.graph_view.ObjectGraphView, type)
    nest = importlib.import_module("tensorflow.python.util.nest")
    assert nest.is_sequence([1])
    assert not nest.is_sequence(1)
    util = importlib.import_module(f"{LIBRARY}.util")
    assert util.tf_keras_v1.layers.Dense is tf.compat.v1.keras.layers.Dense
    coordinator = importlib.import_module(stock_names.COORDINATOR)
    assert not coordinator.should_run_distribute_coordinator(tf.compat.v1.estimator.RunConfig())


def test_a_library_may_take_the_check_of_members_away(installed: None) -> None:
    """AdaNet replaces the method of the class itself, by a static one."""
    kind = tf.compat.v1.estimator.Estimator
    checked = kind._assert_members_are_not_overridden

    class Own(kind):  # type: ignore[misc, valid-type]
        _model_dir = "its own"

        def evaluate(self) -> str:
            return "own"

    try:
        kind._assert_members_are_not_overridden = staticmethod(lambda _: None)
        assert Own(lambda features: None).evaluate() == "own"
    finally:
        kind._assert_members_are_not_overridden = checked
    with pytest.raises(errors.InvalidInput, match=r"override \['evaluate'\]"):
        Own(lambda features: None)

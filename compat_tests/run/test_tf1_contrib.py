"""`tf.contrib` for programs of TF1: all listed names, which files see them, and their results.

Reference numbers come from formulas of TensorFlow 1.15 in numpy, in this file. Layers and scopes
are tf_slim's own: tests show that some of them compute the same on this TensorFlow, and programs in
`compat_tests/programs/tf1` that others run.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from compat_tests.support import contrib_tables
from compat_tests.support.paths import ROOT
from estimator_bridge import errors
from estimator_bridge.run import install
from estimator_bridge.run.tf1 import contrib_names
from estimator_bridge.run.tf1.running import TF1View, seen_by_programs
from tf2_engine import tf_compat

tf1 = tf.compat.v1
Array = npt.NDArray[Any]

PATHS = [*filter(None, contrib_names.MODULES)]


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """The bridge in the place of stock."""
    install.install(replace=True)
    yield
    install.uninstall()


@pytest.fixture
def view(installed: None) -> Iterator[Any]:
    """What a TF1 program imports as `tensorflow`."""
    with tf_compat.names_of_tf1():
        yield TF1View()


@pytest.fixture
def program(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, view: Any
) -> Iterator[Callable[[str], Any]]:
    """Runs the text of a module of a program; returns the module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with seen_by_programs(view):

        def run(text: str) -> Any:
            path = tmp_path / f"module_{len(list(tmp_path.iterdir()))}.py"
            path.write_text(text)
            variables = {"__name__": "__main__", "__file__": str(path)}
            exec(compile(text, str(path), "exec"), variables)
            return variables

        yield run


def below_other(path: str) -> bool:
    """Whether a module is inside of one that is another package now."""
    return any(path.startswith(f"{whole}.") for whole in contrib_names.WHOLE)


@pytest.mark.parametrize("path", PATHS)
def test_every_name_of_the_list_is_there(path: str, view: Any) -> None:
    """Each module is found by import and by attribute, and each name in it has its target."""
    module = view.module(f"tensorflow.contrib.{path}")
    parent, _, last = path.rpartition(".")
    is_else = last in contrib_names.MODULES[parent] or path in contrib_names.EMPTY
    if not is_else and not below_other(path):
        above = view.module(f"tensorflow.contrib.{parent}".removesuffix("."))
        assert getattr(above, last) is module
    for name in contrib_names.MODULES[path]:
        assert getattr(module, name) is not None, name
        assert name in dir(module), name


def test_the_page_has_the_names_that_there_are() -> None:
    """The table of docs/tf1.md is generated from the list of names."""
    if not (ROOT / "docs").is_dir():
        pytest.skip("the documents are part of the repository, not of the packages")
    text = contrib_tables.PAGE.read_text(encoding="utf-8")

    assert text == contrib_tables.with_table(text), "python -m compat_tests.support.contrib_tables"


IMPORTS = """
import tensorflow
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.contrib.training as training
import tensorflow.contrib.tpu.python.tpu.tpu_config as config
import tensorflow.keras.backend as backend
from tensorflow import contrib, flags, keras
from tensorflow.contrib import layers as contrib_layers, tpu
from tensorflow.contrib.tpu.python.tpu import tpu_estimator, tpu_function
from tensorflow.contrib.tpu.python.ops import tpu_ops
from tensorflow.keras import layers
from tensorflow.python.estimator import estimator
from tensorflow.python.ops import array_ops
import importlib

assert tf is tensorflow is tf1 is tf.compat.v1
assert tf.contrib is contrib is importlib.import_module("tensorflow.contrib")
assert tf.__version__.startswith("1.15") and tf.VERSION == tf.__version__
assert training.HParams is contrib.training.HParams
assert config.TPUConfig is tpu.TPUConfig is tf.estimator.tpu.TPUConfig
assert tpu.TPUConfig.__module__.startswith("estimator_bridge.")
assert estimator.Estimator is tf.estimator.Estimator
assert tf.placeholder and tf.train.AdamOptimizer and tf.gfile.Exists and tf.app.run
assert backend.get_session and layers.Dense and array_ops.identity
assert tpu_function.tpu_shard_context and tpu_ops.cross_replica_sum
assert not hasattr(tf, "nonsense")
"""


def test_a_program_imports_tensorflow_1(program: Callable[[str], Any]) -> None:
    """Every kind of import statement sees TensorFlow 1: public, private and contrib modules."""
    assert program(IMPORTS)["tf"].contrib


def test_only_programs_see_it(program: Callable[[str], Any]) -> None:
    """Libraries, the bridge and the standard library keep TensorFlow 2 meanwhile."""
    seen = program("import tensorflow as tf\nimport json\n")["tf"]
    library = {"__name__": "library", "__file__": f"{pathlib.Path(np.__file__).parent}/x.py"}
    exec("import tensorflow as tf", library)
    bridge = {"__name__": "bridge", "__file__": f"{ROOT / 'estimator_bridge' / 'x.py'}"}
    exec("import tensorflow as tf", bridge)

    assert seen is not tf
    assert library["tf"] is bridge["tf"] is tf is sys.modules["tensorflow"]
    assert not hasattr(tf, "contrib")
    assert not any(name.startswith("tensorflow.contrib") for name in sys.modules)


@pytest.mark.parametrize(
    "statement, words",
    [
        (
            "import tensorflow.contrib.nonsense",
            r"`tf\.contrib\.nonsense` is not supported: .*this name\. .*`dir\(tf\.contrib\)`",
        ),
        ("from tensorflow.contrib import layer", r"layer` is not .* mean `tf\.contrib\.layers`\?"),
        (
            "from tensorflow.contrib.layers import bow_encoder",
            r"layers\.bow_encoder` is not .* Copy it from tensorflow/contrib/layers of",
        ),
        ("from tensorflow.contrib.opt import Nadam", r"opt\.Nadam` is not .* Use tf\.train"),
        ("import tensorflow.contrib.seq2seq.python", r"seq2seq\.python` is not .* Copy it"),
    ],
)
def test_an_import_of_another_name_says_what_there_is(
    statement: str, words: str, program: Callable[[str], Any]
) -> None:
    """Importing an unknown name is an ImportError with the names there are and what to do."""
    with pytest.raises(ImportError, match=words):
        program(statement)


def test_another_name_is_an_attribute_error(view: Any) -> None:
    """An unknown attribute is an AttributeError, as `hasattr` expects, with the same message."""
    with pytest.raises(
        errors.Unsupported, match=r"`tf\.contrib\.layers\.bow_encoder` is not supported"
    ):
        view.contrib.layers.bow_encoder  # noqa: B018 - it is the access that raises
    for name in ("nonsense", *(each for each in contrib_names.EMPTY if "." not in each)):
        assert not hasattr(view.contrib, name)
        assert name not in dir(view.contrib)


def test_a_module_without_names_is_imported_and_has_none(program: Callable[[str], Any]) -> None:
    """Programs may import a module of which they use nothing; `hasattr` still finds nothing."""
    seen = program(
        "import tensorflow as tf\nimport tensorflow.contrib.seq2seq as a\n"
        "from tensorflow.contrib import seq2seq as b\nfound = hasattr(tf.contrib, 'seq2seq')\n"
    )

    assert seen["a"] is seen["b"]
    assert not hasattr(seen["a"], "AttentionWrapper")
    assert not seen["found"]


def test_a_package_that_is_not_installed_is_no_attribute(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hasattr(tf.contrib, "slim")` is False without tf_slim; the access says what to install."""
    monkeypatch.setitem(sys.modules, "tf_slim", None)
    fresh = TF1View()

    assert not hasattr(fresh.contrib, "slim")
    with pytest.raises(errors.Unsupported, match=r"tf_slim, which is not installed. Install it"):
        fresh.contrib.slim  # noqa: B018 - it is the access that raises


def computed(make: Callable[[], Any], steps: int = 1) -> tuple[Any, dict[str, Array]]:
    """Returns what ops compute in the last of some steps, and then the variables by name."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        tensors = make()
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(tf1.tables_initializer())
        for _ in range(steps):
            values = session.run(tensors)
        variables = session.run({each.op.name: each for each in tf1.global_variables()})
        return values, variables


def numbers(*shape: int, seed: int = 0) -> Array:
    """Returns normal numbers of float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Sums of a few dozen float32 products, in another order: some units of the last place.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.mark.parametrize(
    "name, shape, options, axes, of_parameters",
    [
        ("layer_norm", (4, 6), {}, 1, (6,)),
        ("layer_norm", (2, 3, 5), {"begin_norm_axis": -1}, 2, (5,)),
        ("layer_norm", (2, 3, 5), {"begin_params_axis": 1}, (1, 2), (3, 5)),
        ("instance_norm", (2, 3, 4, 5), {}, (1, 2), (5,)),
        ("instance_norm", (2, 3, 4, 5), {"data_format": "NCHW"}, (2, 3), (3,)),
    ],
)
def test_norms_are_the_formula(
    name: str,
    shape: tuple[int, ...],
    options: Any,
    axes: Any,
    of_parameters: tuple[int, ...],
    view: Any,
) -> None:
    """(x - mean) / sqrt(variance + epsilon), times gamma plus beta, over the axes asked for."""
    x, epsilon = numbers(*shape), 1e-12 if name == "layer_norm" else 1e-6
    layer = getattr(view.contrib.layers, name)
    actual, variables = computed(lambda: layer(tf.constant(x), **options))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)

    np.testing.assert_allclose(actual, (x - mean) / np.sqrt(variance + epsilon), **CLOSE)
    scope = "LayerNorm" if name == "layer_norm" else "InstanceNorm"
    assert {name: value.shape for name, value in variables.items()} == {
        f"{scope}/beta": of_parameters,
        f"{scope}/gamma": of_parameters,
    }


@pytest.mark.parametrize("shape", [(6, 3), (2, 4, 4, 3), (5, 4, 3)])
def test_batch_norm_normalizes_and_moves_its_averages(shape: tuple[int, ...], view: Any) -> None:
    """In training by the batch; the moving variance of ranks 2 and 4 is that of a sample."""
    x = numbers(*shape)
    axes = tuple(range(len(shape) - 1))

    def make() -> Any:
        return view.contrib.layers.batch_norm(
            tf.constant(x), decay=0.9, scale=True, updates_collections=None, is_training=True
        )

    actual, variables = computed(make)
    count = int(np.prod(shape[:-1]))
    ratio = 1.0 if len(shape) == 3 else count / (count - 1)

    np.testing.assert_allclose(
        actual, (x - x.mean(axes)) / np.sqrt(x.var(axes) + 0.001), rtol=2e-4, atol=2e-5
    )
    assert variables.keys() == {
        f"BatchNorm/{name}" for name in ("beta", "gamma", "moving_mean", "moving_variance")
    }
    np.testing.assert_allclose(variables["BatchNorm/moving_mean"], 0.1 * x.mean(axes), **CLOSE)
    np.testing.assert_allclose(
        variables["BatchNorm/moving_variance"], 0.9 + 0.1 * x.var(axes) * ratio, **CLOSE
    )


def test_fully_connected_multiplies(view: Any) -> None:
    """relu(x w + b); of higher ranks the last axis; a normalizer takes the place of biases."""
    x = numbers(2, 3, 4)
    layers = view.contrib.layers

    def make() -> Any:
        return (
            layers.fully_connected(tf.constant(x), 5),
            layers.linear(tf.constant(x[0]), 2, scope="score"),
            layers.fully_connected(tf.constant(x[0]), 2, normalizer_fn=layers.layer_norm),
        )

    (actual, score, _), variables = computed(make)

    np.testing.assert_allclose(
        actual, np.maximum(x @ variables["fully_connected/weights"], 0.0), **CLOSE
    )
    np.testing.assert_allclose(score, x[0] @ variables["score/weights"], **CLOSE)
    assert variables.keys() == {
        *("fully_connected/weights", "fully_connected/biases", "score/weights", "score/biases"),
        "fully_connected_1/weights",
        *("fully_connected_1/LayerNorm/beta", "fully_connected_1/LayerNorm/gamma"),
    }


def test_convolutions_are_those_of_tensorflow(view: Any) -> None:
    """Each layer is TensorFlow's op on the layer's weights, with TensorFlow 1.15's names."""
    layers = view.contrib.layers
    images, volumes = numbers(2, 8, 8, 3), numbers(2, 4, 4, 4, 3)

    def make() -> Any:
        x, cube = tf.constant(images), tf.constant(volumes)
        return [
            layers.conv2d(x, 4, [3, 3], stride=2, scope="a"),
            layers.conv2d(x, 4, 3, rate=2, activation_fn=None, scope="b"),
            layers.separable_conv2d(x, 4, 3, 2, scope="c"),
            layers.conv2d_transpose(x, 4, 3, stride=2, padding="VALID", scope="d"),
            layers.conv1d(x[0], 2, 3),
            layers.max_pool2d(x, 2),
            layers.avg_pool2d(x, [2, 2], padding="SAME"),
            layers.conv3d(cube, 2, 3, stride=2),
            layers.conv3d_transpose(cube, 2, [3, 2, 2], stride=2, padding="VALID"),
            layers.max_pool3d(cube, 2),
            layers.avg_pool3d(cube, [2, 2, 2], [1, 2, 2], padding="SAME"),
        ]

    outputs, v = computed(make)

    def ops() -> Any:
        nn, x, cube = tf1.nn, tf.constant(images), tf.constant(volumes)
        depthwise, pointwise = v["c/depthwise_weights"], v["c/pointwise_weights"]
        transposed = v["Conv3d_transpose/weights"]
        return [
            nn.relu(nn.conv2d(x, v["a/weights"], 2, "SAME")),
            nn.conv2d(x, v["b/weights"], 1, "SAME", dilations=[1, 2, 2, 1]),
            nn.relu(nn.separable_conv2d(x, depthwise, pointwise, [1, 1, 1, 1], "SAME")),
            nn.relu(nn.conv2d_transpose(x, v["d/weights"], [2, 17, 17, 4], 2, "VALID")),
            nn.relu(nn.conv1d(x[0], v["Conv/weights"], 1, "SAME")),
            nn.max_pool2d(x, 2, 2, "VALID"),
            nn.avg_pool2d(x, 2, 2, "SAME"),
            nn.relu(nn.conv3d(cube, v["Conv_1/weights"], [1, 2, 2, 2, 1], "SAME")),
            # A convolution of 9 by 3, or 8 by 2, every 2 has 4 results.
            nn.relu(nn.conv3d_transpose(cube, transposed, [2, 9, 8, 8, 2], [2, 2, 2], "VALID")),
            nn.max_pool3d(cube, 2, 2, "VALID"),
            nn.avg_pool3d(cube, 2, [1, 1, 2, 2, 1], "SAME"),
        ]

    expected, _ = computed(ops)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert {f"{name}/biases" for name in ("a", "c", "d", "Conv", "Conv_1", "Conv3d_transpose")} <= (
        v.keys()
    )


def test_a_layer_lists_its_arguments_that_a_scope_may_set(view: Any) -> None:
    """Those with a default, also of a layer that is another one for inputs of one rank."""
    framework, layers = view.contrib.framework, view.contrib.layers
    functions = [getattr(layers, name) for name in dir(layers)]
    scoped = [each for each in functions if framework.has_arg_scope(each)]

    assert layers.conv2d_transpose in scoped
    for layer in scoped:
        names = framework.arg_scoped_arguments(layer)
        if layer.__module__.startswith("estimator_bridge"):  # Others are tf_slim's.
            assert {"scope", "inputs"} & {*names} == {"scope"}, layer.__name__
    of_conv2d = {*framework.arg_scoped_arguments(layers.conv2d)}
    assert {"stride", "padding", "activation_fn", "weights_regularizer", "trainable"} <= of_conv2d

    @framework.add_arg_scope
    def without_defaults(a: int, b: int) -> None:
        """Takes two numbers."""

    assert framework.arg_scoped_arguments(without_defaults) == ("a", "b")


def test_hparams_have_types(view: Any) -> None:
    """Text, dicts and JSON change settings; a value of another type is refused."""
    hparams = view.contrib.training.HParams(rate=0.1, sizes=[1, 2], name="a", flag=True, steps=3)
    assert hparams.parse("rate=1,sizes=[4,5,6],flag=false") is hparams
    hparams.parse("sizes[1]=7,name=b c")
    hparams.override_from_dict({"steps": 5})
    hparams.set_hparam("rate", 2)
    hparams.add_hparam("more", [0.5])

    assert hparams.values() == {
        **{"rate": 2.0, "sizes": [4, 7, 6], "name": "b c", "flag": False, "steps": 5},
        "more": [0.5],
    }
    assert isinstance(hparams.rate, float)
    assert "rate" in hparams
    assert hparams.get("other", 3) == 3
    assert view.contrib.training.HParams(a=1).parse_json('{"a": 2}').to_json() == '{"a": 2}'
    for text, words in (
        ("nothing=1", "Unknown hyperparameter"),
        ("rate=x", "Could not parse"),
        ("rate", "Malformed"),
        ("steps=1,steps=2", "Multiple assignments"),
    ):
        with pytest.raises(ValueError, match=words):
            hparams.parse(text)
    for name, value in (("steps", 1.5), ("name", 3), ("flag", 1), ("sizes", 3), ("rate", True)):
        with pytest.raises(ValueError, match=f"{name}"):
            hparams.set_hparam(name, value)
    with pytest.raises(ValueError, match="reserved"):
        hparams.add_hparam("values", 1)


def test_optimize_loss_makes_a_step(view: Any) -> None:
    """W - rate * the clipped gradient, and the global step; the rate is a variable."""

    def make() -> Any:
        w = tf1.get_variable("w", initializer=[3.0, 4.0])
        step = tf1.train.get_or_create_global_step()
        return view.contrib.layers.optimize_loss(
            tf.reduce_sum(w * w) / 2, step, 0.5, "SGD", clip_gradients=1.0
        )

    loss, variables = computed(make)

    np.testing.assert_allclose(variables["w"], [3.0 - 0.3, 4.0 - 0.4], **CLOSE)
    assert (loss, variables["global_step"]) == (12.5, 1)
    assert variables["OptimizeLoss/learning_rate"] == 0.5
    with pytest.raises(ValueError, match="Optimizer name should be one of"):
        computed(lambda: view.contrib.layers.optimize_loss(tf.constant(1.0), None, 0.1, "Best"))


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_the_formula(nesterov: bool, view: Any) -> None:
    """Three steps of layer-wise rates with momentum; a bias has neither these nor decay."""
    rate, momentum, decay, eeta = 0.5, 0.9, 0.01, 0.1
    start = {"w": numbers(3, 2), "bias": numbers(2)}

    def make() -> Any:
        variables = [tf1.get_variable(name, initializer=value) for name, value in start.items()]
        optimizer = view.contrib.opt.LARSOptimizer(
            rate, momentum, decay, eeta, skip_list=["bias"], use_nesterov=nesterov
        )
        return optimizer.minimize(tf.add_n([tf.reduce_sum(each * each) for each in variables]))

    _, actual = computed(make, steps=3)
    for name, w in start.items():
        m = np.zeros_like(w)
        for _ in range(3):
            g, factor = 2 * w, rate
            if name == "w":
                norm, of_gradient = np.linalg.norm(w), np.linalg.norm(g)
                factor = rate * eeta * norm / (of_gradient + decay * norm)
                g = g + decay * w
            m = momentum * m + g
            w = w - factor * (g + momentum * m if nesterov else m)
        np.testing.assert_allclose(actual[name], w, **CLOSE, err_msg=name)


@pytest.mark.parametrize("is_resource", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_nadam_is_the_formula(is_sparse: bool, is_resource: bool, view: Any) -> None:
    """Three steps of Adam along the momentum to come; rows without a gradient keep their place."""
    rate, beta1, beta2, epsilon = 0.1, 0.8, 0.9, 1e-3
    start, rows = numbers(4, 2), [0, 2] if is_sparse else [0, 1, 2, 3]

    def make() -> Any:
        variable = tf1.get_variable("w", initializer=start, use_resource=is_resource)
        used = tf.gather(variable, rows) if is_sparse else variable
        optimizer = view.contrib.opt.NadamOptimizer(rate, beta1, beta2, epsilon)
        return optimizer.minimize(tf.reduce_sum(used * used))

    _, actual = computed(make, steps=3)
    w, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for number in range(1, 4):
        g = np.zeros_like(w)
        g[rows] = 2 * w[rows]
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        factor = rate * np.sqrt(1 - beta2**number) / (1 - beta1**number)
        moved = factor * (beta1 * m + (1 - beta1) * g) / (np.sqrt(v) + epsilon)
        w[rows] -= moved[rows]
    np.testing.assert_allclose(actual["w"], w, **CLOSE)


def test_streaming_metrics_take_predictions_first(view: Any) -> None:
    """The correlation over batches is numpy's over all of them; recall knows its arguments."""
    x, y = numbers(3, 8), numbers(3, 8, seed=1)
    metrics = view.contrib.metrics
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = [tf1.placeholder(tf.float32, [8]) for _ in range(2)]
        value, update = metrics.streaming_pearson_correlation(*fed)
        recall = metrics.streaming_recall([True, False], [True, True])[1]
        session.run(tf1.local_variables_initializer())
        for batch in zip(x, y, strict=True):
            last = session.run(update, dict(zip(fed, batch, strict=True)))
        expected = np.corrcoef(x.ravel(), y.ravel())[0, 1]

        np.testing.assert_allclose([last, session.run(value)], [expected] * 2, rtol=1e-4)
        assert session.run(recall) == 0.5


def test_columns_make_the_input_of_a_model(view: Any) -> None:
    """Columns side by side in the order of TensorFlow 1.15: by kind, then by name."""
    layers = view.contrib.layers
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    words = layers.sparse_column_with_integerized_feature("words", 4)
    texts = layers.sparse_column_with_hash_bucket("texts", 2)
    columns = [
        layers.real_valued_column("age", dimension=2),
        layers.one_hot_column(layers.sparse_column_with_keys("kinds", ["a", "b"])),
        layers.embedding_column(words, 2, initializer=tf1.constant_initializer(table)),
        layers.embedding_column(texts, 1, initializer=tf1.ones_initializer()),
        layers.bucketized_column(layers.real_valued_column("years"), [2.0]),
    ]

    def make() -> Any:
        features = {
            "words": tf.constant([[0, 1], [3, -1]], tf.int64),
            "texts": tf.constant([["x", "y"], ["", ""]]),
            "kinds": tf.constant([["b"], ["c"]]),
            "age": tf.constant([[1.0, 2.0], [3.0, 4.0]]),
            "years": tf.constant([1.0, 2.0]),
        }
        return layers.input_from_feature_columns(features, columns)

    actual, variables = computed(make)
    np.testing.assert_allclose(
        actual,
        # Bucketized, embeddings, one-hot, real-valued.
        [
            [1.0, 0.0, 1.0, *table[:2].mean(0), 0.0, 1.0, 1.0, 2.0],
            [0.0, 1.0, 0.0, *table[3], 0.0, 0.0, 3.0, 4.0],
        ],
    )
    assert [*variables] == [
        f"input_from_feature_columns/{name}_embedding/weights" for name in ("texts", "words")
    ]


@pytest.mark.parametrize("layers", ["tf.compat.v1.layers", "tf.keras.layers"])
def test_old_subclasses_of_batch_normalization_work(layers: str) -> None:
    """A `_moments` without a mask, as it was in TensorFlow 1, gets none; another one stays."""
    base = eval(layers).BatchNormalization
    called = []
    with tf_compat.names_of_tf1():

        class Old(base):  # type: ignore[misc, valid-type]
            def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: Any) -> Any:
                called.append("old")
                return super()._moments(inputs, reduction_axes, keep_dims=keep_dims)

        class New(base):  # type: ignore[misc, valid-type]
            def _moments(self, inputs: Any, *args: Any, mask: Any = None, **settings: Any) -> Any:
                called.append("new")
                return super()._moments(inputs, *args, mask=mask, **settings)

    for kind in (Old, New):
        with tf.Graph().as_default():
            assert kind(axis=-1, fused=False)(tf.ones([2, 3, 4]), training=True).shape == [2, 3, 4]
    assert called[0] == "old"
    assert "new" in called
    assert "__init_subclass__" not in {name for each in base.__mro__[:-1] for name in vars(each)}


def names_in_tensorflow(path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    """Yields what a file takes of modules of TensorFlow: the module, and the name in it."""
    tree = ast.parse(path.read_text())
    modules: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
            package = importlib.import_module(node.module or "")
            for each in node.names:
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(f"{node.module}.{each.name}")
                yield package, each.name
                modules[each.asname or each.name] = getattr(package, each.name, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if isinstance(module, ModuleType):
                yield module, node.attr


def has(module: ModuleType, name: str) -> bool:
    """Returns whether a module has a name, if need be loaded now."""
    try:
        return hasattr(module, name)
    except ModuleNotFoundError:
        return False


def test_all_that_tf_slim_looks_for_in_tensorflow_is_there() -> None:
    """Its last release is older than both versions of TensorFlow: what has moved is put back."""
    package = importlib.util.find_spec("tf_slim")
    assert package is not None
    folder = pathlib.Path(package.origin or "").parent
    files = [path for path in folder.rglob("*.py") if not path.stem.endswith("_test")]
    names = {each for path in files for each in names_in_tensorflow(path)}

    def missing() -> set[str]:
        return {f"{module.__name__}.{name}" for module, name in names if not has(module, name)}

    before = missing()
    with tf_compat.names_of_tf1(), tf_compat.names_of_tf1():
        assert missing() == set()

    assert len(names) > 300
    assert "tensorflow.python.ops.control_flow_ops.cond" in before
    # Layers load when they are first looked for, and stay.
    assert missing() == {name for name in before if ".layers." not in name}


def test_the_module_of_the_profiler_is_there() -> None:
    """Programs import it, most of them for a server that they never start; nothing is left."""
    name = "tensorflow.python.eager.profiler"
    before = name in sys.modules
    with tf_compat.names_of_tf1(), tf_compat.names_of_tf1():
        module = importlib.import_module(name)
        package = importlib.import_module("tensorflow.python.eager")

        assert callable(module.start_profiler_server)
        assert callable(module.Profiler)
        assert importlib.import_module(name) is module
        assert package is sys.modules["tensorflow.python.eager"]
    has_own = importlib.util.find_spec(name) is not None
    assert (name in sys.modules) == (before or has_own)

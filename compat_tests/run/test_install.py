"""`install` puts names in the place of stock's, and restores stock's names afterwards."""

from __future__ import annotations

import importlib
import logging
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import fresh
from compat_tests.support.legacy_specs import needs_stock
from estimator_bridge import errors, estimator
from estimator_bridge.run import install, keras_choice, stock_names
from estimator_bridge.run.namespaces import AliasModule

IMPORTS = """
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow import estimator
from tensorflow.compat.v1 import estimator as estimator_v1
from tensorflow.compat.v1.estimator import tpu
from tensorflow.compat.v1.estimator.tpu.experimental import EmbeddingConfigSpec
from tensorflow.compat.v1.tpu.experimental import AdagradParameters
from tensorflow.distribute.cluster_resolver import TPUClusterResolver
import tensorflow.compat.v1.estimator.export as export
import tensorflow_estimator
import tensorflow_estimator as tfe
import tensorflow_estimator.python.estimator.estimator_lib as lib
from tensorflow_estimator.python.estimator import estimator_lib, model_fn, run_config
from tensorflow_estimator.python.estimator.export import export as export_lib
from tensorflow_estimator.python.estimator.export.export import ServingInputReceiver
from tensorflow_estimator.python.estimator.tpu import tpu_config, tpu_estimator, util
from tensorflow_estimator.python.estimator.tpu import _tpu_estimator_embedding
from tensorflow_estimator.python.estimator.tpu.tpu_estimator import TPUEstimator
from tensorflow.python.estimator import estimator_lib as old_lib
from tensorflow.python.tpu import tpu_embedding
from tensorflow.python.tpu.tpu_embedding import AdamParameters, FeatureConfig, TableConfig
import tensorflow.python.tpu.tpu_config as python_config
import tensorflow.python.tpu.tpu_estimator as python_estimator

assert tf.estimator is estimator is tf.compat.v2.estimator
assert estimator.__name__ == "estimator_bridge.estimator.v2"
assert estimator_v1 is tf1.estimator
assert estimator_v1.__name__ == "estimator_bridge.estimator"
assert tfe.estimator is tensorflow_estimator.estimator is estimator_v1
assert tpu is estimator_v1.tpu
assert EmbeddingConfigSpec is tpu.experimental.EmbeddingConfigSpec
assert EmbeddingConfigSpec is _tpu_estimator_embedding.EmbeddingConfigSpec
assert EmbeddingConfigSpec is python_estimator.EmbeddingConfigSpec
assert AdagradParameters is python_estimator.AdagradParameters
assert export.ServingInputReceiver is ServingInputReceiver is export_lib.ServingInputReceiver
assert lib is estimator_lib
assert lib.ModeKeys is model_fn.ModeKeys is estimator.ModeKeys is old_lib.ModeKeys
assert run_config.RunConfig is estimator.RunConfig
assert TPUEstimator is tpu_estimator.TPUEstimator is tpu.TPUEstimator
assert TPUEstimator is python_estimator.TPUEstimator
assert tpu_config.RunConfig is python_config.RunConfig is tpu.RunConfig
assert util.parse_iterations_per_loop("2m").value == 120
assert tpu_embedding.AdamParameters is AdamParameters
assert AdamParameters is tf1.tpu.experimental.AdamParameters
assert AdagradParameters is tf1.tpu.experimental.AdagradParameters
assert TPUClusterResolver is tf.distribute.cluster_resolver.TPUClusterResolver
assert TPUClusterResolver().master() == ""
assert AdamParameters.__module__ == TableConfig.__module__.replace("table_config", "parameters")
print("all imports lead to the bridge")
"""


@pytest.fixture
def clean() -> Iterator[None]:
    yield
    install.uninstall()


def test_programs_import_the_bridge_by_every_path(tmp_path: pathlib.Path) -> None:
    """`import x.y as z`, `import x.y` and `from x.y import z` of stock's paths work under `run`."""
    script = tmp_path / "imports.py"
    script.write_text(IMPORTS)
    ran = subprocess.run(
        [sys.executable, "-m", "estimator_bridge", "run", "--show-names", script],
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "all imports lead to the bridge"
    [line] = [line for line in ran.stderr.splitlines() if " running " in line]
    assert ("in the place of stock's" in line) == HAS_STOCK
    shown = [line for line in ran.stderr.splitlines() if " -> " in line]
    assert any("tensorflow.compat.v1.estimator -> estimator_bridge.estimator" in s for s in shown)
    # Every version of TensorFlow has these.
    kept = ("Resolver", "TPUStrategy", "tpu_system")
    moved = {f"{path}.{name} " for path, name, _ in stock_names.MOVED}
    for line in shown:
        is_new = any(name in line for name in moved)
        is_replaced = (HAS_STOCK and not is_new) or any(name in line for name in kept)
        assert ("replaces stock" in line) == is_replaced, line


def test_stock_runs_as_it_is(tmp_path: pathlib.Path) -> None:
    """With --stock nothing is replaced; without a stock estimator that is an error that says so."""
    script = tmp_path / "which.py"
    script.write_text(
        "import tensorflow as tf\nprint(tf.compat.v1.estimator.tpu.TPUEstimator.__module__)\n"
    )
    ran = fresh.module("estimator_bridge", "run", "--stock", script)

    if HAS_STOCK:
        assert ran.returncode == 0, ran.stderr
        assert "stock's estimator; the bridge replaces nothing" in ran.stderr
        assert ran.stdout.split() == ["tensorflow_estimator.python.estimator.tpu.tpu_estimator"]
    else:
        assert ran.returncode == 2
        assert "has no stock estimator" in ran.stderr


def state() -> dict[str, Any]:
    """Returns everything that `install` may touch: modules, their names, their `__all__`."""
    modules = [
        *(install.public_module(path) for path in stock_names.PUBLIC_NAMESPACES),
        *(install.public_module(path) for path in stock_names.RESOLVERS),
        tf.compat.v1.tpu.experimental,
        *(importlib.import_module(path) for path in ("tensorflow.python", "tensorflow.python.tpu")),
    ]
    values: dict[str, Any] = {
        f"sys.modules {name}": module
        for name, module in sys.modules.items()
        if "estimator" in name or name.startswith("tensorflow.python.tpu")
    }
    for module in modules:
        for name, value in vars(module).items():
            # What TensorFlow counts and caches is not ours.
            if not name.startswith(("_tfmw", "_fastdict")):
                values[f"{module.__name__}.{name}"] = (
                    list(value) if name == "__all__" else id(value)
                )
    return values


@pytest.mark.parametrize("replace", [False, True])
def test_uninstall_undoes_everything(replace: bool, clean: None) -> None:
    """After `uninstall` every module, attribute and `__all__` is what it was, also of stock's.

    Without `replace` the cluster resolver is what it was meanwhile, too.
    """
    # What is imported on the way is not undone; it is there beforehand.
    install.install(replace=replace)
    install.uninstall()
    before = state()
    replaced = install.install(replace=replace)
    during = state()
    install.uninstall()

    assert state() == before
    assert (during == before) == (replaced == [])
    resolver = "tensorflow._api.v2.distribute.cluster_resolver.TPUClusterResolver"
    assert (during[resolver] == before[resolver]) is not replace


@needs_stock
def test_nothing_of_stock_is_replaced_unless_asked(clean: None) -> None:
    """On TF 2.15 `install` changes nothing; with `replace`, and only then, all names."""
    assert install.install() == []
    assert install.installed() == []
    assert tf.compat.v1.estimator.__name__ != estimator.__name__

    install.install(replace=True)
    moved = {f"{path}.{name}" for path, name, _ in stock_names.MOVED}
    assert all(each.replaced or each.name in moved for each in install.installed())
    assert tf.compat.v1.estimator is estimator


@needs_stock
def test_every_path_is_one_of_stock() -> None:
    """Each name is one that stock has, at the path where `install` puts ours.

    Programs look for one more in another module than that which has it, and for some that older
    versions of stock had.
    """
    looked_for = {
        f"{path}.tpu_estimator InputPipelineConfig"
        for path in ("tensorflow_estimator.python.estimator.tpu", "tensorflow.python.tpu")
    } | {
        f"{path}.util {name}"
        for path in stock_names.LIBRARIES
        for name in ("tf_keras", "tf_keras_v1", "tf_keras_v2")
    }
    program = """
        import importlib, sys
        from importlib import util
        from estimator_bridge.run import stock_names
        for path, names in stock_names.MODULES.items():
            module = importlib.import_module(path)
            for name in names:
                is_module = hasattr(module, "__path__") and util.find_spec(f"{path}.{name}")
                if not hasattr(module, name) and not is_module:
                    print(path, name)
        print("done")
    """
    ran = fresh.code(textwrap.dedent(program), check=True)

    assert set(ran.stdout.split("\n")[:-1]) == {"done", *looked_for}


def test_installing_twice_is_installing_once(clean: None) -> None:
    """A second `install` lists the same names, and one `uninstall` undoes both.

    Without `replace` it takes nothing back: a program may install by itself, and be run by `run`.
    """
    before = vars(tf.compat.v1).get("estimator")
    names = install.install(replace=True)

    assert install.install(replace=True) == names
    assert install.install() == names
    assert [name.name for name in install.installed()] == names
    assert len(set(names)) == len(names)
    install.uninstall()
    assert vars(tf.compat.v1).get("estimator") is before
    assert install.installed() == []


def test_every_name_leads_somewhere(clean: None) -> None:
    install.install(replace=True)
    missing = [
        (path, name)
        for path, names in stock_names.MODULES.items()
        for name in names
        if not hasattr(importlib.import_module(path), name)
    ]

    assert missing == []


def test_tensorflows_own_embedding_is_kept(clean: None) -> None:
    """TensorFlow's TPUEmbedding stays where it has one; where not, its name says what to use.

    A private name that is not offered is an AttributeError that lists what is.
    """
    install.install(replace=True)
    module = sys.modules["tensorflow.python.tpu.tpu_embedding"]
    assert isinstance(module, AliasModule)

    assert module.TRAINING != module.INFERENCE
    if keras_choice.is_2_15():
        assert module.TPUEmbedding.__module__ == "tensorflow.python.tpu.tpu_embedding"
    else:
        with pytest.raises(errors.Unsupported, match=r"Use tf2_engine\.TPUEmbedding"):
            module.TPUEmbedding  # noqa: B018 - it is the access that raises
    with pytest.raises(
        errors.Unsupported, match=r"tpu_embedding\.Nonsense` is not supported.*AdamPar"
    ):
        module.Nonsense  # noqa: B018 - it is the access that raises
    assert not hasattr(module, "Nonsense")


@pytest.mark.parametrize(
    "statement, reason",
    [
        ("import tensorflow_estimator.python.estimator.canned.boosted_trees", "no boosted trees"),
        ("import tensorflow_estimator.python.estimator.canned.timeseries.model", "model_fn"),
        ("import tensorflow.python.estimator.nonsense", "Import public names from"),
        ("from tensorflow_estimator.python.estimator.model_fn import nonsense", "LOSS_METRIC_KEY"),
    ],
)
def test_imports_of_what_is_left_out_say_why(statement: str, reason: str, clean: None) -> None:
    """An import that fails is an ImportError with the reason, of modules and of names alike."""
    install.install(replace=True)

    with pytest.raises(errors.UnsupportedImport, match=f"is not supported: .*{reason}") as caught:
        exec(statement, {})
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("path", stock_names.ESTIMATOR_PARENTS)
def test_every_path_to_the_namespace_leads_to_the_bridge(path: str, clean: None) -> None:
    """Indirect paths such as `tf.compat.v2.compat.v1.estimator` lead to the bridge, too."""
    install.install(replace=True)

    namespace = importlib.import_module(stock_names.ESTIMATOR_PARENTS[path])
    assert install.public_module(path).estimator is namespace
    assert importlib.import_module(f"{path}.estimator.tpu") is estimator.tpu


def test_a_private_name_does_what_stocks_does(clean: None, tmp_path: pathlib.Path) -> None:
    """Private names return what stock's do: the step of a model_dir (or 0), keys and versions."""
    install.install(replace=True)
    library = "tensorflow_estimator.python.estimator"
    module = importlib.import_module(f"{library}.estimator")
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        with tf.compat.v1.Session() as session:
            session.run(step.assign(7))
            tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    tpu = importlib.import_module(f"{library}.tpu.tpu_estimator")
    keys = importlib.import_module(f"{library}.model_fn")

    assert module._load_global_step_from_checkpoint_dir(str(tmp_path)) == 7
    assert module._load_global_step_from_checkpoint_dir(str(tmp_path / "none")) == 0
    assert [each.value for each in tpu.ExportSavedModelApiVersion] == [1, 2]
    assert tpu.BatchConfig(1, 2, 3, [2]).max_enqueued_batches == 100
    assert (keys.LOSS_METRIC_KEY, keys.AVERAGE_LOSS_METRIC_KEY) == ("loss", "average_loss")


def test_private_functions_take_what_stocks_take(clean: None) -> None:
    """An input is read, with the hook that starts it, and a model is called for its predictions."""
    install.install(replace=True)
    library = "tensorflow_estimator.python.estimator"
    util = importlib.import_module(f"{library}.util")
    tpu = importlib.import_module(f"{library}.tpu.tpu_estimator")

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        return estimator.tpu.TPUEstimatorSpec(mode, predictions={"p": params["by"] * features})

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = tf.data.Dataset.from_tensors((tf.constant([2.0]), tf.constant([5.0])))
        features, labels, (hook,) = util.parse_input_fn_result(rows)
        hook.after_create_session(session, None)
        spec = tpu.model_fn_inference_on_tpu(model_fn, features, labels, params={"by": 3.0})
        assert isinstance(spec, estimator.EstimatorSpec)
        assert spec.mode == estimator.ModeKeys.PREDICT
        predicted, label = session.run((spec.predictions["p"], labels))
    assert (predicted.tolist(), label.tolist()) == ([6.0], [5.0])


@pytest.mark.parametrize("path", stock_names.RESOLVERS)
def test_a_cluster_resolver_without_a_tpu_is_this_process(
    path: str, clean: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The stand-in takes stock's arguments, gives a RunConfig of this process, and says so."""
    caplog.set_level(logging.INFO, "tensorflow")
    install.install(replace=True)
    resolver = install.public_module(path).TPUClusterResolver(
        "grpc://10.0.0.2:8470", zone="a", project="b", job_name="tpu_worker"
    )

    assert isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver)
    assert [r.message for r in caplog.records if "host engine takes its place" in r.message]
    config = estimator.tpu.RunConfig(cluster=resolver, model_dir="here")
    assert (config.master, config.evaluation_master) == ("", "")
    assert config.replace(model_dir="there").cluster.get_master() == ""
    assert resolver.num_accelerators() == {"TPU": 0}
    assert resolver.get_job_name() == "tpu_worker"
    # What programs do before they make an estimator: nothing to connect to.
    tf.config.experimental_connect_to_cluster(resolver)


KERAS_BEFORE = "tf.keras.layers.Dense"


def full(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "before, use",
    [
        ("", "from estimator_bridge import estimator; estimator.tpu.RunConfig()"),
        full("", "from estimator_bridge.estimator.tpu import TPUEstimator"),
        (KERAS_BEFORE, "from estimator_bridge import estimator; estimator.tpu.RunConfig()"),
    ],
)
def test_names_choose_keras_by_themselves(before: str, use: str) -> None:
    """A program that imports a legacy name has Keras 2, or is told why it cannot.

    Without `install` or `run`, and in a process that asked for no Keras, or already for Keras 3.
    """
    program = f"import tensorflow as tf\n{before}\n{use}\nprint(tf.keras.layers.Layer.__module__)"
    ran = fresh.code(program)

    if before and not keras_choice.is_2_15():
        last = ran.stderr.strip().splitlines()[-1]
        assert ran.returncode == 1
        assert "tf.keras is already Keras 3" in last
        assert "TF_USE_LEGACY_KERAS=1" in last
    else:
        assert ran.returncode == 0, ran.stderr
        assert not ran.stdout.startswith("keras.src.models")


@pytest.mark.whole
def test_every_import_of_keras_leads_to_the_same() -> None:
    program = """
        import tensorflow as tf
        from estimator_bridge import install
        install.install()
        import tensorflow.keras as keras
        from tensorflow import keras as from_tensorflow
        from tensorflow.compat.v1.keras.layers import Dense as of_v1
        from tensorflow.compat.v2.keras.layers import Dense as of_v2
        from tensorflow.keras.layers import Dense
        for kind in (Dense, keras.layers.Dense, from_tensorflow.layers.Dense, of_v1, of_v2):
            print(kind.__module__, issubclass(kind, tf.keras.layers.Layer))
    """
    ran = fresh.code(textwrap.dedent(program), check=True)

    kind = "keras" if keras_choice.is_2_15() else "tf_keras"
    assert ran.stdout.splitlines()[-5:] == [f"{kind}.src.layers.core.dense True"] * 5

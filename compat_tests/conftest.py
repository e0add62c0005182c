"""Runs an engine eagerly, in tf.functions and in a tf.Graph, in the same words."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import gpu, own_choice, tpus, version_shares
from compat_tests.support.stock_engine import StockEngine
from estimator_bridge import estimator
from estimator_bridge.settings.quirks import default_quirks, set_default_quirks
from tf2_engine.backends import Driver, HostDriver

# Legacy programs are written in Keras 2; this comes before anything touches tf.keras.
own_choice.use_legacy_keras()
# On 2.15 it is beside tf.keras, whose registry it writes to: were it imported by some modules of
# tests alone, what others see would depend on which of them run together.
importlib.import_module("tf_keras")

# Whether pytest sees what TensorFlow logs depends on its version where a logger does not propagate.
tf.get_logger().propagate = True

HAS_STOCK = importlib.util.find_spec("tensorflow_estimator") is not None
"""Whether stock's TPUEstimator is there to compare with: it is beside TensorFlow 2.15."""

HAS_SPARSE_CORES = hasattr(tf.tpu.experimental.embedding, "TPUEmbeddingV2")
"""Whether TensorFlow has stock's class for SparseCores and its ops: 2.21 has, 2.15 has not."""

SUITE = pathlib.Path(__file__).parent

IN_REPOSITORY = (SUITE.parent / "examples").is_dir()
"""Whether examples and documents are there, which are part of no package."""

HAS_KERAS_RS = HAS_SPARSE_CORES and (
    importlib.util.find_spec("keras_rs") is not None
    # There `make envs` installs it, and without it its tests fail rather than vanish.
    or (IN_REPOSITORY and sys.version_info >= (3, 11))
)

LEFT_OUT = {
    "beside stock's TPUEstimator": (
        "convert/test_stock_checkpoints.py",
        "estimator/test_interchange_with_stock.py",
        "estimator/test_side_by_side.py",
        "estimator/test_side_by_side_errors.py",
        "estimator/test_software_tpu_estimator.py",
        "estimator/test_stock_differences.py",
        "estimator/test_stock_takes_ours.py",
        "side_by_side.py",
    )
    * (not HAS_STOCK),
    "of stock's TPUEmbeddingV2, which TensorFlow 2.21 has": (
        "convert/test_convert_sparsecore_beside_stock.py",
        "engine/test_sparsecore_layout_beside_stock.py",
        "sparsecore/test_bad_input.py",
        "sparsecore/test_driver.py",
        "sparsecore/test_inputs.py",
        "sparsecore/test_keras_layers.py",
        "sparsecore/test_limits.py",
        "sparsecore/test_mutations.py",
        "sparsecore/test_preprocessing.py",
        "sparsecore/test_soft_sparsecore.py",
        "sparsecore/test_stock_on_software.py",
        "translation/test_to_sparse_cores_beside_stock.py",
    )
    * (not HAS_SPARSE_CORES),
    "of keras_rs, for TensorFlow 2.21 and Python 3.11 or newer": ("sparsecore/test_keras_rs.py",)
    * (not HAS_KERAS_RS),
    "of libraries, in the environment that `make libraries` makes": ("libraries/test_libraries.py",)
    * (importlib.util.find_spec("tensorflow_ranking") is None),
    "of PyTorch, in the environment that `make torch-tests` makes": (
        *("pytorch/test_effects.py", "pytorch/test_reference_implementations.py"),
        *("pytorch/test_rules.py", "pytorch/test_state_dicts.py"),
    )
    * (importlib.util.find_spec("torchrec") is None),
    "of documents and examples, which are in the repository alone": (
        *("project/test_api_reference.py", "project/test_docs.py", "project/test_habits.py"),
        "run/test_examples.py",
    )
    * (not IN_REPOSITORY),
}
"""Modules that cannot run here, by what they are tests of."""

collect_ignore = list(itertools.chain(*LEFT_OUT.values()))


class LeftOut(pytest.File):
    """A module that cannot run here and is collected all the same, since it was asked for."""

    def collect(self) -> Iterator[pytest.Item]:
        return iter(())


RUNS_ANYWHERE = re.compile(r"mark\.(stock|whole)|needs_stock|def test_\w+\([^)]*\bnamespace: Any")
"""Marks, and a fixture, with which a test of a file that is the other version's can run here."""


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Imports no file in the quick tier whose tests all run on the other version."""
    if not (_leaves_out(config, "full", "elsewhere") and _tests(collection_path)):
        return None
    file = collection_path.relative_to(SUITE).as_posix()
    if not version_shares.is_elsewhere(file, tf.__version__):
        return None
    return RUNS_ANYWHERE.search(collection_path.read_text(encoding="utf-8")) is None or None


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[pytest.Item] | None:
    """Makes no items of a test that the tier leaves out: there may be thousands of one."""
    if not name.startswith("test_"):
        return None
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())} & {"full", "soak"}
    return [] if any(_leaves_out(collector.config, mark) for mark in marks) else None


def _leaves_out(config: pytest.Config, *marks: str) -> bool:
    return all(f"not {mark}" in config.option.markexpr for mark in marks)


def _tests(path: pathlib.Path) -> bool:
    return path.is_relative_to(SUITE) and path.name.startswith("test_") and path.suffix == ".py"


def pytest_pycollect_makemodule(module_path: pathlib.Path, parent: Any) -> LeftOut | None:
    """Imports no module that cannot run here; pytest ignores `collect_ignore` if it is named."""
    return LeftOut.from_parent(parent, path=module_path) if _reason(module_path) else None


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Says of modules that were asked for by name why they have no tests."""
    named = [pathlib.Path(each.split("::")[0]).resolve() for each in config.args]
    return [f"{path.name}: no tests here, it is {_reason(path)}" for path in named if _reason(path)]


def _reason(path: pathlib.Path) -> str:
    name = path.relative_to(SUITE).as_posix() if path.is_relative_to(SUITE) else ""
    return next((reason for reason, names in LEFT_OUT.items() if name in names), "")


def pytest_configure(config: pytest.Config) -> None:
    """Names the markers, for a suite that runs outside of its repository."""
    for marker in (
        "full: thorough; not in the quick tier",
        "soak: very long; in no other tier",
        "elsewhere: runs on the other TensorFlow only; set by conftest.py",
        "stock: compares with stock's TPUEstimator; collected where there is one",
        "whole: runs on both versions of TensorFlow, whatever support/version_shares.py lists",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what compares with stock where there is no stock; marks what is `elsewhere`."""
    for item in items:
        if _is_elsewhere(item):
            item.add_marker("elsewhere")
    if HAS_STOCK:
        return
    left_out = [item for item in items if item.get_closest_marker("stock")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_elsewhere(item: pytest.Item) -> bool:
    """Whether a test runs on the other version of TensorFlow only."""
    marked = {mark.name for mark in item.iter_markers()}
    if marked & {"stock", "whole"} or not item.path.is_relative_to(SUITE):
        return False
    file = item.path.relative_to(SUITE).as_posix()
    thorough = bool(marked & {"full", "soak"})
    return version_shares.is_elsewhere(file, tf.__version__, thorough)


def pytest_collection_finish() -> None:
    """Exempts what is made before the first test from garbage collection, and makes that rarer.

    They stay until the end: TensorFlow, the suite, and thousands of tests of the other tiers. A
    graph is a hundred thousand objects, so Python would look for garbage many times in one test.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


BEHAVIOR = (
    tf.executing_eagerly,
    tf.compat.v1.resource_variables_enabled,
    tf.compat.v1.control_flow_v2_enabled,
)
"""Switches of a whole process that `disable_v2_behavior` turns off."""


@pytest.fixture(autouse=True)
def _tensorflow_2_stays_on() -> Iterator[None]:
    """Fails where a test turns TensorFlow 2's behavior off, rather than in each test after it.

    The quirks that a command chose for the programs of the process are forgotten.
    """
    before, quirks = [is_on() for is_on in BEHAVIOR], default_quirks()
    yield
    set_default_quirks(quirks)
    assert [is_on() for is_on in BEHAVIOR] == before, "Run programs in processes of their own."


@pytest.fixture(params=["bridge", pytest.param("stock", marks=pytest.mark.stock)])
def namespace(request: pytest.FixtureRequest) -> Any:
    """The estimators of a side: the bridge's, and stock's where they are installed."""
    if request.param == "bridge":
        return estimator
    from compat_tests.support import stock

    return stock.ESTIMATOR


Array = npt.NDArray[np.float32]


class Runner:
    """Runs functions of tensors the way a mode does.

    Attributes:
        mode: "eager"; "function", every function is a tf.function; "graph", the ops of every
            function are in one tf.Graph, which a session runs.
    """

    def __init__(self, mode: str, *, autograph: bool = False) -> None:
        """Makes a runner.

        Args:
            autograph: whether tf.functions are converted, as those of users are; tracing a large
                function without conversion takes half the time.
        """
        self.mode = mode
        self._autograph = autograph
        self._graph = tf.Graph() if mode == "graph" else None
        self._session = _session(self._graph) if self._graph else None
        self._initialized: set[Any] = set()
        self._writes: dict[Any, tuple[Any, Any]] = {}

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Makes variables and engines belong to where the functions run."""
        return self._graph.as_default() if self._graph else contextlib.nullcontext()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` as the mode runs it: from eager tensors to numpy arrays.

        In a graph its ops are made at the first call; later arguments have the same shapes.
        """
        if self._graph:
            return _InGraph(self, function)
        if self.mode == "function":
            run = tf.function(function, autograph=self._autograph)
        else:
            run = function
        return lambda *arguments: _as_numpy(run(*arguments))

    def run(self, fetches: Any, feeds: Mapping[Any, Any] | None = None) -> Any:
        """Runs ops of the graph, its new variables initialized before."""
        assert self._graph is not None
        assert self._session is not None
        with self._graph.as_default():
            variables = tf.compat.v1.global_variables()
            new = {variable.ref() for variable in variables} - self._initialized
            self._session.run([reference.deref().initializer for reference in new])
            self._initialized |= new
            flat = tf.nest.flatten(fetches)
            wanted = [fetch for fetch in flat if fetch is not None]
            got = iter(self._session.run(wanted, feeds))
        packed = [None if fetch is None else next(got) for fetch in flat]
        return tf.nest.pack_sequence_as(fetches, packed)

    def read(self, variables: Any) -> Any:
        """Returns the values of a nest of variables."""
        return self.run(variables) if self._graph else _as_numpy(variables)

    def write(self, variable: Any, value: Any) -> None:
        self.write_all([(variable, value)])

    def write_all(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Changes the values of variables, of a graph in one run: each new op prepares it anew."""
        if self._graph is None:
            for variable, value in values:
                variable.assign(value)
            return
        writes = [(*self._write_of(variable), value) for variable, value in values]
        self.run(
            [assign for _, assign, _ in writes],
            {placeholder: value for placeholder, _, value in writes},
        )

    def _write_of(self, variable: Any) -> tuple[Any, Any]:
        if variable.ref() not in self._writes:
            with self._graph.as_default():
                placeholder = tf.compat.v1.placeholder(variable.dtype, variable.shape)
                assign = variable.assign(placeholder, read_value=False)
            self._writes[variable.ref()] = placeholder, assign
        return self._writes[variable.ref()]


class _InGraph:
    def __init__(self, runner: Runner, function: Callable[..., Any]) -> None:
        self._runner = runner
        self._function = function
        self._built: tuple[Any, Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._built is None:
            with self._runner.scope():
                placeholders = tf.nest.map_structure(_placeholder, arguments)
                self._built = placeholders, self._function(*placeholders)
        placeholders, outputs = self._built
        keys = tf.nest.flatten(placeholders, expand_composites=True)
        values = tf.nest.flatten(arguments, expand_composites=True)
        feeds = {
            key: value.numpy()
            for key, value in zip(keys, values, strict=True)
            if key is not None and key.graph.is_feedable(key)
        }
        return self._runner.run(outputs, feeds)


class Engine:
    """An engine and the calls of a step; batches, activations and gradients are per core.

    Attributes:
        embedding: the engine under test.
    """

    def __init__(
        self,
        runner: Runner,
        spec: tf2_engine.EngineSpec,
        *,
        driver: str | Driver | None = None,
        split: bool = False,
        **options: Any,
    ) -> None:
        """Makes an engine.

        Args:
            driver: one of `cases.optimizers.DRIVERS`, or an object; None is the engine's default;
                "gpu" has the kernels of GPUs wherever it runs;
                "stock" runs stock's TPUEmbedding instead, on a software TPU.
            split: a step is two functions: one enqueues, one looks up and applies gradients.
            **options: of `TPUEmbedding`.
        """
        self._runner = runner
        self._partition = spec.partition_strategy
        cores = options.get("num_cores", 1)
        self._tpu = tpus.strategy(cores) if driver in ("tpu", "stock") else None
        self._spare = self._tpu.num_replicas_in_sync - cores if self._tpu else 0
        if self._spare:
            options["num_cores"] = cores + self._spare
            _check_can_be_spared(spec, cores, self._spare)
        with runner.scope(), self._tpu.scope() if self._tpu else contextlib.nullcontext():
            if driver == "stock":
                self.embedding: Any = StockEngine(spec, **options)
            else:
                if driver in ("host", "native"):
                    driver = HostDriver(native=driver == "native")
                elif driver == "gpu":
                    driver = gpu.GpuDriver()
                self.embedding = tf2_engine.TPUEmbedding(spec, driver=driver, **options)
        self._functions: dict[Any, Any] = {}
        self._several_cores = cores > 1
        self._parts = [
            runner.wrap(part) for part in ([self._enqueue, self._finish] if split else [self._step])
        ]
        self._infer = runner.wrap(self._look_up)
        self._bring = runner.wrap(self.embedding.retrieve)
        self._hand_over = runner.wrap(self.embedding.load)

    def build_for(self, output_shapes: Sequence[Any]) -> None:
        with self._runner.scope():
            done = self.embedding.build_for(output_shapes)
        for op in done or ():
            self._runner.run(op)

    def train(self, features: Sequence[Any], weights: Any, gradients: Sequence[Any]) -> list[Any]:
        """Runs one step of training; returns the activations."""
        if len(self._parts) == 1:
            return self._parts[0](features, weights, gradients)[0][: len(features)]
        self._parts[0](features, weights)
        return self._parts[1](gradients)[0][: len(features)]

    def look_up(self, features: Sequence[Any], weights: Any = None) -> list[Any]:
        """Looks one batch up without training; returns the activations."""
        return self._infer(features, weights)[0][: len(features)]

    def retrieve(self) -> None:
        self._bring()

    def read(self) -> dict[str, dict[str, Array]]:
        """Returns parameters and slots by table, each [rows, dim]."""
        if self._tpu:
            self._bring()
        values = self._runner.read(
            {name: dict(table.variables) for name, table in self.embedding.tables.items()}
        )
        return {
            name: {kind: _merged(shards, self._partition) for kind, shards in kinds.items()}
            for name, kinds in values.items()
        }

    def write(self, table: str, weights: Array) -> None:
        """Changes the parameters of a table of an engine that is built."""
        shards = self.embedding.tables[table].variables["parameters"]
        for number, shard in enumerate(shards):
            rows = rows_of_shard(len(weights), len(shards), number, self._partition)
            self._runner.write(shard, weights[rows])
        if self._tpu:
            self._hand_over()

    def _enqueue(self, features: Any, weights: Any, training: bool = True) -> Any:
        weights = None if weights is None else self._of_all_cores(weights)
        return self.embedding.enqueue(self._of_all_cores(features), weights, training)

    def _finish(self, gradients: Any) -> Any:
        if not self._tpu:
            activations, done = self._on_core(self._of_all_cores(gradients))
            return activations if self._several_cores else [activations], done
        zeros = tf.nest.map_structure(tf.zeros_like, gradients[0])
        arguments = (self._of_all_cores(gradients, spare=zeros),)
        activations, done = self._tpu.run(self._traced(self._on_core), arguments)
        if done is not None:
            done = list(self._tpu.experimental_local_results(done))
        return self._by_core(activations), done

    def _on_core(self, gradients: Any) -> Any:
        activations = self.embedding.dequeue()
        # As in a model: gradients are computed from activations.
        with tf.control_dependencies(_ops(activations)):
            gradients = tf.nest.map_structure(tf.identity, gradients)
        return activations, self.embedding.apply_gradients(gradients)

    def _step(self, features: Any, weights: Any, gradients: Any) -> Any:
        enqueued = self._enqueue(features, weights)
        return *self._finish(gradients), enqueued

    def _look_up(self, features: Any, weights: Any) -> Any:
        enqueued = self._enqueue(features, weights, training=False)
        if self._tpu:
            return self._by_core(self._tpu.run(self._traced(self.embedding.dequeue))), enqueued
        activations = self.embedding.dequeue()
        return activations if self._several_cores else [activations], enqueued

    def _of_all_cores(self, per_core: Sequence[Any], spare: Any = None) -> Any:
        if not self._tpu:
            return list(per_core) if self._several_cores else per_core[0]
        # Cores that no test asked for repeat the first one's batch, with gradients of zero.
        per_core = [*per_core, *[per_core[0] if spare is None else spare] * self._spare]
        by_feature = {key: [values[key] for values in per_core] for key in per_core[0]}
        return {
            key: None if values[0] is None else _distributed(self._tpu, values)
            for key, values in by_feature.items()
        }

    def _traced(self, function: Callable[..., Any]) -> Any:
        # Eagerly a TPUStrategy runs tf.functions only.
        if self._runner.mode != "eager":
            return function
        if function not in self._functions:
            self._functions[function] = tf.function(function, autograph=False)
        return self._functions[function]

    def _by_core(self, nest: Any) -> list[Any]:
        assert self._tpu is not None
        flat = [self._tpu.experimental_local_results(leaf) for leaf in tf.nest.flatten(nest)]
        return [tf.nest.pack_sequence_as(nest, of_core) for of_core in zip(*flat, strict=True)]


def _check_can_be_spared(spec: tf2_engine.EngineSpec, cores: int, spare: int) -> None:
    """Leaves a test out whose numbers depend on how many cores there are."""
    if not all(table.optimizer.use_gradient_accumulation for table in spec.tables):
        pytest.skip(f"needs {cores} cores, the TPU has {cores + spare}: accumulation is off")


def _distributed(strategy: Any, values: Sequence[Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


def _session(graph: tf.Graph) -> tf.compat.v1.Session:
    # As stock's Estimator has it: where there is no TPU, its ops are placed on the CPU.
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    return tf.compat.v1.Session(graph=graph, config=config)


def rows_of_shard(num_rows: int, num_shards: int, shard: int, strategy: str) -> Any:
    """Returns the rows of a table that a host holds, in its order."""
    if strategy == "mod":
        return np.arange(num_rows)[shard::num_shards]
    return np.array_split(np.arange(num_rows), num_shards)[shard]


def _merged(shards: Sequence[Array], strategy: str) -> Array:
    num_rows = sum(len(shard) for shard in shards)
    whole = np.empty((num_rows, *shards[0].shape[1:]), shards[0].dtype)
    for number, shard in enumerate(shards):
        whole[rows_of_shard(num_rows, len(shards), number, strategy)] = shard
    return whole


def _placeholder(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.SparseTensor):
        indices = tf.compat.v1.placeholder(tf.int64, [None, value.indices.shape[1]])
        values = tf.compat.v1.placeholder(value.dtype, [None])
        return tf.SparseTensor(indices, values, value.dense_shape.numpy())
    if isinstance(value, tf.RaggedTensor):
        values = tf.compat.v1.placeholder(value.dtype, [None])
        splits = tf.compat.v1.placeholder(value.row_splits.dtype, value.row_splits.shape)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    return tf.compat.v1.placeholder(value.dtype, value.shape)


def _as_numpy(nest: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf.numpy(), nest)


def _ops(activations: Any) -> list[Any]:
    return [] if tf.executing_eagerly() else tf.nest.flatten(activations)

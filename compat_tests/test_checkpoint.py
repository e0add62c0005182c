"""Checkpoints: stock reads ours and we read stock's, with any number of hosts, at any moment."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.conftest import rows_of_shard
from tf2_engine import errors, specs
from tf2_engine.checkpoint import TableTensor
from tf2_engine.drivers import HostDriver
from tf2_engine.serving import cpu_embedding_lookup

stock = tf.tpu.experimental.embedding

VOCABULARY = {"us/ers.x": 10, "items": 3}
DIM = {"us/ers.x": 4, "items": 2}
OPTIMIZERS = ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam")
"""Those that stock has."""

Values = Mapping[str, Mapping[str, Any]]
"""By table, by "parameters" and slot: rows by id."""


class Placement(NamedTuple):
    """Which host holds which row."""

    hosts: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.strategy} on {self.hosts}"


# With five hosts there are more of them than rows in "items".
PLACEMENTS = [Placement(1, "div"), Placement(2, "div"), Placement(5, "div")]
PLACEMENTS += [Placement(1, "mod"), Placement(3, "mod"), Placement(5, "mod")]
ONE = PLACEMENTS[0]

EACH = [
    pytest.param(
        optimizer,
        placement,
        id=f"{optimizer}, {placement}",
        marks=() if ONE is placement or optimizer == "Adagrad" else pytest.mark.full,
    )
    for optimizer in OPTIMIZERS
    for placement in PLACEMENTS
]
"""Every optimizer on every placement; the quick tier has every one of them once."""


def feature_config() -> Any:
    """Returns new configs of two tables and three features."""
    users, items = (
        stock.TableConfig(VOCABULARY[name], DIM[name], name=name, combiner="sum")
        for name in VOCABULARY
    )
    return {
        "user": stock.FeatureConfig(users),
        "nested": {"item": stock.FeatureConfig(items), "others": [stock.FeatureConfig(users)]},
    }


def ours(
    optimizer: str | None = "Adagrad",
    placement: Placement = ONE,
    *,
    build: bool = True,
    pipelined: bool = False,
    cores: int | None = None,
    **options: Any,
) -> Any:
    """Returns an engine of ours, by default with a core per host.

    Without an optimizer it only looks up.
    """
    of = specs.from_feature_config(
        feature_config(),
        getattr(tf2_engine, optimizer or "SGD")(0.1),
        partition_strategy=placement.strategy,
        pipeline_execution_with_tensor_core=pipelined,
    )
    engine = tf2_engine.TPUEmbedding(
        of,
        num_hosts=placement.hosts,
        num_cores=cores or placement.hosts,
        training=optimizer is not None,
        **options,
    )
    if build:
        engine.build_for([(2,)] * 3)
    return engine


def theirs(optimizer: str | None = "Adagrad", *, build: bool = True) -> Any:
    """Returns a TPUEmbedding of stock's, whose tables are ordinary variables on this machine."""
    made = stock.TPUEmbedding(
        feature_config(), None if optimizer is None else getattr(stock, optimizer)(0.1)
    )
    if build:
        made.build()
    return made


def numbers(table: str, kind: str) -> Any:
    """Returns values of which no two rows, tables or slots share one."""
    first = 1000 * list(VOCABULARY).index(table) + 100 * len(kind)
    count = VOCABULARY[table] * DIM[table]
    return np.arange(first, first + count, dtype=np.float32).reshape(-1, DIM[table])


def fill(engine: Any) -> Values:
    """Gives an engine of ours values that tell every element from every other; returns them."""
    filled: dict[str, dict[str, Any]] = {}
    for name, table in engine.tables.items():
        filled[name] = {}
        for kind, shards in table.variables.items():
            filled[name][kind] = values = numbers(name, kind)
            rows = max(len(values), len(shards))  # one for each host
            padded = np.concatenate([values, np.full([rows - len(values), DIM[name]], -7)])
            for number, shard in enumerate(shards):
                shard.assign(padded[rows_of_shard(rows, len(shards), number, table.strategy)])
    return filled


def fill_theirs(engine: Any) -> Values:
    """The same for an engine of stock's."""
    for name, kinds in engine._variables.items():
        for kind, variable in kinds.items():
            variable.assign(numbers(name, kind))
    return read_theirs(engine)


def read(engine: Any) -> Values:
    """Returns what the variables of an engine of ours hold, without the rows of the padding."""
    held: dict[str, dict[str, Any]] = {}
    for name, table in engine.tables.items():
        held[name] = {}
        for kind, shards in table.variables.items():
            rows = sum(shard.shape[0] for shard in shards)
            whole = np.empty([rows, DIM[name]], np.float32)
            for number, shard in enumerate(shards):
                whole[rows_of_shard(rows, len(shards), number, table.strategy)] = shard.numpy()
            held[name][kind] = whole[: VOCABULARY[name]]
    return held


def read_theirs(engine: Any) -> Values:
    """Returns what the variables of an engine of stock's hold."""
    return {
        name: {kind: variable.numpy() for kind, variable in kinds.items()}
        for name, kinds in engine._variables.items()
    }


def read_file(path: str) -> Values:
    """Returns what a checkpoint holds for the object `embedding`."""
    held: dict[str, dict[str, Any]] = {}
    for name in VOCABULARY:
        root = f"embedding/{name.replace('.', '..').replace('/', '.S')}"
        held[name] = {}
        for key, _ in tf.train.list_variables(path):
            child, _, attribute = key.partition("/.ATTRIBUTES/")
            if attribute == "VARIABLE_VALUE" and (child == root or child.startswith(f"{root}.S")):
                kind = child.removeprefix(root).removeprefix(".S") or "parameters"
                held[name][kind] = tf.train.load_variable(path, key)
    return held


def assert_same(wanted: Values, found: Values, where: str = "") -> None:
    """Checks that two sets of values are the same to the bit."""
    assert {name: set(kinds) for name, kinds in wanted.items()} == {
        name: set(kinds) for name, kinds in found.items()
    }, where
    for name, kinds in wanted.items():
        for kind, values in kinds.items():
            np.testing.assert_array_equal(
                values, found[name][kind], err_msg=f"{where}: table {name}, {kind}"
            )


def save(engine: Any, directory: pathlib.Path, **more: Any) -> str:
    """Writes a checkpoint of the object `embedding`; returns its path."""
    return str(tf.train.Checkpoint(embedding=engine, **more).save(str(directory / "ckpt")))


def restore(engine: Any, path: str) -> Any:
    """Restores the object `embedding`; returns the status."""
    return tf.train.Checkpoint(embedding=engine).restore(path)


class Recorder(HostDriver):
    """A driver that writes down when tables are loaded and retrieved."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, float]] = []

    def load(self, tables: Any) -> Any:
        self._note("load", tables)
        return super().load(tables)

    def retrieve(self, tables: Any) -> Any:
        self._note("retrieve", tables)
        return super().retrieve(tables)

    def _note(self, call: str, tables: Any) -> None:
        value = tables["items"].variables["parameters"][0]
        self.calls.append((call, float(value.numpy()[0, 0])))


# --- What is in a file ----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer, placement", EACH)
def test_keys_and_shapes_are_those_of_stock(
    optimizer: str, placement: Placement, tmp_path: pathlib.Path
) -> None:
    """A checkpoint has stock's keys, each one tensor [vocabulary, dim] with its rows by id."""
    engine = ours(optimizer, placement)
    filled = fill(engine)

    path = save(engine, tmp_path)

    wanted = tf.train.list_variables(save(theirs(optimizer), tmp_path / "stock"))
    assert tf.train.list_variables(path) == wanted
    assert_same(filled, read_file(path), f"{optimizer}, {placement}")


def test_keys_are_written_out(tmp_path: pathlib.Path) -> None:
    """In keys a slash of a table's name is ".S" and a dot is two; slots follow after a slash."""
    saved = dict(tf.train.list_variables(save(ours("Adam"), tmp_path)))

    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert {key: shape for key, shape in saved.items() if key.startswith("embedding")} == {
        f"embedding/us.Sers..x{end}": [10, 4],
        f"embedding/us.Sers..x.Smomenta{end}": [10, 4],
        f"embedding/us.Sers..x.Svelocities{end}": [10, 4],
        f"embedding/items{end}": [3, 2],
        f"embedding/items.Smomenta{end}": [3, 2],
        f"embedding/items.Svelocities{end}": [3, 2],
    }


def test_the_engine_may_be_anywhere_in_a_model(tmp_path: pathlib.Path) -> None:
    """As an attribute of a module the engine is saved under the module's path."""
    model = tf.Module()
    model.tower = tf.Module()
    model.tower.tables = ours("SGD")
    wanted = fill(model.tower.tables)["items"]["parameters"]

    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))

    found = tf.train.load_variable(path, "model/tower/tables/items/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(wanted, found)


def test_an_engine_that_is_not_built_holds_nothing(tmp_path: pathlib.Path) -> None:
    """An engine that is not built is saved and restored without its driver hearing of it."""
    driver = Recorder()

    path = save(ours(build=False, driver=driver), tmp_path)
    restore(ours(build=False, driver=driver), path).assert_consumed()

    assert driver.calls == []
    assert read_file(path) == {name: {} for name in VOCABULARY}


# --- Stock ----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer, placement", EACH)
def test_stock_reads_ours(optimizer: str, placement: Placement, tmp_path: pathlib.Path) -> None:
    """Stock finds all it looks for in a checkpoint of ours, before it is built and after."""
    engine = ours(optimizer, placement)
    filled = fill(engine)
    path = save(engine, tmp_path)

    after = theirs(optimizer)
    restore(after, path).assert_consumed()
    before = theirs(optimizer, build=False)
    status = restore(before, path)
    before.build()
    status.assert_consumed()

    assert_same(filled, read_theirs(after), "built before")
    assert_same(filled, read_theirs(before), "built after")


@pytest.mark.parametrize("optimizer, placement", EACH)
def test_we_read_stocks(optimizer: str, placement: Placement, tmp_path: pathlib.Path) -> None:
    """A checkpoint of stock's is all used by an engine of ours, before it is built and after."""
    engine = theirs(optimizer)
    filled = fill_theirs(engine)
    path = save(engine, tmp_path)

    after = ours(optimizer, placement)
    restore(after, path).assert_consumed()
    before = ours(optimizer, placement, build=False)
    status = restore(before, path)
    before.build_for([(2,)] * 3)
    status.assert_consumed()

    assert_same(filled, read(after), "built before")
    assert_same(filled, read(before), "built after")


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_stocks_serving_class_reads_ours(placement: Placement, tmp_path: pathlib.Path) -> None:
    """`TPUEmbeddingForServing` takes the parameters, without slots, from a checkpoint of ours."""
    engine = ours("Adam", placement)
    filled = fill(engine)
    path = save(engine, tmp_path)

    serving = stock.TPUEmbeddingForServing(feature_config(), None)
    restore(serving, path).expect_partial()

    for table, variable in serving.embedding_tables.items():
        np.testing.assert_array_equal(filled[table.name]["parameters"], variable)


@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_stock_loads_its_tpu_after_it_restored_ours(
    built: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore of ours makes stock run its hook, which on a TPU copies the rows to the device."""
    path = save(ours(), tmp_path)
    engine = theirs(build=built)
    calls: list[Any] = []
    monkeypatch.setattr(stock.TPUEmbedding, "_load_variables", lambda self: calls.append(self))

    restore(engine, path)

    assert calls == [engine]


def sharded(values: Any, count: int, name: str) -> Any:
    """Returns what stock's TPUEmbedding keeps a table in on several hosts, filled."""
    parts = [part for part in np.array_split(values, count) if len(part)]
    variables = [tf.Variable(part, name=f"{name}_{at}") for at, part in enumerate(parts)]
    return tf.__internal__.distribute.ShardedVariable(variables, name=name)


def tree(children: Mapping[str, Any]) -> Any:
    """Returns a trackable with children of the given names, as stock's TPUEmbedding is one."""
    node = tf.Module()
    for name, child in children.items():
        node._track_trackable(child, name)
    return node


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("hosts", [2, 4])
def test_slices_of_stocks_hosts_are_read_and_written(
    hosts: int, placement: Placement, tmp_path: pathlib.Path
) -> None:
    """Variables sharded as stock's on several hosts restore from ours, and we restore from them."""
    names = {
        (table, kind): table if kind == "parameters" else f"{table}/{kind}"
        for table in VOCABULARY
        for kind in ("parameters", "accumulators")
    }
    full = {name: sharded(numbers(*key), hosts, name) for key, name in names.items()}
    empty = {name: sharded(0 * numbers(*key), hosts, name) for key, name in names.items()}

    engine = ours("Adagrad", placement)
    restore(engine, save(tree(full), tmp_path / "stock")).assert_existing_objects_matched()
    filled = fill(ours("Adagrad"))
    assert_same(filled, read(engine), str(placement))
    restore(tree(empty), save(engine, tmp_path / "ours")).assert_existing_objects_matched()
    for (table, kind), name in names.items():
        np.testing.assert_array_equal(filled[table][kind], empty[name].numpy(), err_msg=name)


READER = """
import sys
import numpy as np, tensorflow as tf
stock = tf.tpu.experimental.embedding
users, items = stock.TableConfig(10, 4, name="us/ers.x"), stock.TableConfig(3, 2, name="items")
config = [stock.FeatureConfig(users), stock.FeatureConfig(items)]
for build_first in (True, False):
    engine = stock.TPUEmbedding(config, stock.Adagrad(0.1))
    if build_first:
        engine.build()
    status = tf.train.Checkpoint(embedding=engine).restore(sys.argv[1])
    engine.build()
    status.assert_existing_objects_matched()
    for table in (users, items):
        held = np.load(f"{sys.argv[2]}/{table.name[:5].replace('/', '_')}.npy")
        assert np.array_equal(held, engine.embedding_tables[table].numpy())
assert not [name for name in sys.modules if name.startswith("tf2_engine")]
print("READ")
"""


def test_a_process_without_us_reads_ours(tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone restores a checkpoint of ours into stock's engine."""
    engine = ours("Adagrad", Placement(2, "div"))
    filled = fill(engine)
    for name, kinds in filled.items():
        np.save(tmp_path / f"{name[:5].replace('/', '_')}.npy", kinds["parameters"])

    done = subprocess.run(
        [sys.executable, "-c", READER, save(engine, tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "READ" in done.stdout, done.stderr[-2000:]


# --- Other hosts ----------------------------------------------------------------------------


@pytest.mark.parametrize("writer", PLACEMENTS, ids=str)
def test_neither_hosts_nor_strategy_are_in_a_checkpoint(
    writer: Placement, tmp_path: pathlib.Path
) -> None:
    """What any placement wrote is restored into every other, and rows keep their ids."""
    engine = ours("Adagrad", writer)
    filled = fill(engine)
    path = save(engine, tmp_path)

    for reader in PLACEMENTS:
        other = ours("Adagrad", reader)
        restore(other, path).assert_consumed()
        assert_same(filled, read(other), f"{writer} to {reader}")


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_rows_beyond_the_vocabulary_are_left_alone(strategy: str, tmp_path: pathlib.Path) -> None:
    """With more hosts than rows a restore leaves the rows of the padding as they were."""
    path = save(ours("SGD"), tmp_path)
    engine = ours("SGD", Placement(5, strategy))
    fill(engine)

    restore(engine, path).assert_consumed()

    padding = engine.tables["items"].variables["parameters"][3:]
    assert [shard.numpy().tolist() for shard in padding] == [[[-7.0, -7.0]]] * 2


# --- Slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_without_an_optimizer_there_are_no_slots(
    placement: Placement, tmp_path: pathlib.Path
) -> None:
    """An engine that only looks up reads the parameters of any checkpoint, and writes no slots."""
    trained = ours("Adam")
    filled = {name: {"parameters": kinds["parameters"]} for name, kinds in fill(trained).items()}
    engine = ours(None, placement)

    restore(engine, save(trained, tmp_path / "trained")).assert_existing_objects_matched()
    path = save(engine, tmp_path / "serving")

    assert_same(filled, read(engine), str(placement))
    assert_same(filled, read_file(path), str(placement))
    restore(theirs(None), path).assert_consumed()


def test_slots_that_a_checkpoint_lacks_keep_their_start(tmp_path: pathlib.Path) -> None:
    """An engine that trains restores the parameters of a serving checkpoint; slots start anew."""
    serving = ours(None)
    fill(serving)
    engine = ours("Adagrad")

    restore(engine, save(serving, tmp_path)).expect_partial()

    for name, kinds in read(engine).items():
        np.testing.assert_array_equal(numbers(name, "parameters"), kinds["parameters"])
        np.testing.assert_array_equal(np.full_like(kinds["parameters"], 0.1), kinds["accumulators"])


# --- Training goes on -------------------------------------------------------------------------


def features(step: int, cores: int = 1) -> Any:
    """Returns a batch of two samples per core, as a tf.Tensor for each of three features."""
    per_core = []
    for core in range(cores):
        ids = np.random.default_rng([step, core]).integers(0, 3, [3, 2])
        user, item, other = map(tf.constant, ids)
        per_core.append({"user": user + 5, "nested": {"item": item, "others": [other + 6]}})
    return per_core if cores > 1 else per_core[0]


def train(engine: Any, steps: range, cores: int = 1) -> None:
    """Runs some steps, whose gradients follow from the activations."""
    for step in steps:
        engine.enqueue(features(step, cores))
        activations = engine.dequeue()
        engine.apply_gradients(
            tf.nest.map_structure(lambda activation: tf.sin(activation) + 0.1, activations)
        )


@pytest.mark.parametrize("pipelined", [False, True], ids=["", "pipelined"])
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=() if name == "Adagrad" else pytest.mark.full)
        for name in OPTIMIZERS
    ],
)
def test_training_goes_on_where_it_was(
    optimizer: str, pipelined: bool, tmp_path: pathlib.Path
) -> None:
    """Steps after a restore lead where they lead without one, to the bit, on other hosts too."""
    cores = 2
    first = ours(optimizer, Placement(2, "div"), pipelined=pipelined)
    train(first, range(3), cores)
    path = save(first, tmp_path)
    train(first, range(3, 6), cores)
    first.retrieve()

    for placement in (Placement(2, "mod"), Placement(1, "div")):
        second = ours(optimizer, placement, pipelined=pipelined, cores=cores)
        restore(second, path).assert_consumed()
        train(second, range(3, 6), cores)
        second.retrieve()

        assert_same(read(first), read(second), f"{optimizer}, {placement}")


def save_later(engine: Any, directory: pathlib.Path) -> str:
    """Writes asynchronous checkpoints, with steps between them; returns the last."""
    checkpoint = tf.train.Checkpoint(embedding=engine)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for _ in range(2):  # the first save makes the copies, the second brings them up to date
        path = checkpoint.save(str(directory / "ckpt"), options)
        train(engine, range(7, 8))
    path = checkpoint.save(str(directory / "ckpt"), options)
    checkpoint.sync()
    return str(path)


def export(engine: Any, directory: pathlib.Path) -> str:
    """Writes a SavedModel; returns the path of its variables."""
    model = tf.Module()
    model.embedding = engine
    tf.saved_model.save(model, str(directory))
    return str(directory / "variables" / "variables")


@pytest.mark.parametrize("placement", [ONE, Placement(1, "mod")], ids=str)
@pytest.mark.parametrize("write", [save, save_later, export])
def test_a_checkpoint_holds_the_update_that_is_pending(
    write: Callable[..., str], placement: Placement, tmp_path: pathlib.Path
) -> None:
    """With pipelining the last update is pending; every way of saving applies it first."""
    engine = ours("Adagrad", placement, pipelined=True)
    train(engine, range(3))
    before = read(engine)

    found = read_file(write(engine, tmp_path))

    engine.retrieve()
    wanted = read(engine)
    for name, kinds in found.items():
        assert not np.array_equal(before[name]["parameters"], wanted[name]["parameters"])
        assert set(kinds) >= {"parameters"}
        for kind, values in kinds.items():
            np.testing.assert_array_equal(wanted[name][kind], values, err_msg=f"{name}, {kind}")


class Watched(HostDriver):
    """A driver that writes down which threads retrieve from it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[Any] = set()

    def retrieve(self, tables: Any) -> Any:
        self.threads.add(threading.current_thread())
        return super().retrieve(tables)


@pytest.mark.parametrize("placement", [Placement(2, "div"), Placement(2, "mod")], ids=str)
def test_steps_after_an_asynchronous_save_are_not_in_it(
    placement: Placement, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous checkpoint holds what was there when it was asked for, however slow it is.

    What writes it leaves the engine alone.
    """
    read_now, main = TableTensor._read, threading.current_thread()

    def read_slowly(tensor: Any, shard: Any) -> Any:
        if threading.current_thread() is not main:
            time.sleep(0.03)
        return read_now(tensor, shard)

    monkeypatch.setattr(TableTensor, "_read", read_slowly)
    driver = Watched()
    engine = ours("Adagrad", placement, driver=driver)
    checkpoint = tf.train.Checkpoint(embedding=engine)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for step in range(3):
        wanted = read(engine)
        path = checkpoint.save(str(tmp_path / "ckpt"), options)
        train(engine, range(step, step + 1), 2)
        checkpoint.sync()

        assert_same(wanted, read_file(path), f"step {step}")
    assert driver.threads == {main}


def test_a_restore_drops_the_update_that_is_pending(tmp_path: pathlib.Path) -> None:
    """The update of a step before the restore is not applied to what was restored."""
    fresh = ours("Adagrad", pipelined=True)
    path = save(fresh, tmp_path)
    wanted = read(fresh)
    engine = ours("Adagrad", pipelined=True)
    train(engine, range(2))

    restore(engine, path).assert_consumed()
    engine.retrieve()
    assert_same(wanted, read(engine), "restored")

    for each in (engine, fresh):
        train(each, range(4, 6))
        each.retrieve()
    assert_same(read(fresh), read(engine), "trained on")


def test_the_driver_hears_of_saves_and_restores(tmp_path: pathlib.Path) -> None:
    """The tables are retrieved once before they are written, and loaded once all are restored."""
    driver = Recorder()
    engine = ours("Adagrad", driver=driver)
    fill(engine)
    driver.calls.clear()
    value = float(numbers("items", "parameters")[0, 0])

    path = save(engine, tmp_path)
    assert driver.calls == [("retrieve", value)]

    for shard in engine.tables["items"].variables["parameters"]:
        shard.assign(tf.zeros_like(shard))
    driver.calls.clear()
    restore(engine, path)
    assert driver.calls == [("load", value)]


def test_a_restore_before_the_build_comes_before_the_load(tmp_path: pathlib.Path) -> None:
    """When an engine is built after a restore, the driver loads what was restored, once."""
    saved = ours("Adagrad")
    fill(saved)
    driver = Recorder()
    engine = ours("Adagrad", driver=driver, build=False)
    restore(engine, save(saved, tmp_path))
    assert driver.calls == []

    engine.build_for([(2,)] * 3)

    assert driver.calls == [("load", float(numbers("items", "parameters")[0, 0]))]


def test_the_first_batch_of_a_function_meets_what_was_restored(tmp_path: pathlib.Path) -> None:
    """An engine that is built while a tf.function is traced is restored then."""
    saved = ours("SGD", Placement(2, "mod"))
    fill(saved)
    engine = ours("SGD", build=False)
    status = restore(engine, save(saved, tmp_path))

    @tf.function
    def look_up(batch: Any) -> Any:
        engine.enqueue(batch, training=False)
        return engine.dequeue()

    found = look_up(features(0))["nested"]["item"]

    ids = features(0)["nested"]["item"].numpy()
    np.testing.assert_array_equal(numbers("items", "parameters")[ids], found)
    status.assert_consumed()


# --- tf.Graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [ONE, Placement(1, "mod")], ids=str)
def test_a_graph_saves_and_restores(placement: Placement, tmp_path: pathlib.Path) -> None:
    """In a tf.Graph a save applies the pending update first, and a restore drops it."""
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default() as session:
        engine = ours("Adagrad", placement, pipelined=True)
        engine.enqueue(features(0))
        activations = engine.dequeue()
        step = engine.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
        variables = {
            name: {kind: shards[0] for kind, shards in table.variables.items()}
            for name, table in engine.tables.items()
        }
        bring = engine.retrieve()
        checkpoint = tf.compat.v1.train.Checkpoint(embedding=engine)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([step, activations])
        before = session.run(variables)

        path = checkpoint.save(str(tmp_path / "ckpt"), session=session)
        after = session.run(variables)
        session.run([step, activations])
        checkpoint.restore(path).assert_consumed().run_restore_ops(session)
        session.run(bring)
        restored = session.run(variables)

    assert not np.array_equal(before["items"]["parameters"], after["items"]["parameters"])
    assert_same(after, read_file(path), "saved")
    assert_same(after, restored, "restored")


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_a_table_of_another_size_is_refused_by_name(strategy: str, tmp_path: pathlib.Path) -> None:
    """A checkpoint of a table with more rows is refused, with the table's name and both shapes."""
    of = [stock.FeatureConfig(stock.TableConfig(12, 4, name="us/ers.x"))]
    larger = tf2_engine.TPUEmbedding(of, tf2_engine.SGD(0.1))
    larger.build_for([(2,)])
    path = save(larger, tmp_path)

    with pytest.raises(errors.InvalidInput, match=r"'us/ers.x'.*\[12, 4\].*\[10, 4\]"):
        restore(ours("SGD", Placement(1, strategy)), path)


def test_a_table_of_another_size_is_refused_on_several_hosts(tmp_path: pathlib.Path) -> None:
    """On several hosts TensorFlow refuses the slices of a table of another size, by key."""
    of = [stock.FeatureConfig(stock.TableConfig(12, 4, name="us/ers.x"))]
    larger = tf2_engine.TPUEmbedding(of, tf2_engine.SGD(0.1))
    larger.build_for([(2,)])
    path = save(larger, tmp_path)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"us.Sers..x"):
        restore(ours("SGD", Placement(2, "div")), path)
    with pytest.raises(errors.InvalidInput, match=r"'us/ers.x'.*\[12, 4\].*\[10, 4\]"):
        restore(ours("SGD", Placement(2, "mod")), path)


# --- SavedModel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", [ONE, Placement(3, "mod")], ids=str)
def test_an_export_loads_with_its_tables(placement: Placement, tmp_path: pathlib.Path) -> None:
    """A SavedModel of an engine holds the parameters once, and its functions find them."""
    engine = ours("Adam", placement)
    filled = fill(engine)
    model = tf.Module()
    model.embedding = engine
    of = engine._spec

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def items(ids: Any) -> Any:
        found = cpu_embedding_lookup({"nested": {"item": ids}}, None, engine.embedding_tables, of)
        return found["nested"]["item"]

    model.items = items
    tf.saved_model.save(model, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(
        filled["items"]["parameters"], loaded.items(tf.range(3, dtype=tf.int64))
    )
    shapes = [shape for _, shape in tf.train.list_variables(str(tmp_path / "variables/variables"))]
    assert (
        sum(int(np.prod(shape)) for shape in shapes if shape)
        == 10 * 4 + max(3, placement.hosts) * 2
    )


def test_the_variables_of_an_export_are_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """An engine on one host, and one of stock's, restore from the variables of a SavedModel."""
    engine = ours("SGD")
    filled = fill(engine)
    path = export(engine, tmp_path)

    for other, found in ((ours("SGD"), read), (theirs("SGD"), read_theirs)):
        restore(other, path).expect_partial()
        assert_same(filled, found(other))

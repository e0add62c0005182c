"""The examples in the docs are executed: Python blocks, and the arguments of commands."""

from __future__ import annotations

import ast
import contextlib
import pathlib
import pickle
import re
import shlex
import shutil
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests import known_differences
from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks, jobs, tiny
from compat_tests.support import commands, fresh, setting_tables
from compat_tests.support.paths import ROOT
from estimator_bridge import estimator
from estimator_bridge.cli import main as cli
from estimator_bridge.legacy import parameters
from estimator_bridge.recording.replay import ReplayStep, State
from estimator_bridge.run import software_tpu
from estimator_bridge.settings.catalogue import ROWS

DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
OF_ESTIMATORS = {
    **{name: (ROWS[name].why, tests) for name, tests in known_differences.OF_SETTINGS.items()},
    **{row.case: (row.why, row.tests) for row in known_differences.REMAINING},
}
"""The reason and the tests of each known difference."""

FEW = (
    *("--train_steps=6", "--save_checkpoints_steps=6", "--iterations_per_loop=3"),
    *("--train_batch_size=32", "--eval_batch_size=60", "--predict_batch_size=4"),
    "--undefok=iterations_per_loop",  # The Keras form has no loops, and so not the flag.
)
"""Further arguments of the programs, for a short training."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns (language, text) of the code blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def programs(page: str) -> list[str]:
    """Returns the blocks of Python of a page."""
    return [text for language, text in blocks(page) if language == "python"]


def execute(page: str, number: int, names: dict[str, Any]) -> None:
    """Executes one of the blocks of Python of a page; `names` is where its names come from."""
    exec(compile(programs(page)[number], f"{page}, block {number}", "exec"), names)


def python(*arguments: str, cwd: pathlib.Path) -> str:
    """Runs Python in a folder; returns what it prints."""
    return fresh.python(*arguments, cwd=cwd, check=True).stdout


def write_data(folder: pathlib.Path) -> None:
    """Writes a small MovieLens: 30 users, 40 films, 600 ratings."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    users = [f"{i}\t{20 + i}\tF\tartist\t0" for i in range(30)]
    items = [f"{i}\tfilm {i}\t1990\tDrama War" for i in range(40)]
    chosen = rng.permutation(30 * 40)[:600]
    ratings = [f"{n // 40}\t{n % 40}\t{rng.integers(1, 6)}\t{t}" for t, n in enumerate(chosen)]
    for kind, head, rows in (
        ("user", "user_id:token age:token gender:token occupation:token zip_code:token", users),
        ("item", "item_id:token movie_title:token_seq release_year:token class:token_seq", items),
        ("inter", "user_id:token item_id:token rating:float timestamp:float", ratings),
    ):
        lines = [head.replace(" ", "\t"), *rows]
        (folder / f"ml-100k.{kind}").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("page", PAGES)
def test_anchors_are_selectors(page: str) -> None:
    """No heading begins with a digit: the scripts of the site fail for such an anchor."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert not [each for each in headings if re.sub(r"\W", "", each)[:1].isdigit()]


@pytest.mark.parametrize("path", setting_tables.PAGES, ids=lambda p: p.name)
def test_tables_of_settings_are_those_of_the_catalogue(path: pathlib.Path) -> None:
    """The tables of the pages are the rows of the catalogue, word for word."""
    text = path.read_text(encoding="utf-8")

    wanted = setting_tables.with_tables(path.name, text)
    assert text == wanted, "python -m compat_tests.support.setting_tables writes them"


def test_the_page_on_pytorch_is_python() -> None:
    """The reference implementations are Python; `make torch-tests` runs them beside references."""
    (code,) = programs("docs/torch.md")
    names = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    assert {"adam", "ftrl", "proximal_yogi", "frequency_estimator"} <= names


def test_the_page_on_recordings_runs() -> None:
    """The loop of the page loads the state of a step, and records what its model computed."""
    names: dict[str, Any] = {}
    execute("docs/recording.md", 0, names)
    step = mock.create_autospec(ReplayStep, instance=True)
    step.state, step.arrays = State({"users": {}}, {"kernel": np.zeros(1)}), {"labels": np.ones(2)}
    replay = mock.MagicMock()
    replay.return_value.__enter__.return_value = [step]
    names["Replay"] = replay
    model = mock.MagicMock()
    names["replay"]("recorded", "port", model)

    assert replay.call_args.args == ("recorded", "port")
    model.load.assert_called_once_with(step.state.tables, step.state.dense)
    model.train.assert_called_once_with(step.bag.return_value, step.arrays["labels"])
    assert step.record.call_args.kwargs["loss"] is model.loss
    assert set(step.record.call_args.kwargs["tables"]) == {"users"}


@pytest.mark.parametrize(
    "page, numbers, holds",
    [
        ("README.md", [-1], lambda names: names["activations"]["query"].shape == (2, 8)),
        # A table of 5 GB needs two machines of 4 GB.
        ("docs/plan.md", [0], lambda names: names["plan"].servers_for_memory == 2),
        ("docs/sparsecore.md", [0, 1], bool),
        ("docs/what_stock_did.md", [0], bool),
    ],
)
def test_blocks_of_a_page_run(page: str, numbers: list[int], holds: Any) -> None:
    names: dict[str, Any] = {}
    for number in numbers:
        execute(page, number, names)
    assert holds(names)


@pytest.mark.full
@pytest.mark.parametrize(
    "imports", [pytest.param(0, marks=pytest.mark.stock, id="before"), pytest.param(1, id="after")]
)
def test_the_program_that_imports_the_bridge_runs(
    imports: int, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The program of docs/install.md trains with either import: stock's on a software TPU."""
    monkeypatch.chdir(tmp_path)
    column = tf.feature_column.categorical_column_with_identity

    def input_fn(params: Any) -> Any:
        ids = tf.sparse.from_dense(tf.ones([params["batch_size"], 2], tf.int64))
        batch = {"item": ids, "history": ids}, tf.ones([params["batch_size"], 1])
        return tf.data.Dataset.from_tensors(batch).repeat()

    names: dict[str, Any] = {
        **{"item": column("item", 10), "history": column("history", 10), "input_fn": input_fn}
    }
    execute("docs/install.md", imports, names)
    program = programs("docs/install.md")[2]
    on_tpu = software_tpu.stock_on_software_tpu() if imports == 0 else contextlib.nullcontext()
    with on_tpu:
        exec(program.replace("steps=10000", "steps=2"), names)

    assert names["estimator"].latest_checkpoint().endswith("model/model.ckpt-2")


@pytest.mark.full
@pytest.mark.parametrize("block", range(1 + hasattr(tf.raw_ops, "TPUCopyWithDynamicShape")))
def test_the_page_on_the_software_tpu_runs(block: int) -> None:
    """The program for stock's class trains on two cores; on 2.21 so does that for SparseCores."""
    names: dict[str, Any] = {}
    execute("docs/software_tpu.md", block, names)

    assert names["strategy"].num_replicas_in_sync == 2


@pytest.mark.full
def test_the_page_on_the_keras_layer_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The Keras models of the page are built, trained and exported."""

    def parse(examples: Any) -> dict[str, Any]:
        user = tf.strings.to_number(examples, tf.int64)
        return {"watched": tf.RaggedTensor.from_tensor(user[:, tf.newaxis]), "user": user}

    def dataset_of_context(context: Any) -> Any:
        assert context.num_input_pipelines == 1
        ids = {"watched": tf.ragged.constant([[3, 5], [7]], tf.int64), "user": tf.constant([1, 2])}
        return tf.data.Dataset.from_tensors((ids, tf.zeros([2, 1]))).repeat()

    names: dict[str, Any] = {
        **{"tf": tf, "strategy": tf.distribute.get_strategy()},
        **{"parse": parse, "folder": str(tmp_path)},
        **{"dataset_of_context": dataset_of_context, "STEPS": 2},
    }
    execute("docs/keras.md", 0, names)
    names["model"].compile(names["optimizer"], "mse")
    before = names["model"](next(iter(dataset_of_context(tf.distribute.InputContext())))[0])
    execute("docs/keras.md", 1, names)
    after = names["model"](next(iter(dataset_of_context(tf.distribute.InputContext())))[0])
    assert not np.array_equal(before, after)

    execute("docs/keras.md", 4, names)
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert served(examples=tf.constant(["3", "4"]))["scores"].shape == (2, 1)

    words = names["EMB"].TableConfig(vocabulary_size=1000, dim=4, name="words")
    names["feature_config"] = {key: names["EMB"].FeatureConfig(words) for key in ("city", "tags")}
    execute("docs/keras.md", 2, names)
    assert {key: value.shape[-1] for key, value in names["activations"].items()} == {
        "city": 4,
        "tags": 4,
    }
    names["dataset"] = dataset_of_context(tf.distribute.InputContext())
    names["feature_config"] = names["EMB"].FeatureConfig(words)
    names["dataset"] = names["dataset"].map(lambda ids, labels: (ids["watched"], labels))
    execute("docs/keras.md", 3, names)
    packed, _ = next(iter(names["dataset"]))
    assert isinstance(packed, tf2_engine.PackedBatch)
    monkeypatch.chdir(tmp_path)
    execute("docs/keras.md", 5, names)
    assert names["ratings"].global_step == 20


@pytest.mark.full
def test_the_page_on_verify_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The page's class is declared, its model is compared, and its report is written."""
    monkeypatch.chdir(tmp_path)
    columns = clicks.columns()
    namespace = tf.compat.v1.estimator if HAS_STOCK else estimator
    names: dict[str, Any] = {
        "model_fn": clicks.make_model_fn(namespace, columns, cross_shard=True),
        "input_fn": clicks.input_fn,
        "spec": namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns, optimization_parameters=tiny.sgd(0.1)
        ),
    }
    few = f"batch_size={jobs.BATCH}, steps=2"
    sides = "" if HAS_STOCK else ', a="bridge-native", b="bridge-ops"'
    mine, block = programs("docs/verify.md")
    exec(mine, {})
    exec(block.replace("batch_size=1024", few + sides), names)

    assert (tmp_path / "report.html").is_file()


@pytest.mark.full
def test_the_page_on_checkpoints_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The page's resumable inputs, its conversion and the code that restores it run."""
    monkeypatch.chdir(tmp_path)
    columns = [tiny.column()]
    spec = estimator.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns, optimization_parameters=parameters.AdagradParameters(0.1)
    )
    names: dict[str, Any] = {"tf": tf, "SPEC": spec, "N": 2, "NUM_STEPS": 2}
    names["batch_of_step"] = lambda step: tiny.features_of(step)["x"]
    execute("docs/checkpoints.md", 1, names)
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        assert names["input_fn"]({}).element_spec.shape == [tiny.BATCH, 1]

    names["input_fn"] = tiny.input_fn
    names["job"] = tiny.make(
        estimator, "model_dir", columns, dense_over(columns), use_tpu=True, spec=spec
    )
    execute("docs/checkpoints.md", 2, names)
    assert list((tmp_path / "model_dir").glob("input.ckpt-2*"))
    execute("docs/checkpoints.md", 3, names)
    names["convert"]("model_dir", "converted", spec=spec)

    names["engine"] = tf2_engine.TPUEmbedding(spec.to_tf2().engine_spec)
    names["engine"].build_for([(tiny.BATCH,)])
    names["kernel"], names["bias"] = tf.Variable(tf.zeros([3, 1])), tf.Variable([2.0])
    execute("docs/checkpoints.md", 0, names)
    wanted = names["job"].get_variable_value("dense/kernel")
    np.testing.assert_array_equal(wanted, names["kernel"])
    assert float(names["bias"][0]) != 2.0


def dense_over(columns: Any) -> tiny.Body:
    """Returns a body that is a dense layer, whose variables are those that the page names."""

    def body(features: Any) -> Any:
        net = tf.compat.v1.keras.layers.DenseFeatures(columns)(features)
        return tf.compat.v1.layers.dense(tf.concat([net, features["x"]], 1), 1)

    return body


@pytest.mark.full
def test_the_guide_to_migration_runs(tmp_path: pathlib.Path) -> None:
    """Each command and each block of Python is executed, in order; its own asserts hold."""
    shutil.copy(ROOT / "examples" / "movielens" / "train.py", tmp_path)
    write_data(tmp_path / "data")
    parts: list[str] = []
    output = ""
    for language, text in [*blocks("docs/migrate.md"), ("bash", "")]:
        if language == "python":
            parts.append(text)
            continue
        # Later commands overwrite files that these blocks read.
        if parts:
            (tmp_path / "guide.py").write_text("".join(parts))
            output += python("guide.py", cwd=tmp_path)
            parts = []
        for line in text.replace("\\\n", " ").strip().splitlines():
            command, *arguments = shlex.split(line)
            if "--data_dir" in arguments:
                arguments += FEW
            module = ["-m", "estimator_bridge"] if command == "estimator-bridge" else []
            python(*module, *arguments, cwd=tmp_path)

    assert "after 20 more steps" in output


@pytest.mark.full
def test_the_keras_model_on_the_page_learns(tmp_path: pathlib.Path) -> None:
    """As an estimator the Keras model of the page learns the sum that its data has."""
    (tmp_path / "page.py").write_text(programs("docs/canned.md")[1])

    assert float(python("page.py", cwd=tmp_path).split()[-1]) < 1e-3


def test_the_page_on_canned_estimators_runs(tmp_path: pathlib.Path) -> None:
    """The program of the page on canned estimators trains and evaluates, in its own process."""
    (tmp_path / "page.py").write_text(programs("docs/canned.md")[0])
    ran = fresh.script("page.py", cwd=tmp_path, check=True)
    accuracy, area = ran.stdout.split()[-2:]

    assert 0 <= float(accuracy) <= 1
    assert 0 <= float(area) <= 1


@pytest.mark.full
def test_the_page_on_training_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The program of the page on training trains, evaluates and predicts; a callback ends it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for text in programs("docs/training.md"):
        exec(text, names)

    assert (tmp_path / "model_training" / "checkpoint").is_file()


@pytest.mark.full
@pytest.mark.parametrize("page", ["docs/serving.md", "docs/tensorboard.md"])
def test_a_page_runs_by_itself(page: str, tmp_path: pathlib.Path) -> None:
    """The blocks of a page run in their order, in a process of their own."""
    (tmp_path / "page.py").write_text("".join(programs(page)))
    python("page.py", cwd=tmp_path)


@pytest.mark.full
def test_the_page_on_clusters_runs(tmp_path: pathlib.Path) -> None:
    """Both programs under ParameterServerStrategy train, on tasks in their process."""
    out = tmp_path / "rows"
    program = "compat_tests.cluster.strategy_program"
    fresh.module(program, "page", out, DOCS / "clusters.md", check=True, cwd=ROOT)

    assert (tmp_path / "rows.model.index").is_file()
    rows = pickle.loads(out.read_bytes())
    assert all(np.isfinite(each).all() for each in rows.values())
    assert np.any(rows["big", "accumulators"] != rows["big", "accumulators"][0])


def quoted_messages() -> list[str]:
    """Returns the parts of messages in the first columns of the page on troubleshooting."""
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


def test_messages_that_are_explained_are_there() -> None:
    """Each part of a message on the page on troubleshooting is in the sources, or TensorFlow's."""
    messages = quoted_messages()
    assert len(messages) > 25
    words: list[str] = []
    for package in ("estimator_bridge", "tf2_engine"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            strings = (node.value for node in nodes if isinstance(node, ast.Constant))
            words += [text for text in strings if isinstance(text, str)]
    sources = "\n".join(words)
    for message in messages:
        of_tensorflow = message.startswith("module 'tensorflow'") or message == "g++"
        assert of_tensorflow or message in sources, message


def test_every_page_with_python_is_executed() -> None:
    """A test above names each page that has a block of Python."""
    with_code = [page for page in PAGES if "python" in dict(blocks(page))]
    source = pathlib.Path(__file__).read_text(encoding="utf-8")
    named = {name for line in source.splitlines() for name in re.findall(r'"([\w/]+\.md)"', line)}
    assert [page for page in with_code if not {page, page.removeprefix("docs/")} & named] == []


COMMAND = re.compile(r"(?:^ {4}|^\| [^|]*\| `)(estimator-bridge .*?)(?:`.*|\s+#.*)?$", re.MULTILINE)


def shown_commands() -> list[str]:
    """Returns the command lines of all pages, in code blocks and tables."""
    shown = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        shell = [block for language, block in blocks(page) if language == "bash"]
        shown += COMMAND.findall(text)
        shown += [line for block in shell for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in shown if line.startswith("estimator-bridge ")]


def test_commands_are_shown_with_arguments_that_they_take() -> None:
    """Each `estimator-bridge` line of a page is parsed; an option that is gone is an error."""
    shown = shown_commands()
    for line in shown:
        cli.parsers()[0].parse_args(shlex.split(line)[1:])

    assert {line.split()[1] for line in shown} == set(cli.parsers()[1])


def test_the_page_on_commands_has_every_argument() -> None:
    text = commands.PAGE.read_text(encoding="utf-8")

    assert set(commands.sections(text)) == set(commands.parsers())
    assert text == commands.with_tables(text), "python -m compat_tests.support.commands writes them"
    for name, parser in commands.parsers().items():
        section = commands.sections(text)[name]
        assert set(re.findall(r"^  (-[-\w]+)", parser.format_help(), re.MULTILINE)) <= {
            "-h",
            *re.findall(r"`(-[-\w]+)", section),
        }


def test_targets_of_make_that_are_shown_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE):
            assert target in targets, f"{page}: make {target}"


def test_every_difference_of_a_setting_has_tests() -> None:
    """The rows of the catalogue that say why the bridge differs are those with tests."""
    assert {name for name, row in ROWS.items() if row.why} == set(known_differences.OF_SETTINGS)


@pytest.mark.parametrize("case", OF_ESTIMATORS)
def test_known_differences_name_tests_that_are_there(case: str) -> None:
    """Each names tests of the bridge's side and, unless that cannot be told, of stock's."""
    why, tests = OF_ESTIMATORS[case]
    assert tests.bridge
    assert why
    assert tests.stock or any(
        reason in why for reason in ("no public document", "race", "TPU hardware")
    )
    for name in (*tests.bridge, *tests.stock):
        file, _, test = name.partition("::")
        text = (ROOT / "compat_tests" / file).read_text(encoding="utf-8")
        assert f"\ndef {test}(" in text, name

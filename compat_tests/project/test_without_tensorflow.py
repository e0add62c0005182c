"""Commands in an environment without TensorFlow, or without other packages."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib

import pytest
import tensorflow as tf

import estimator_bridge
import tf2_engine
from compat_tests.project.test_versions import JOB
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge import audit, convert
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, TPUEmbedding

LOOKING = ("libcst", "yaml", "numpy")
"""The packages that are enough for looking at a program; LibCST brings PyYAML along.

Without a target, the first two are enough."""

RECORDING = ("numpy", "ml_dtypes")
"""The packages that are enough for comparing two recordings."""

READING = ("numpy", "google", "google_crc32c")
"""The packages that are enough for reading checkpoints; `google` is Protocol Buffers."""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "train.py").write_text(JOB)
    (tmp_path / "space").mkdir()  # a package without __init__.py
    (tmp_path / "space" / "job.py").write_text(JOB)
    return tmp_path


def ran(folder: pathlib.Path, command: str, packages: tuple[str, ...]) -> tuple[int, str]:
    """Runs a command where Python sees these packages alone; returns its status and output."""
    site = folder / "packages"
    site.mkdir(exist_ok=True)
    for name in packages:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        (site / name).unlink(missing_ok=True)
        (site / name).symlink_to(next(iter(spec.submodule_search_locations)))
    paths = os.pathsep.join([str(ROOT), str(site)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths}
    done = fresh.python(
        "-S", "-m", "estimator_bridge", *command.split(), cwd=folder, env=environment
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("audit train.py", "migrate --form keras: yes"),
        ("audit --target v6e train.py", "On v6e"),
        ("migrate --list-rules", "keras-variable"),
        ("migrate --check train.py", "estimator_bridge"),
        ("migrate --form tf2 --check train.py", "Trainer"),
        ("migrate --form tf2 --check -m space.job", "Trainer"),
        ("migrate --form tf2 --target sparsecore --check train.py", "sparsecore"),
        ("migrate --form keras --diff train.py", "+from tf2_engine.keras"),
        ("migrate --diff train.py", "+from estimator_bridge"),
    ],
)
def test_programs_are_looked_at(folder: pathlib.Path, command: str, printed: str) -> None:
    """`audit` and all forms of `migrate` read programs where there is no TensorFlow."""
    packages = LOOKING if "--target" in command else LOOKING[:2]
    status, output = ran(folder, command, packages)

    assert status == 0, output
    assert printed in output


@pytest.mark.parametrize("command", ["audit", "migrate --check", "migrate --form keras --check"])
def test_an_installed_tensorflow_is_not_imported(folder: pathlib.Path, command: str) -> None:
    """A program that imports `tensorflow.compat.v1` is read in a second, not in five."""
    code = (
        "import sys; from estimator_bridge.cli import main; "
        "print(main.main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    )

    ran = fresh.python("-c", code, *command.split(), folder / "train.py", check=True)

    assert ran.stdout.splitlines()[-1] == "0 False"


def checkpoint(folder: pathlib.Path, form: str) -> str:
    """Saves a checkpoint of a form, with a table of 9 rows and its slot; returns its path."""
    path = str(folder / "ckpt")
    if form == "names":
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            parts = v1.fixed_size_partitioner(2)
            for name in (
                "word_embedding/embedding_weights",
                "word_embedding/embedding_weights/Adagrad",
            ):
                v1.get_variable(name, [9, 3], partitioner=parts)
            v1.get_variable("half", [2], tf.bfloat16)
            v1.get_variable("names", initializer=["a", "ü"])
            v1.train.get_or_create_global_step()
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, path, global_step=0, latest_filename="checkpoint")
        return str(folder)
    table = TableSpec("words", 9, 3, optimizer=tf2_engine.Adagrad())
    embedding = TPUEmbedding(EngineSpec((table,), (FeatureSpec("word", "words"),)))
    embedding.build(4)
    saved = tf.train.Checkpoint(embedding=embedding, epsilon=tf.Variable(0.5, dtype=tf.float64))
    path = saved.save(path)
    if form == "sparsecore":
        names = str(folder / "names")
        convert.convert(path, names, optimizer="Adagrad", global_step=1, allow=["*"])
        convert.convert(
            names,
            str(folder / "new"),
            optimizer="Adagrad",
            to="sparsecore",
            tables={"words": "words"},
        )
        return str(folder / "new")
    return path


@pytest.mark.parametrize("form", ["names", "object", "sparsecore"])
def test_checkpoints_are_inspected(folder: pathlib.Path, form: str) -> None:
    """`inspect` says the same without TensorFlow, and lists what TensorFlow's reader sees."""
    path = checkpoint(folder, form)

    audited, report = ran(folder, f"audit --json --model_dir {path}", READING)
    status, output = ran(folder, f"inspect --json {path}", READING)

    assert audited == 0, report
    assert json.loads(report) == json.loads(json.dumps([audit.audit_model_dir(path).as_dict()]))
    assert status == 0, output
    found = json.loads(output)
    assert found == json.loads(json.dumps(convert.inspect(path)))
    assert found["form"] == form
    (table,) = found["tables"]
    assert (table["rows"], table["dim"], table["optimizer"]) == (9, 3, "Adagrad")
    reader = tf.train.load_checkpoint(path)
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    parts = {part["name"] for part in table["tensors"].values()}
    assert {each["name"] for each in found["variables"]} <= dtypes.keys() - parts
    for each in found["variables"]:
        described = (dtypes[each["name"]].name, shapes[each["name"]])
        assert (each["dtype"], each["shape"]) == described


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("--version", estimator_bridge.__version__),
        ("--help", "verify"),
        ("run --help", "--tf1"),
        ("convert --help", "--from_hosts N"),
        ("inspect --help", "--json"),
        ("completion", "audit"),
        ("audit train.py", "needs libcst. Type: pip install 'estimator-bridge[migrate]'"),
        ("audit .", "2 source(s) use no private name"),
        ("audit -m space", "1 source(s) use no private name"),
        ("audit -m space", "job.py:27: optimization_parameters"),
        ("audit -m space", "audit needs libcst. Type: pip install"),
        ("audit -m space.job", "job.py:27: optimization_parameters"),
    ],
)
def test_nothing_is_needed(folder: pathlib.Path, command: str, printed: str) -> None:
    """Commands about the installation or the source answer where no package is installed at all."""
    status, output = ran(folder, command, ())

    assert status == 0, output
    assert printed in output


def test_doctor_says_how_to_install_what_is_missing(folder: pathlib.Path) -> None:
    status, output = ran(folder, "doctor", ())
    missing = [line.split(":")[0] for line in output.splitlines() if "none: pip install" in line]

    assert (status, missing) == (0, ["TensorFlow", "libcst", "numpy"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("audit other.py", "there is no program 'other.py'."),
        ("audit -m space.other", "-m: there is no module 'space.other'."),
        ("migrate --check other.py", "there is no program 'other.py'."),
        ("migrate --check -m space.job.py", "-m: there is no module 'space.job.py'. Leave out .py"),
        ("run -m space", "-m: the package 'space' has no __main__.py to run."),
        ("run space", "the folder 'space' has no __main__.py to run."),
        ("plan other.py", "there is no program 'other.py'."),
        ("migrate --check train.py --flag", "migrate: ['--flag'] would be the program's own"),
    ],
)
def test_wrong_arguments_are_told_before_missing_packages(
    folder: pathlib.Path, command: str, said: str
) -> None:
    """Nobody installs TensorFlow to read that a program does not exist."""
    status, output = ran(folder, command, LOOKING[:2])

    assert status == 2
    assert output.startswith(f"estimator-bridge: {said}")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "packages", "needed"),
    [
        ("run train.py", LOOKING, "tensorflow"),
        ("run --tf1 -m space.job --flag 1", LOOKING, "tensorflow"),
        ("verify train.py", LOOKING, "ml_dtypes"),
        ("verify train.py", RECORDING, "tensorflow"),
        ("record -o recorded train.py", (), "tensorflow"),
        ("plan train.py", LOOKING, "tensorflow"),
        ("convert a b", LOOKING, "protobuf"),
        ("inspect a", LOOKING, "protobuf"),
        ("inspect a", ("numpy", "google"), "google_crc32c"),
        ("inspect --spec train.py:spec a", READING, "tensorflow"),
        ("serve", LOOKING, "tensorflow"),
        ("build-native", LOOKING, "tensorflow"),
        ("migrate --check train.py", ("numpy",), "libcst"),
        ("audit --target v6e train.py", (), "numpy"),
        ("audit --run train.py", LOOKING, "tensorflow"),
        ("audit --model_dir a", LOOKING, "protobuf"),
        ("audit --spec train.py:spec", LOOKING, "tensorflow"),
    ],
)
def test_a_missing_package_is_named_in_one_line(
    folder: pathlib.Path, command: str, packages: tuple[str, ...], needed: str
) -> None:
    """A command that cannot do without a package says which, and what to type."""
    status, output = ran(folder, command, packages)

    assert status == 2
    name = command.split()[0]
    expected = f"estimator-bridge: {name} needs {needed}, which is not installed. Type: pip install"
    assert output.startswith(expected)
    assert output.count("\n") == 1

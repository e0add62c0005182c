"""`migrate` of a folder rewrites all modules consistently, and `--undo` restores them."""

from __future__ import annotations

import json
import pathlib

import pytest

from compat_tests.support import fresh
from estimator_bridge.cli import main
from estimator_bridge.migrate.forms import FORMS

MODULES = {
    "__init__.py": "",
    "common.py": (
        "import tensorflow.compat.v1 as tf\n"
        "from tensorflow.compat.v1 import estimator as tf_estimator  # Stock's.\n"
    ),
    "settings.py": "USE_TPU = False\n",
    "inputs.py": (
        "import tensorflow as tf\n\n\ndef input_fn(params):\n"
        "  size = params['batch_size']\n"
        "  where = [[i, 0] for i in range(size)]\n"
        "  x = tf.SparseTensor(where, tf.fill([size], tf.constant(3, tf.int64)), [size, 1])\n"
        "  return tf.data.Dataset.from_tensors(({'x': x}, tf.ones([size, 1]))).repeat(9)\n"
    ),
    "model.py": (
        "from .common import tf, tf_estimator\nfrom job.settings import USE_TPU\n"
        "E = tf.tpu.experimental\n"
        "column = tf.feature_column.categorical_column_with_identity('x', 9)\n"
        "columns = [E.embedding_column(column, 2)]\n\n\n"
        "def model_fn(features, labels, mode):\n"
        "  net = tf.layers.dense(tf.keras.layers.DenseFeatures(columns)(features), 1)\n"
        "  loss = tf.losses.mean_squared_error(labels, net)\n"
        "  optimizer = tf.train.AdamOptimizer(.1)\n"
        "  if USE_TPU:\n    optimizer = tf.tpu.CrossShardOptimizer(optimizer)\n"
        "  return tf_estimator.tpu.TPUEstimatorSpec(\n"
        "      mode, loss=loss, "
        "train_op=optimizer.minimize(loss, tf.train.get_global_step()))\n\n\n"
        "def spec():\n  return tf_estimator.tpu.experimental.EmbeddingConfigSpec(\n"
        "      feature_columns=columns, optimization_parameters=E.AdagradParameters(.1))\n"
    ),
    "train.py": (
        "import job.model\nfrom job import inputs, settings\n"
        "from job.common import tf_estimator as est\n\n\ndef main():\n"
        "  estimator = est.tpu.TPUEstimator(\n"
        "      job.model.model_fn, use_tpu=settings.USE_TPU, train_batch_size=4,\n"
        "      config=est.tpu.RunConfig(model_dir='model'),\n"
        "      embedding_config_spec=job.model.spec())\n"
        "  estimator.train(inputs.input_fn, max_steps=3)\n\n\n"
        "if __name__ == '__main__':\n  main()\n"
    ),
    "words.txt": "a\nb\n",
}


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = tmp_path / "job"
    path.mkdir()
    for name, text in MODULES.items():
        (path / name).write_text(text)
    (path / "words.txt").chmod(0o640)
    (path / "link.txt").symlink_to("words.txt")
    monkeypatch.chdir(tmp_path)
    return path


def contents(path: pathlib.Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_a_package_is_migrated_as_a_whole(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names from other modules are replaced, and imports name the new package."""
    assert main.main(["migrate", "--form", "tf2", "job"]) == 0
    report = capsys.readouterr().out
    new = {name: text.decode() for name, text in contents(folder.with_name("job_tf2")).items()}

    assert "[name] model.py, line 19: tf_estimator.tpu.experimental.EmbeddingConfigSpec" in report
    assert "from .common import tf\nfrom job_tf2.settings import USE_TPU\n" in new["model.py"]
    assert "train_op=minimize(optimizer, loss, tf.train.get_global_step()))\n" in new["model.py"]
    assert "optimization_parameters=AdagradParameters(.1), quirks='stock')" in new["model.py"]
    assert "import job_tf2.model\nfrom job_tf2 import inputs, settings\n" in new["train.py"]
    assert "Trainer(\n      job_tf2.model.model_fn, train_batch_size=4," in new["train.py"]
    assert "tf_estimator" not in new["common.py"] + new["model.py"] + new["train.py"]
    for name in ("__init__.py", "settings.py", "inputs.py", "words.txt"):
        assert new[name] == MODULES[name], name
    assert (folder.with_name("job_tf2") / "link.txt").is_symlink()
    assert all((folder / name).read_text() == text for name, text in MODULES.items())
    assert main.main(["migrate", "--form", "tf2", "job"]) == 2
    assert "job_tf2 exists. Give another --output" in capsys.readouterr().err


def test_a_package_that_trains_unseen_is_refused(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least one module must make the call that tells the library what is trained."""
    model = folder / "model.py"
    model.write_text(
        MODULES["model.py"].replace(
            "optimizer.minimize(loss, tf.train.get_global_step())", "steps.one(loss)"
        )
    )
    assert (
        main.main(["migrate", "--form", "tf2", "--skip", "keep-estimator", "--check", "job"]) == 2
    )
    assert "job: [no-training] job: it trains, and calls no" in capsys.readouterr().err
    (folder / "steps.py").write_text(
        "def one(optimizer, loss):\n  return optimizer.minimize(loss)\n"
    )
    assert main.main(["migrate", "--form", "tf2", "--check", "job"]) == 0


@pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=() if name == "bridge" else pytest.mark.full) for name in FORMS],
)
def test_a_package_in_place_is_migrated_once_and_undone(folder: pathlib.Path, form: str) -> None:
    """The second migration changes nothing; `--undo` restores every byte."""
    arguments = ["migrate", "--form", form, "--in_place", "job"]
    before = contents(folder)
    assert main.main(arguments) == 0
    once = contents(folder)
    assert once != before
    assert main.main(arguments) == 0
    assert contents(folder) == once
    assert [each.name for each in folder.parent.glob("*.undo*")] == ["job.undo"]

    assert main.main(["migrate", "--undo", "job.undo"]) == 0
    assert contents(folder) == before
    assert not (folder.parent / "job.undo").exists()


@pytest.mark.parametrize(
    ("form", "current", "given", "new"),
    [
        pytest.param("tf2", "job", ".", "job", marks=pytest.mark.full),
        pytest.param("keras", "job", ".", "job", marks=pytest.mark.full),
        *(("bridge", "job", ".", "job"), ("bridge", "job/below", "..", "job")),
        *(("bridge", ".", "job/", "job"), ("bridge", ".", "job/below/..", "job")),
        ("bridge", ".", "link", "link"),
    ],
)
def test_a_folder_is_migrated_by_each_of_its_paths(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    current: str,
    given: str,
    new: str,
) -> None:
    """The new folder is named after the folder that the path leads to, and lies beside it."""
    (folder / "below").mkdir()
    (folder.parent / "link").symlink_to("job")
    monkeypatch.chdir(folder.parent / current)
    command = ["migrate", "--form", form]
    assert main.main([*command, "--check", given]) == 0
    assert main.main([*command, given]) == 0
    assert main.main([*command, "--output", str(folder.parent / "other"), given]) == 0
    assert {each.name for each in folder.parent.iterdir()} == {
        *("job", "link", "other", f"{new}_{form}")
    }
    assert set(contents(folder.parent / f"{new}_{form}")) == set(MODULES) | {"link.txt"}


def test_a_changed_file_is_not_undone(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a file was edited since, nothing is restored and the message names the file."""
    main.main(["migrate", "--in_place", "job"])
    (folder / "model.py").write_text("x = 1\n")
    now = contents(folder)

    assert main.main(["migrate", "--undo", "job.undo"]) == 2
    assert "model.py changed since the migration" in capsys.readouterr().err
    assert contents(folder) == now
    (folder.parent / "other").write_text(json.dumps({"version": 7}))
    for name, words in (
        ("other", "is not an undo file of migrate: version 7"),
        ("nowhere", "no undo file"),
    ):
        assert main.main(["migrate", "--undo", name]) == 2
        assert words in capsys.readouterr().err


def test_blockers_of_all_files_are_named(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is refused with the blockers of each of its files, and nothing is written.

    The names behind a star import are unknown, so they cannot be replaced.
    """
    (folder / "inputs.py").write_text(f"{MODULES['inputs.py']}tape = tf.GradientTape()\n")
    source = MODULES["model.py"].replace("import tf, tf_estimator", "import *")
    (folder / "model.py").write_text(source)
    assert main.main(["migrate", "--form", "tf2", "--skip", "keep-estimator", "job"]) == 2
    stderr = capsys.readouterr().err

    assert "inputs.py, line 9: [gradient-tape]" in stderr
    assert "model.py, line 1: [imports-star]" in stderr
    assert not folder.with_name("job_tf2").exists()


def test_a_program_is_not_migrated_without_its_modules(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program alone is refused if it imports a neighboring module that must change."""
    (folder / "__init__.py").unlink()
    source = MODULES["train.py"].replace("import job.model\n", "import model\n")
    (folder / "train.py").write_text(source.replace("job.model", "model").replace("job.", ""))
    (folder / "model.py").write_text(MODULES["model.py"].replace(".common", "common"))

    assert main.main(["migrate", "--form", "tf2", "job/train.py"]) == 2
    stderr = capsys.readouterr().err
    assert "[imports-legacy-module] common.py: the program imports this module" in stderr
    assert "[imports-legacy-module] model.py" in stderr
    assert "Give the folder to `migrate`" in stderr


def test_modules_are_found_in_the_whole_package(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program alone is also refused for modules in other folders of its package."""
    (folder / "names").mkdir()
    (folder / "common.py").rename(folder / "names" / "__init__.py")
    (folder / "model.py").rename(folder / "names" / "model.py")
    model = MODULES["model.py"].replace("from .common", "from .")
    (folder / "names" / "model.py").write_text(model)
    source = (
        MODULES["train.py"]
        .replace("job.common", "job.names")
        .replace("job.model", "job.names.model")
    )
    (folder / "train.py").write_text(source)

    assert main.main(["migrate", "--form", "tf2", "job/train.py"]) == 2
    stderr = capsys.readouterr().err
    assert "[imports-legacy-module] names/__init__.py: the program imports this module" in stderr
    assert "[imports-legacy-module] names/model.py" in stderr
    assert "[no-training]" not in stderr
    assert main.main(["migrate", "--form", "tf2", "--check", "job"]) == 0


@pytest.mark.parametrize("init", [("__init__.py", "jobs/__init__.py"), ()])
def test_modules_of_tensorflow_1_are_found_in_packages_of_each_kind(
    init: tuple[str, ...], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that only TensorFlow 1 runs is ported with the program, also without __init__.py."""
    files = {
        "jobs/train.py": "from ..layers import dense\nimport tensorflow as tf\ntf.app.run()\n",
        "layers.py": "from tensorflow.contrib import layers\ndense = layers.fully_connected\n",
        **dict.fromkeys(init, ""),
    }
    for name, text in files.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    for form in ("bridge", "tf2"):
        command = ["migrate", "--form", form, str(tmp_path / "package/jobs/train.py")]
        assert main.main(command) == 2
        assert "[imports-legacy-module] ../layers.py" in capsys.readouterr().err


@pytest.mark.full
def test_a_migrated_package_trains(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check-run` runs the program of the new package, and keeps the package if that works."""
    (folder / "train.py").write_text("import sys\nsys.path.append('.')\n" + MODULES["train.py"])

    assert main.main(["migrate", "--form", "tf2", "--check-run", "job"]) == 0, capsys.readouterr()
    fresh.python("-m", "job_tf2.train", check=True)
    assert (folder.parent / "model" / "model.ckpt-3.index").is_file()

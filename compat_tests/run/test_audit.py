"""`estimator-bridge audit`: findings in scripts, specs and model_dirs, and the output."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Case, Column, Feature, Optimizer, Table
from compat_tests.support import fresh, legacy_checkpoints, legacy_specs, translating
from compat_tests.support.conversions import OTHERS, spec_of, tables_of
from compat_tests.support.translating import optimizer
from estimator_bridge import audit, errors
from estimator_bridge.audit.report import AuditedTable
from estimator_bridge.cli import main

MOMENTUM = Optimizer("Momentum", {"learning_rate": 0.1, "momentum": 0.9})


def rules_of(report: Any) -> set[tuple[str, str]]:
    return {(finding.rule, finding.where) for finding in report.findings}


def of_spec(**settings: Any) -> set[tuple[str, str]]:
    """Returns the findings in a spec with one table and one feature."""
    return rules_of(audit.audit_spec(legacy_specs.build(translating.case(**settings))))


ALWAYS = {("ids_out_of_range", "all features"), ("predict", "TPUEstimator.predict")}
PLAIN = ALWAYS | {("optimization_parameters", "EmbeddingConfigSpec")}
DICTS = PLAIN | {("config_dicts", "EmbeddingConfigSpec"), ("dense_ids", "feature 'f'")}
SPEC, TABLE = "EmbeddingConfigSpec", "table 't'"


@pytest.mark.parametrize(
    "settings, findings",
    [
        ({}, set()),
        ({"options": {"clipping_limit": 0.0}}, {("clipping_limit", SPEC)}),
        (
            {"options": {"experimental_gradient_multiplier_fn": "warming"}},
            {("gradient_multiplier", SPEC)},
        ),
        ({"options": {"pipeline_execution_with_tensor_core": True}}, {("pipelining", SPEC)}),
        ({"options": {"partition_strategy": "mod"}}, {("mod_partitioning", SPEC)}),
        ({"options": {"profile_data_directory": "here"}}, {("profile_data_directory", SPEC)}),
        ({"tables": {"t": Table(learning_rate=0.0)}}, {("learning_rate_zero", TABLE)}),
        ({"tables": {"t": Table(learning_rate=0.5)}}, set()),
        ({"tables": {"t": Table(learning_rate_fn="warming")}}, {("learning_rate_fn", TABLE)}),
        ({"tables": {"t": Table(hot_id_replication=True)}}, {("hot_id_replication", TABLE)}),
        (
            {"tables": {"t": Table(optimizer=MOMENTUM)}},
            {("optimizer_lost", TABLE)},
        ),
        (
            {"features": {"f": Feature("t", weight_key="w")}},
            {("weighted_feature", "feature 'f'")},
        ),
        (optimizer("Adam"), {("adam_without_correction", SPEC)}),
        (optimizer("Ftrl"), set()),
        (
            optimizer("Ftrl", initial_accumulator_value=0.0),
            {("ftrl_zero_accumulator", SPEC)},
        ),
        (
            optimizer("Adagrad", use_gradient_accumulation=False),
            {("no_gradient_accumulation", SPEC), ("sparse_core", SPEC)},
        ),
        (optimizer("Adagrad", weight_decay_factor=0.0), {("weight_decay_zero", SPEC)}),
        (optimizer("Adagrad", weight_decay_factor=0.5), {("sparse_core", SPEC)}),
        (
            optimizer("Adagrad", multiply_weight_decay_factor_by_learning_rate=True),
            {("weight_decay_zero", SPEC)},
        ),
        (optimizer("Adagrad", clip_gradient_min=-1.0), {("sparse_core", SPEC)}),
    ],
)
def test_each_setting_of_a_spec_is_found(
    settings: dict[str, Any], findings: set[tuple[str, str]]
) -> None:
    """A setting that stock ignores or treats surprisingly is found at its place, and no other."""
    assert of_spec(**settings) == DICTS | findings


def test_without_a_combiner_dense_ids_are_as_they_are() -> None:
    """combiner=None is found, and dense ids are no matter then; nor are they in sequences."""
    of_none = of_spec(tables={"t": Table(combiner=None)})
    of_sequence = of_spec(features={"f": Feature("t", max_sequence_length=3)})

    dense = {("dense_ids", "feature 'f'")}
    assert of_none == DICTS - dense | {("combiner_none", TABLE)}
    assert of_sequence == DICTS - dense | {
        ("sequence", "feature 'f'"),
        ("sparse_core", "feature 'f'"),
    }


def test_columns_that_transform_are_found() -> None:
    """A column that hashes on a CPU does not on a TPU; one of identities is the same on both."""
    column = tf.compat.v1.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_hash_bucket("name", 9), 4
    )
    spec = legacy_specs.build(
        Case("here", Optimizer("Adagrad", {"learning_rate": 0.1}), columns=(Column(("a",)),))
    )

    assert rules_of(audit.audit_spec(spec)) == PLAIN | {("dense_ids", "feature 'a'")}
    assert ("column_transforms_on_cpu_only", "feature 'name'") in rules_of(
        audit.audit_spec(spec._replace(feature_columns=[column]))
    )


def test_sizes_are_those_of_each_host() -> None:
    """Rows, bytes and ids per host follow div and mod; hosts without a row hold none."""
    table = AuditedTable("t", 5, 2, "Adagrad", ("accumulators",), ("f",), "mod")

    assert table.bytes == 5 * 2 * 4 * 2
    assert [(h["rows"], h["bytes"], h["div"], h["mod"]) for h in table.hosts(2)] == [
        (3, 48, "0..2", "0, 2, .., 4"),
        (2, 32, "3, 4", "1, 3"),
    ]
    assert [h["rows"] for h in table.hosts(7)] == [1, 1, 1, 1, 1, 0, 0]
    assert [h["mod"] for h in table.hosts(7)][-1] == "none"


PROGRAM = textwrap.dedent(
    """
    import tensorflow.compat.v1 as tf
    from tensorflow.compat.v1 import estimator as e
    words = tf.feature_column.categorical_column_with_hash_bucket('w', 9)
    columns = [
        tf.tpu.experimental.embedding_column(words, 4, combiner=None),
        tf.feature_column.embedding_column(words, 4, combiner=None),
        tf.tpu.experimental.embedding_column(
            tf.feature_column.categorical_column_with_identity('w', 9), 4, combiner=COMBINER),
    ]
    parameters = tf.tpu.experimental.AdamParameters(
        0.1, use_gradient_accumulation=False, clip_weight_max=1.)
    spec = e.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns, optimization_parameters=parameters, clipping_limit=LIMIT,
        partition_strategy='mod', pipeline_execution_with_tensor_core=False, **MORE)
    job = e.tpu.TPUEstimator(tpu_config=e.tpu.TPUConfig(num_shards=1, per_host_input_for_training=
        e.tpu.InputPipelineConfig.BROADCAST))
    job.predict()
    e.DNNClassifier()
    """
).strip()


def test_a_script_is_read_not_run(tmp_path: pathlib.Path) -> None:
    """A setting in the source is found with its line; a computed one is a remark."""
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)
    report = audit.audit_script(str(path))

    assert rules_of(report) == {
        ("combiner_none", "job.py:5"),
        ("column_transforms_on_cpu_only", "job.py:5"),
        ("adam_without_correction", "job.py:10"),
        ("no_gradient_accumulation", "job.py:10"),
        ("sparse_core", "job.py:10"),
        ("optimization_parameters", "job.py:12"),
        ("clipping_limit", "job.py:12"),
        ("mod_partitioning", "job.py:12"),
        ("one_core", "job.py:15"),
        ("input_per_host", "job.py:15"),
        ("predict", "job.py:17"),
        ("canned_estimator", "job.py:18"),
        ("canned_loss", "job.py:18"),
        ("canned_rate", "job.py:18"),
        ("ids_out_of_range", "all features"),
    }
    computed = "is computed when the program runs; audit the program with --run to see the value"
    assert report.remarks == (
        f"job.py:7: `combiner=COMBINER` {computed}",
        f"job.py:12: `**MORE` {computed}",
    )


@pytest.mark.parametrize(
    "call, rules",
    [
        ("DNNClassifier(optimizer='Adam', loss_reduction=SUM)", {"canned_rate"}),
        ("DNNRegressor(optimizer=make())", {"canned_loss"}),
        ("DNNEstimator(head, optimizer=make())", set()),
        ("LinearClassifier(columns)", {"canned_loss"}),
        ("LinearClassifier(columns, **options)", set()),
        ("DNNLinearCombinedEstimator(head)", set()),
        ("LinearEstimator(h, c, optimizer=tf.keras.optimizers.Adam(0.1))", {"canned_optimizer"}),
        ("LinearEstimator(h, c, optimizer=tf.keras.optimizers.legacy.Adam(0.1))", set()),
        (
            "DNNLinearCombinedEstimator(h, dnn_optimizer=lambda: tf.keras.optimizers.SGD(0.1))",
            {"canned_optimizer"},
        ),
        ("BaselineClassifier()", set()),
        ("experimental.KMeans(3)", set()),
    ],
)
def test_what_a_canned_estimator_leaves_to_defaults(
    call: str, rules: set[str], tmp_path: pathlib.Path
) -> None:
    """Defaults that differ between the APIs, and optimizers that do not train in graphs."""
    path = tmp_path / "job.py"
    path.write_text(f"job = tf.estimator.{call}\n")
    report = audit.audit_script(str(path))

    assert rules_of(report) == {(rule, "job.py:1") for rule in {"canned_estimator", *rules}}
    assert report.remarks[0].startswith("canned models")


def test_another_kmeans_is_not_an_estimators(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("job = cluster.KMeans(3)\n")

    assert not audit.audit_script(str(path)).findings


def test_a_model_dir_tells_tables_and_parts(tmp_path: pathlib.Path) -> None:
    """A checkpoint shows tables, slots and parts; the order of parts is known with a spec alone."""
    values, _ = tables_of("Adagrad", "dict")
    legacy_checkpoints.write(str(tmp_path / "model.ckpt-7"), values, OTHERS, hosts=5)
    report = audit.audit_model_dir(str(tmp_path))
    with_spec = audit.audit_model_dir(str(tmp_path), spec_of("Adagrad", "dict"))

    assert {table.optimizer for table in report.tables} == {"Adagrad"}
    assert {table.slots for table in report.tables} == {("accumulators",)}
    assert {finding.rule for finding in report.findings} == {"parts_of_unknown_order"}
    assert not with_spec.findings


def test_text_and_json_tell_the_same(tmp_path: pathlib.Path, capsys: Any) -> None:
    """The command prints a heading and three sides per rule, and with --json the same as data."""
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)

    assert main.main(["audit", str(path)]) == 0
    text = capsys.readouterr().out
    assert main.main(["audit", "--json", str(path)]) == 0
    (data,) = json.loads(capsys.readouterr().out)

    assert "mod_partitioning: stock raises an error\n  job.py:12: partition_strategy='mod'" in text
    assert [f["rule"] for f in data["findings"] if f["where"] == "job.py:12"] == [
        "clipping_limit",
        "optimization_parameters",
        "mod_partitioning",
    ]
    assert all(f["cpu"] and f["tpu"] and f["tf2"] for f in data["findings"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "name a program to audit, or give --spec or --model_dir"),
        (["nowhere.py"], "no program 'nowhere.py'"),
        (["--run", "--model_dir", "here"], "--run needs a script"),
        (["broken.py"], "Python 3 cannot read"),
        (["empty"], "audit: empty has no Python file"),
        (["-m", "sys"], "there is no module 'sys'"),
        (["--target", "v5p", "--sample", "2", "broken.py"], "--sample needs --run, a script"),
        (["--target", "torch", "--sample", "2", "--run", "x.py"], "and a --target that is a TPU"),
    ],
)
def test_a_missing_or_broken_subject_is_an_error(
    arguments: list[str],
    words: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    (tmp_path / "broken.py").write_text("print 'Python 2'\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main.main(["audit", *arguments]) == 2
    assert words in capsys.readouterr().err


PRIVATE = """
from tensorflow_estimator.python.estimator import training, util
from tensorflow_estimator.python.estimator.canned import dnn as d, timeseries, head
from tensorflow_estimator.python.estimator.canned.head import _Head
import tensorflow.python.estimator.export.export_lib
import tensorflow_estimator.python.estimator.tools.analytics as a
from tensorflow.python.tpu import tpu_embedding, tpu_feed
import tensorflow as tf

training._TrainingExecutor, util.fn_args, _Head
d._dnn_model_fn(1)
head._Nothing
tpu_embedding.anything, tf.estimator.Estimator
tensorflow.python.estimator.export.export_lib.get_temp_export_dir
from tensorflow_estimator.python.estimator.starred import *
importlib.import_module("tensorflow_estimator.python.estimator.canned.quoted")
importlib.import_module("tensorflow_estimator.python.estimator.canned.head")
from tensorflow_estimator.python.estimator.canned.head import *
"""


def test_private_names_that_the_bridge_lacks_are_listed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Of a script, a folder and a package: missing modules and names, and what fails at use."""
    lacking = [
        "line 3: the bridge has no module tensorflow_estimator.python.estimator.canned.timeseries",
        "line 6: the bridge has no module tensorflow_estimator.python.estimator.tools",
        "line 11: the bridge lacks stock's tensorflow_estimator.python.estimator.canned.dnn."
        "_dnn_model_fn: importing the name works, but using it fails",
        "line 12: the bridge has no name tensorflow_estimator.python.estimator.canned.head."
        "_Nothing",
        "line 14: the bridge has no name tensorflow.python.estimator.export.export_lib."
        "get_temp_export_dir",
        "line 15: the bridge has no module tensorflow_estimator.python.estimator.starred",
        "line 16: the bridge has no module tensorflow_estimator.python.estimator.canned.quoted",
    ]
    (tmp_path / "library/below").mkdir(parents=True)
    (tmp_path / "library/__init__.py").write_text("")
    (tmp_path / "library/below/names.py").write_text(PRIVATE)
    (tmp_path / "library/old.py").write_text("print 'Python 2'\n")
    monkeypatch.chdir(tmp_path)

    of_script = audit.audit_script("library/below/names.py").remarks
    of_folder = audit.audit_folder("library").remarks
    assert [each.partition(": code")[0] for each in of_script if "line" in each] == lacking
    assert [each for each in of_folder if "names.py" in each] == [
        f"below/names.py, {each}" for each in of_script if "the bridge" in each
    ]
    assert any(each.startswith("old.py, line 1: SyntaxError: ") for each in of_folder)
    for words in (["library"], ["-m", "library"]):
        assert main.main(["audit", *words]) == 0
        assert "_dnn_model_fn: importing the name works" in capsys.readouterr().out
    assert main.main(["audit", "-m", "library.below.names"]) == 0
    assert "canned.head._Nothing" in capsys.readouterr().out


MODULES = {
    "__init__.py": "",
    "columns.py": (
        "from .names import tf\nE = tf.tpu.experimental\n"
        "words = tf.feature_column.categorical_column_with_identity('w', 9)\n"
        "columns = [E.embedding_column(words, 4, combiner=None)]\n"
    ),
    "model.py": (
        "from job.columns import columns, E\nfrom job.names import tf\ne = tf.estimator.tpu\n"
        "def model_fn(features, labels, mode, params):\n"
        "    net = tf.keras.layers.DenseFeatures(columns)(features)\n"
        "    loss = tf.losses.mean_squared_error(labels, net)\n"
        "    step = tf.train.get_global_step()\n"
        "    op = tf.tpu.CrossShardOptimizer(tf.train.AdamOptimizer()).minimize(loss, step)\n"
        "    return e.TPUEstimatorSpec(mode, loss=loss, train_op=op)\n"
        "def make():\n"
        "    spec = e.experimental.EmbeddingConfigSpec(\n"
        "        columns, E.AdagradParameters(0.1), clipping_limit=5.0)\n"
        "    return e.TPUEstimator(model_fn, embedding_config_spec=spec, use_tpu=True,\n"
        "        train_batch_size=8, config=e.RunConfig(model_dir='model'))\n"
    ),
    "names.py": "import tensorflow.compat.v1 as tf\n",
    "train.py": (
        "from job import model\nfrom job.inputs import input_fn\n"
        "if __name__ == '__main__':\n    model.make().train(input_fn, max_steps=3)\n"
    ),
    "inputs.py": "def input_fn(params):\n    return params['data']\n",
}


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return folder


def audited(capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    assert main.main(["audit", "--json", *arguments]) == 0
    reports: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return reports


@pytest.mark.parametrize(
    "arguments", [["job"], ["-m", "job"], ["-m", "job.train"], ["job/train.py"]]
)
def test_all_files_of_a_program_are_read(
    arguments: list[str], job: pathlib.Path, capsys: Any
) -> None:
    """The folder, the package and the module that starts the program have the same findings."""
    (report,) = audited(capsys, *arguments)
    places = {(each["rule"], each["where"]) for each in report["findings"]}
    together = [each for each in report["remarks"] if each.endswith("their folder, job")]

    assert places >= {("combiner_none", "columns.py:4"), ("clipping_limit", "model.py:11")}
    assert [(each["form"], each["answer"]) for each in report["migration"]] == [
        ("bridge", "yes"),
        ("tf2", "yes"),
        ("keras", "yes"),
    ]
    assert len(together) == any("train" in each for each in arguments)
    for form in ("bridge", "tf2", "keras"):
        assert main.main(["migrate", "--form", form, "--check", "job"]) == 0


def test_reasons_name_the_file_of_a_program(job: pathlib.Path, capsys: Any) -> None:
    """A blocker in a module is a reason with the name of this module."""
    with (job / "names.py").open("a") as file:
        file.write("from tensorflow.compat.v1.estimator import *\n")
    for arguments in (["job"], ["-m", "job.train"]):
        (report,) = audited(capsys, *arguments)
        reasons = {each["form"]: each["reasons"] for each in report["migration"]}
        assert any("names.py, line 2" in each for each in reasons["tf2"]), reasons


def test_a_script_is_read_with_the_modules_beside_it(job: pathlib.Path, capsys: Any) -> None:
    """Without a package, too; a module of Python 2 is a remark, and other programs are left out."""
    (job / "__init__.py").unlink()
    for path in job.iterdir():
        text = path.read_text().replace("from job import", "import").replace("from job.", "from ")
        path.write_text(text.replace("from .", "from "))
    (job / "inputs.py").write_text("print 'Python 2'\n")
    (job / "other.py").write_text("import tensorflow as tf\ntf.estimator.DNNClassifier([8])\n")
    (report,) = audited(capsys, "job/train.py")

    assert {"combiner_none", "clipping_limit"} <= {each["rule"] for each in report["findings"]}
    assert "canned_estimator" not in {each["rule"] for each in report["findings"]}
    assert any(each.startswith("inputs.py, line 1: SyntaxError") for each in report["remarks"])


def test_a_folder_that_runs_has_one_report(job: pathlib.Path, capsys: Any) -> None:
    (job / "train.py").rename(job / "__main__.py")
    (report,) = audited(capsys, "--target", "v5p", "job")

    assert report["on_sparse_cores"]
    assert [each["answer"] for each in report["migration"]] == ["yes"] * 4 + ["no"]


def test_an_environment_in_a_folder_is_left_out(job: pathlib.Path, capsys: Any) -> None:
    """A folder may contain environments; their files are no part of the program."""
    (before,) = audited(capsys, "job")
    for name in (".venv/lib/site-packages", "env/lib/site-packages"):
        installed = job / name / "canned"
        installed.mkdir(parents=True)
        (installed / "bad.py").write_text(
            "from tensorflow.estimator import *\ntf.estimator.DNNClassifier([8])\n"
        )
    (after,) = audited(capsys, "job")

    assert (after["findings"], after["migration"]) == (before["findings"], before["migration"])


def test_an_installed_library_is_not_migrated(job: pathlib.Path, capsys: Any) -> None:
    """Settings of a library are listed, but a migration of many files would take minutes."""
    installed = job.parent / "site-packages"
    installed.mkdir()
    job.rename(installed / "job")
    (report,) = audited(capsys, "site-packages/job")

    assert "clipping_limit" in {each["rule"] for each in report["findings"]}
    assert not report["migration"]


def test_help_does_not_import_tensorflow() -> None:
    """`audit --help` and an audit of a source are quick: no TensorFlow is loaded."""
    code = (
        "import sys; from estimator_bridge.cli import main\n"
        f"main.main(['audit', {str(pathlib.Path(__file__))!r}])\n"
        "assert 'tensorflow' not in sys.modules\n"
        "main.main(['audit', '--help'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr
    assert "the script is read but not run" in ran.stdout


@pytest.mark.full
def test_a_run_ends_at_the_estimator(tmp_path: pathlib.Path) -> None:
    """With --run the program goes as far as its estimator; what it prints is not the report."""
    path = tmp_path / "job.py"
    path.write_text(
        textwrap.dedent(
            """
            import sys
            import tensorflow.compat.v1 as tf
            from tensorflow.compat.v1 import estimator as e
            print('this is not JSON')
            column = tf.tpu.experimental.embedding_column(
                tf.feature_column.categorical_column_with_identity('w', int(sys.argv[1])), 4)
            try:
              e.tpu.TPUEstimator(
                  lambda features: None,
                  config=e.tpu.RunConfig(tpu_config=e.tpu.TPUConfig(num_shards=1)),
                  train_batch_size=8,
                  embedding_config_spec=e.tpu.experimental.EmbeddingConfigSpec(
                      [column], tf.tpu.experimental.AdagradParameters(0.1)))
            except Exception:
              pass
            raise SystemExit('it went on')
            """
        )
    )
    options = ("--json", "--hosts=2", "--run")
    ran = fresh.module("estimator_bridge", "audit", *options, path, "21", check=True)
    _, report = json.loads(ran.stdout)

    (table,) = report["tables"]
    assert (table["name"], table["rows"], table["slots"]) == ("tbl_w", 21, ["accumulators"])
    assert [host["rows"] for host in table["hosts"]["2"]] == [11, 10]
    assert "one_core" in {finding["rule"] for finding in report["findings"]}
    assert report["remarks"][1].startswith("train_batch_size=8")


def test_a_program_without_an_estimator_is_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("x = 1\n")

    with pytest.raises(errors.EngineError, match="ends without making a TPUEstimator"):
        audit.audit_run(str(path))

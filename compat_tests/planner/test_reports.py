"""The output of `estimator-bridge plan`: text, JSON, chart and advice."""

from __future__ import annotations

import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.planner import calibration, report
from estimator_bridge.planner.capacity import CapacityPlan, Options, plan_capacity
from estimator_bridge.planner.job import Job, TableLoad, zipf_load
from estimator_bridge.planner.step_time import Coefficients, Machine
from tf2_engine.placement import TableSize


def plan_of(**settings: object) -> CapacityPlan:
    """Returns the plan of a table of 2 GB with its slot and of a small one."""
    sizes = [TableSize("words & <more>", 4_000_000, 64, 2), TableSize("days", 7, 4, 2)]
    tables = [TableLoad(size, zipf_load(size.rows, 4096), 1024) for size in sizes]
    job = Job("train.py", tuple(tables), 1024, "assumed")
    return plan_capacity(job, Machine(1.5e9, 10e9), **settings)  # type: ignore[arg-type]


def test_json_is_valid_and_says_what_the_text_says() -> None:
    """Numbers of the JSON are those of the plan, and the text has the same."""
    plan = plan_of(workers=4, cores=8)
    figures = json.loads(json.dumps(report.as_dict(plan), allow_nan=False))
    text = "\n".join(report.lines(plan))

    assert figures["least_ps_for_memory"] == plan.servers_for_memory == 3
    assert (
        sum(figures["tables"][0]["bytes_on_ps"]) == figures["tables"][0]["bytes"] == 2_048_000_000
    )
    assert len(figures["tables"][0]["ps"]) == len(figures["tasks"]["ps"]) == plan.servers
    assert len(figures["tables"][1]["ps"]) == 1
    parts = ("model_ms", "input_ms", "exchange_ms", "update_ms", "chief_ms")
    assert figures["step"]["ms"] == pytest.approx(sum(figures["step"][part] for part in parts))
    assert f"fewest servers with enough memory: {figures['least_ps_for_memory']}" in text
    for word in (
        "come from a model",
        "exact",
        figures["step"]["limit"],
        "4 worker(s) with 2 core(s)",
    ):
        assert word in text
    assert [row["machines"] for row in figures["growth"]] == [5, 10, 20, 50, 100, 200, 500, 1000]
    for row in figures["growth"]:
        assert row["workers"] + row["ps"] == row["machines"]
        assert row["ps"] >= plan.servers_for_memory


def test_a_chart_is_well_formed() -> None:
    """The chart is well-formed XML for any names, and has a point for each cluster."""
    plan = plan_of(workers=4)
    root = ElementTree.fromstring(report.chart(plan))

    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    assert sum(float(each.get("r", 0)) > 0 for each in circles) == len(plan.growth)


def test_advice_is_given_for_what_is_wrong() -> None:
    """Too few parameter servers, and a layout with a busy one, are named with numbers."""
    few = "\n".join(report.advice(plan_of(workers=4, servers=2)))
    assert "2 parameter servers are too few" in few
    assert "Use 3 servers." in few
    div = plan_of(workers=4, servers=8)
    (sentence,) = (each for each in report.advice(div) if "div" in each)
    assert f"{div.uneven['div']:.1f} times the mean" in sentence
    even = plan_of(workers=4, servers=8, options=Options(layout="octaves"))
    assert not any("div" in each for each in report.advice(even))


def test_a_chief_that_reads_sends_ids() -> None:
    """Workers read by themselves, unless the plan is of a chief that reads for all."""
    assert plan_of(workers=4).time.input_ms == 0
    plan = plan_of(workers=4, options=Options(chief_reads=True))
    # 4 cores, 4,096 ids of each table, 24 bytes each, 10^10 bits a second.
    assert plan.time.input_ms == pytest.approx(4 * 2 * 4096 * 24 * 8 / 10e9 * 1e3)
    assert report.as_dict(plan)["chief_reads"] is True


@pytest.mark.parametrize(
    "text, problem",
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "missing fields: ['bytes_per_byte'"),
        ('{"bytes_per_bite": 1}', "unknown fields: ['bytes_per_bite']"),
        ({"client_ms": -1.0}, "client_ms is -1.0"),
        ({"client_ms": "1"}, "client_ms is '1'"),
        ({"client_ms": float("inf")}, "client_ms is inf"),
        ({"client_ms": True}, "client_ms is True"),
        ({"source": 3}, "source is 3"),
    ],
)
def test_what_is_no_calibration_is_refused(
    text: Any, problem: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.json"
    if isinstance(text, dict):
        text = json.dumps(Coefficients().as_dict() | text)
    if text is not None:
        path.write_text(text)
    assert main.main(["plan", "--calibration", str(path), "--spec", "m:s", "--batch_size=8"]) == 2
    message = capsys.readouterr().err
    assert f"--calibration {path}" in message
    assert problem in message
    assert "plan --calibrate --calibration FILE" in message


def test_a_machine_is_calibrated_without_a_program(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured is in the file, and a plan of it says so."""
    path = str(tmp_path / "here.json")
    measured = Coefficients(client_ms=7.0, source="measured here")
    monkeypatch.setattr(calibration, "calibrate", lambda tell: measured)
    assert main.main(["plan", "--calibrate", "--calibration", path]) == 0
    assert calibration.read(path) == measured
    with pytest.raises(errors.CannotWrite, match="no/such/folder"):
        calibration.write("no/such/folder/here.json", measured)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ([], "name the program to plan for, or give its --spec"),
        (["--calibrate"], "name the program to plan for, or give its --spec"),
        (["no_such_program.py"], "there is no program"),
        (["--spec", "m:s"], "--spec needs --batch_size"),
        (["--spec", "m:s", "--batch_size", "8", "--sample", "1"], "--sample needs a program"),
    ],
)
def test_wrong_arguments_are_errors(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["plan", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_ids_are_given_by_feature() -> None:
    """`--ids 2,history=20` is 20 ids for one feature and 2 for all others."""
    parser = main.parsers()[0]
    options = parser.parse_args(["plan", "--ids", "2,history=20", "train.py", "--batch_size=3"])

    assert options.ids == {None: 2.0, "history": 20.0}
    assert (options.script, options.arguments) == ("train.py", ["--batch_size=3"])
    with pytest.raises(SystemExit):
        parser.parse_args(["plan", "--ids", "-1", "train.py"])


def test_the_choices_are_those_of_the_model() -> None:
    """`plan --help` lists all layouts and forms without importing the model."""
    from estimator_bridge.cli import plan, run
    from estimator_bridge.planner.step_time import WIRES
    from tf2_engine.placement import LAYOUTS

    assert plan._LAYOUTS == LAYOUTS
    assert run.WIRES == WIRES


SPEC = """
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
import tensorflow as tf

fc, embedding = tf.feature_column, tf.compat.v1.tpu.experimental
words, days = (
    fc.categorical_column_with_identity(key, rows) for key, rows in (("w", 300_000), ("d", 7)))
SPEC = estimator.tpu.experimental.EmbeddingConfigSpec(
    [embedding.embedding_column(words, 64), embedding.embedding_column(days, 4)],
    parameters.AdamParameters(0.01))
"""


@pytest.mark.full
def test_a_spec_is_planned(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, slots and ids of a spec are those of the plan."""
    (tmp_path / "spec.py").write_text(SPEC)
    arguments = ["plan", "--json", "--spec", f"{tmp_path / 'spec.py'}:SPEC", "--batch_size", "512"]
    assert main.main([*arguments, "--workers", "4", "--ps", "3", "--ids", "w=10"]) == 0
    figures = json.loads(capsys.readouterr().out)

    days, words = figures["tables"]
    assert (words["rows"], words["dim"], words["slots"]) == (300_000, 64, ["momenta", "velocities"])
    assert (words["ids"], days["ids"]) == pytest.approx((1280, 128))
    assert sum(task["tables"] for task in figures["tasks"]["ps"]) == 4 * 3 * (300_000 * 64 + 7 * 4)
    calibration.write(str(tmp_path / "c.json"), Coefficients(client_ms=70.0))
    assert main.main([*arguments, "--calibration", str(tmp_path / "c.json")]) == 0
    assert json.loads(capsys.readouterr().out)["coefficients"]["client_ms"] == 70.0
    assert main.main([*arguments, "--ids", "x=10"]) == 2
    assert "there is no feature 'x'; the program has d, w" in capsys.readouterr().err
    assert main.main([*arguments, "--workers", "3"]) == 2
    assert "The batch size 512 cannot be divided evenly among 3 cores" in capsys.readouterr().err


@pytest.mark.full
def test_a_program_is_planned_from_its_own_data(tmp_path: pathlib.Path) -> None:
    """A program with absl flags is run once; ids are those of its batches; the chart is written."""
    options = ["--workers", "2", "--ps", "2", "--sample", "3", "--chart", str(tmp_path / "c.svg")]
    figures = of_two_tower(tmp_path, "plan", *options)

    assert (figures["cores"], figures["samples_of_a_core"]) == (2, 64)
    assert figures["lookups"] == "a sample of 3 of its batches"
    tables = {table["name"]: table for table in figures["tables"]}
    # One user for each sample.
    assert tables["tbl_user"]["ids"] == pytest.approx(64)
    assert tables["tbl_user"]["activations"] == 64
    assert 32 < tables["tbl_user"]["distinct"] < 64
    assert tables["tbl_items"]["ids"] > 2 * 64
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")


@pytest.mark.full
def test_audit_samples_a_program_with_flags(tmp_path: pathlib.Path) -> None:
    """The program is run once: absl defines a flag only once in a process."""
    options = ["--run", "--target", "v5p", "--cores", "2", "--sample", "2"]
    assert (
        of_two_tower(tmp_path, "audit", *options)[-1]["on_sparse_cores"]["sample"]["batches"] == 2
    )


def of_two_tower(folder: pathlib.Path, command: str, *options: str) -> Any:
    """Returns what a command prints as JSON of the two_tower example."""
    program = ROOT / "examples" / "two_tower" / "train.py"
    flags = (f"--model_dir={folder / 'model'}", "--use_tpu")
    words = ("-m", "estimator_bridge", command, "--json", *options, program, *flags)
    ran = fresh.python(*words, check=True)
    return json.loads(ran.stdout)


@pytest.mark.full
def test_calibration_measures_this_machine() -> None:
    """Two tasks are started and ended; bytes and CPU of their steps fit the model.

    The fit is of relative errors; half of a step is far more than a busy machine disturbs it by.
    """
    lines: list[str] = []
    coefficients = calibration.calibrate(lines.append)

    assert "measured" in coefficients.source
    assert 0.05 < coefficients.cpu_ms_per_megabyte < 100
    assert 0.001 < coefficients.cpu_ms_per_tensor < 10
    assert 50e6 < coefficients.task_bytes < 2e9
    error = re.search(r"largest error of the fit is (\d+)%", lines[-1])
    assert error is not None
    assert int(error[1]) < 50

"""Ports of a model with tables: mistakes are found and named, and correct ports are equal."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib

import pytest

from compat_tests.recording.plants import HONEST, PLANTS, Plant, shuffled
from compat_tests.recording.ports import Port
from compat_tests.support import bag_model
from estimator_bridge.cli import main
from estimator_bridge.verification import procedure
from estimator_bridge.verification.findings import Status
from estimator_bridge.verification.result import Result

SECONDS = 60.0
QUICK = (
    *("epsilon below Adagrad's root", "slots dropped", "bias correction"),
    *("weight decay as L2", "weights not clipped", "rate one step late", "mean for sum"),
    *("weights ignored", "duplicates one by one", "rows in float16", "ids clamped"),
    *("zero_grad forgotten for a table", "the network's rate", "squares of each duplicate"),
)
"""One plant of each kind."""

COMBINED = {
    f"{one}, {other}": dataclasses.replace(HONEST[one], **changed)
    for one, (other, changed) in itertools.product(
        HONEST, {"": {}, "sums in another order": {"sums": shuffled, "wide": True}}.items()
    )
}
"""Twenty ports without a mistake."""


def compared(port: Port, recording: pathlib.Path, out: pathlib.Path) -> Result:
    port.run(recording, out)
    return procedure.of_recordings(str(recording), str(out), SECONDS)


def is_named(plant: Plant, result: Result) -> bool:
    return any(one.name in plant.causes and plant.says in one.text for one in result.causes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Side A's recording of four steps of 64 samples."""
    directory = tmp_path_factory.mktemp("recorded") / "a"
    bag_model.record(directory, steps=4, batch_size=64)
    return directory


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_named(recorded: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    result = compared(PLANTS[name].port, recorded, tmp_path / "b")

    assert result.status == Status.DIFFERENT
    assert is_named(PLANTS[name], result), result.causes


def test_an_honest_port_is_equal(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A port that rounds elsewhere is equal, by the command as well; its page says what it is."""
    Port().run(recorded, tmp_path / "b")
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html")}
    options = [f"--{kind}={path}" for kind, path in files.items()]
    folders = [str(recorded), str(tmp_path / "b")]

    assert main.main(["verify", *options, "--against-recording", *folders]) == 0
    found = json.loads(files["json"].read_text())
    assert found["status"] == "equal"
    assert found["sides"]["b"]["engine"] == "port"
    assert found["tolerance"]["lockstep"] is True
    assert [outcome["name"] for outcome in found["outcomes"]] == ["logit"]
    page = files["html"].read_text()
    assert "a loop in another framework" in page
    assert "ports.py, NumPy" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--against-recording a b train.py", "runs no program, so train.py has no effect"),
        ("--watch --against-recording a b", "runs no program, so --watch has no effect"),
        ("--html nowhere/page --against-recording a b", "cannot be written"),
        ("", "Name one, or two recordings with --against-recording"),
    ],
)
def test_a_program_or_two_recordings_are_needed(
    capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    """Options of programs are refused beside recordings."""
    assert main.main(["verify", *arguments.split()]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [64, 1024])
def test_mistakes_are_found(tmp_path: pathlib.Path, batch_size: int) -> None:
    """Of all plants 19 in 20 are found, and 17 in 20 have the right cause."""
    bag_model.record(tmp_path / "a", steps=4, batch_size=batch_size)
    missed, unnamed = [], []
    for number, (name, plant) in enumerate(PLANTS.items()):
        result = compared(plant.port, tmp_path / "a", tmp_path / f"b{number}")
        if result.status != Status.DIFFERENT:
            missed.append(name)
        elif not is_named(plant, result):
            unnamed.append((name, result.causes))
    assert len(missed) <= len(PLANTS) * 0.05, missed
    assert len(missed) + len(unnamed) <= len(PLANTS) * 0.15, unnamed


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [64, 1024])
def test_honest_ports_are_equal(tmp_path: pathlib.Path, batch_size: int) -> None:
    bag_model.record(tmp_path / "a", steps=20, batch_size=batch_size)
    for number, (name, port) in enumerate(COMBINED.items()):
        result = compared(port, tmp_path / "a", tmp_path / f"b{number}")
        assert result.equal, f"{name}\n{result}"

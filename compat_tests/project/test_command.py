"""The test suite as a command: the TPU that it uses, its questions, and its report."""

from __future__ import annotations

import ast
import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.__main__ import Results, files, matrix
from compat_tests.engine import test_conformance
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.support import fresh, oracles, probes, tpus
from compat_tests.support.paths import SUITE
from tf2_engine import OPTIMIZERS, soft_tpu

NOT_TRAINED = {"MDLAdagradLight"}
"""It has no public rule to be held to."""


@pytest.fixture
def own_tpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A TPU of four cores that is the machine's own; a software TPU stands in for it.

    Yields:
        What was asked for, in order.
    """
    asked: list[Any] = []
    make = soft_tpu.SoftTPUStrategy

    def initialize(resolver: Any) -> None:
        asked.append(("initialize", resolver))

    def strategy(resolver: Any) -> Any:
        asked.append(("strategy", resolver))
        return make(4)

    monkeypatch.setattr(tpus, "is_own", lambda: True)
    monkeypatch.setattr(tpus, "resolver", lambda: "the local one")
    monkeypatch.setattr(tpus, "initialize", initialize)
    monkeypatch.setattr(tpus, "strategy_over", strategy)
    monkeypatch.setattr(soft_tpu, "SoftTPUStrategy", no_software)
    test_conformance.train.cache_clear()
    yield asked
    test_conformance.train.cache_clear()


def no_software(*_: Any) -> Any:
    """Stands for the software TPU where none may be asked for."""
    raise AssertionError("the software TPU was asked for")


def test_kernels_of_another_make_are_the_machines_own_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for a TPU that this process did not load are those of a TPU."""
    monkeypatch.setattr(soft_tpu, "ops_with_kernels", list)
    assert not tpus.is_own()
    monkeypatch.setattr(soft_tpu, "ops_with_kernels", lambda: ["ConfigureTPUEmbedding"])
    monkeypatch.setattr(soft_tpu, "is_loaded", lambda: True)
    assert not tpus.is_own()
    monkeypatch.setattr(soft_tpu, "is_loaded", lambda: False)
    assert tpus.is_own()


def test_the_tpu_is_that_of_this_machine() -> None:
    """The resolver is the local one: nothing outside of this process is asked."""
    resolver = tpus.resolver()

    assert isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver)
    assert resolver.master() == ""


@pytest.mark.full
def test_a_machine_with_a_tpu_runs_the_suite_on_it(own_tpu: list[Any]) -> None:
    """The TPU's own strategy is used, initialised anew for each engine, without a software TPU.

    Cases for fewer cores than it has give the reference's numbers on it all the same.
    """
    combinations = [
        dataclasses.replace(one, place=place, driver="tpu", accumulation="accumulated")
        for place, one in zip(
            ("1x1", "1x2", "1x1"),
            [one for one in test_conformance.full() if one.optimizer == "Adam"][:3],
            strict=True,
        )
    ]
    for number, one in enumerate(combinations):
        test_conformance.check((one,), 0)
        wanted = [("initialize", "the local one"), ("strategy", "the local one")]
        assert own_tpu == wanted * (number + 1)


def test_what_a_tpu_cannot_show_is_left_out_by_name(own_tpu: list[Any]) -> None:
    """Tests that need another number of cores are left out, with both numbers as the reason."""
    per_core = next(
        dataclasses.replace(one, place="1x2", driver="tpu")
        for one in test_conformance.full()
        if one.optimizer == "Adagrad" and one.accumulation == "per core"
    )
    with pytest.raises(pytest.skip.Exception, match="needs 2 cores, the TPU has 4: accumulation"):
        test_conformance.check((per_core,), 0)
    with pytest.raises(pytest.skip.Exception, match="needs 8 cores, the TPU has 4"):
        tpus.strategy(8)


def test_probes_use_the_cores_that_there_are(own_tpu: list[Any]) -> None:
    """Questions about several cores are put to all of them, and the others to one."""
    asked = probes.probes()
    order = float(asked["order of cores"].ask("tpu"))
    two = float(asked["features of a table"].ask("tpu"))

    # Core 0 owns row 0. Gradients 1 to 4 of Adagrad from an accumulator of 0.1, one by one.
    squares = 0.1 + np.cumsum(np.arange(1.0, 5.0) ** 2)
    # A term rounds at most 4 times, and carries half of what up to 4 additions to its accumulator
    # rounded; 3 more roundings add the terms up, which are of one sign.
    rel = (4 + 2 + 3) * UNIT_ROUNDOFF
    assert order == pytest.approx(-float(np.sum(np.arange(1.0, 5.0) / np.sqrt(squares))), rel=rel)
    assert two == pytest.approx(-3.0 / 9.1**0.5, rel=rel)


@pytest.mark.full
@pytest.mark.parametrize("driver", ["host", "native", "tpu"])
def test_what_is_chosen_is_what_drivers_here_answer(driver: str) -> None:
    """Every question has an answer; where the choice is a number, the drivers here give it."""
    answers = {one["name"]: one for one in probes.ask_all(driver)}

    assert set(answers) == set(probes.probes())
    for name, number in {
        "decay of gradient descent": 2.0,
        "decay before the rule": 0.443515,
        "infinity": -1.0,
        "weight of zero": 1.0,
        "negative weight": 0.5,
        "weights that sum to zero": 0.0,
        "negative sum of weights": 2.5,
        "rounding of a mean": 1.6666667,
        **{name: float(one.chosen) for name, one in probes.probes().items() if "rule of" in name},
    }.items():
        # What is chosen is printed with seven digits: half of the last is at most 5e-7 of it. An
        # answer rounds a few times, 6e-8 of it each; of 1, where little is left of a row of 1.
        assert answers[name]["answer"] == pytest.approx(number, rel=1e-6, abs=4 * UNIT_ROUNDOFF), (
            name
        )
    for name in ("NaN", "weight of NaN"):
        assert np.isnan(answers[name]["answer"])
    for name in ("id beyond the table", "negative id", "id of 33 bits"):
        assert "Error" in answers[name]["answer"] or "Invalid" in answers[name]["answer"], name


def test_every_oracle_is_there() -> None:
    """What the table of oracles names are tests of the suite, and all files of it."""
    stock = functions("tpu/test_stock_conformance.py")
    for file, oracle in oracles.FILES.items():
        assert oracle.default in (oracles.STOCK_RUN, oracles.STOCK_GRAPH, oracles.REFERENCE)
        assert set(oracle.stock_runs) <= functions(file), file
        assert set(oracle.stock_runs.values()) <= stock, file


def functions(file: str) -> set[str]:
    tree = ast.parse((SUITE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_oracle_depends_on_what_stock_has() -> None:
    """An optimizer that stock has no class for is held to the references alone."""
    conformance = "test_steps_follow_the_reference"

    assert oracles.oracle_of("engine/test_conformance.py", conformance, "Adam") == "stock run"
    assert (
        oracles.oracle_of("engine/test_conformance.py", conformance, "Adadelta") == "reference only"
    )
    assert oracles.oracle_of("engine/test_optimizers.py", "test_any", "Adam") == "reference only"
    assert oracles.oracle_of("tpu/test_tpu_driver.py", "test_any", None) == "stock graph"


def test_the_report_counts_by_property_and_oracle() -> None:
    """A row of the matrix has driver, optimizer, oracle, property and the number of outcomes."""
    results = Results(None)
    one = {"driver": "tpu", "optimizer": None, "oracle": "stock graph", "property": "It holds."}
    results.tests = [{**one, "outcome": outcome} for outcome in ("passed", "passed", "skipped")]

    assert matrix(results.tests) == [
        {**one, "optimizer": "", "passed": 2, "failed": 0, "skipped": 1, "listed": 0}
    ]


def test_stock_is_a_subject_of_its_own(own_tpu: list[Any]) -> None:
    """Stock is tested by one file; on a TPU nothing runs that needs a software TPU."""
    assert files("stock") == ["tpu/test_stock_conformance.py"]
    assert set(files("engine")) == set(oracles.FILES) - {
        "tpu/test_stock_conformance.py",
        "estimator/test_software_tpu_estimator.py",
    }


@pytest.mark.full
def test_the_command_runs_to_its_end(tmp_path: pathlib.Path) -> None:
    """With either TensorFlow it finds its files, every property holds, and the report has them."""
    report = tmp_path / "report.json"
    options = ("--driver", "native", "--report", report)
    ran = fresh.python("-m", "compat_tests", *options, cwd=SUITE.parent)

    assert ran.returncode == 0, ran.stdout[-3000:]
    written = json.loads(report.read_text())
    assert written["tensorflow"] == tf.version.VERSION
    assert {row["driver"] for row in written["matrix"]} == {"native"}
    assert {row["optimizer"] for row in written["matrix"]} == {"", *OPTIMIZERS} - NOT_TRAINED
    assert all(row["passed"] and not row["failed"] for row in written["matrix"])
    assert {one["name"] for one in written["probes"]["native"]} == set(probes.probes())

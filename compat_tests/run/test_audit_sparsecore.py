"""`estimator-bridge audit --target` says what changes for programs on TPUs with SparseCores."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from compat_tests.cases.legacy import Feature, Table
from compat_tests.support import legacy_specs, translating
from compat_tests.support.legacy_specs import OURS
from compat_tests.support.paths import ROOT
from compat_tests.support.translating import optimizer
from estimator_bridge import audit
from estimator_bridge.cli import main
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.row import SPARSE_CORE_OUTCOMES

SPEC, TABLE, FEATURE = "EmbeddingConfigSpec", "table 't'", "feature 'f'"


def on(target: str = "v5p", *, cores: int = 1, batch_size: int = 8, **settings: Any) -> Any:
    """Returns what becomes of a spec with one table and one feature."""
    spec = legacy_specs.build(translating.case(**settings))
    machine = audit.Target(target, cores, batch_size)
    return audit.audit_spec(spec, target=machine).on_sparse_cores


@pytest.mark.parametrize(
    "settings, rule, where, outcome",
    [
        (optimizer("Adagrad", clip_gradient_min=-1.0), "gradient_limits", SPEC, "ignored"),
        (optimizer("Adagrad", clip_weight_max=1.0), "weight_limits", SPEC, "ignored"),
        (
            optimizer("Adagrad", use_gradient_accumulation=False),
            "no_gradient_accumulation",
            SPEC,
            "ignored",
        ),
        (optimizer("Adam", lazy_adam=False), "adam_not_lazy", SPEC, "ignored"),
        (
            {"features": {"f": Feature("t", max_sequence_length=4)}},
            "sequence",
            FEATURE,
            "ignored",
        ),
        (optimizer("Adagrad", weight_decay_factor=0.5), "weight_decay", SPEC, "raises"),
        (optimizer("Adagrad", weight_decay_factor=0.0), "weight_decay_zero", SPEC, "raises"),
        (optimizer("Ftrl", initial_accumulator_value=0.0), "ftrl_zero_accumulator", SPEC, "raises"),
        (optimizer("Momentum", momentum=0.9), "optimizer_lost", SPEC, "raises"),
        ({"tables": {"t": Table(combiner=None)}}, "combiner_none", TABLE, "raises"),
        ({"tables": {"t": Table(hot_id_replication=True)}}, "hot_id_replication", TABLE, "gone"),
        ({"tables": {"t": Table(learning_rate_fn="warming")}}, "learning_rate_fn", TABLE, "other"),
        ({"options": {"clipping_limit": 0.5}}, "clipping_limit", SPEC, "same"),
        ({}, "ids_out_of_range", "all features", "other"),
        ({}, "combiner", TABLE, "same"),
    ],
)
def test_each_setting_has_an_effect(
    settings: dict[str, Any], rule: str, where: str, outcome: str
) -> None:
    """Each setting that is set is listed with what becomes of it, and what to do."""
    effects = {(each.rule, each.where): each for each in on(**settings).effects}

    assert effects[rule, where].outcome == outcome
    assert effects[rule, where].effect == ROWS[rule].sparse_core.effect
    order = list(SPARSE_CORE_OUTCOMES)
    places = [order.index(each.outcome) for each in on(**settings).effects]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_an_effect(name: str) -> None:
    """What becomes of a setting is one of the outcomes, and what is dropped has a way out."""
    effect = ROWS[name].sparse_core

    assert effect.outcome in SPARSE_CORE_OUTCOMES
    assert effect.effect
    assert effect.way_out or effect.outcome not in ("raises", "ignored")


@pytest.mark.parametrize("target, per_core", [("v5p", 4), ("v6e", 2), ("tpu7x", 2)])
def test_stacks_and_memory(target: str, per_core: int) -> None:
    """Tables of one width and optimizer share a stack; bytes are those of padded rows and slots."""
    spec = OURS.EmbeddingConfigSpec(
        table_to_config_dict={
            "a": OURS.TableConfig(10, 6),
            "b": OURS.TableConfig(1000, 7),
            "c": OURS.TableConfig(10, 6, learning_rate=0.5),
        },
        feature_to_config_dict={name: OURS.FeatureConfig(table_id=name) for name in "abc"},
        optimization_parameters=OURS.AdagradParameters(0.1),
    )
    machine = audit.Target(target, cores=2, batch_size=16)
    memory = audit.audit_spec(spec, target=machine).on_sparse_cores
    assert memory is not None

    # 10 rows become 8 on each SparseCore; 1000 on 8 are 125, padded to 128, on 4 they are 250.
    rows = 128 if per_core == 4 else 256
    assert [(s.name, s.rows, s.bytes) for s in memory.stacks] == [
        ("a_b", 8 + rows, (8 + rows) * 8 * 4 * 2),
        ("c", 8, 8 * 8 * 4 * 2),
    ]
    report = memory.as_dict()
    assert report["stacks"][0]["tables"] == ("a", "b")
    assert report["sparse_cores_per_core"] == per_core
    assert json.loads(json.dumps(report))["sample"] is None


def test_batches_and_machines_that_do_not_fit() -> None:
    """Batches that do not divide, and numbers of cores that are no power of two, are remarks."""
    assert on(batch_size=16, cores=2).remarks == ()
    assert "8" in on(batch_size=12, cores=2).remarks[0]
    assert "cannot be divided evenly among 2 cores" in on(batch_size=9, cores=2).remarks[0]
    assert "must be a power of two" in on(batch_size=12, cores=3).remarks[0]
    assert on(batch_size=12, cores=3).stacks == ()


def test_of_a_source(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that is only read is told what its lines mean on the target."""
    path = tmp_path / "job.py"
    path.write_text("o = AdamParameters(0.1, lazy_adam=False, clip_weight_max=1.0)\n")

    main.main(["audit", "--target", "v6e", str(path)])

    text = capsys.readouterr().out
    assert "On v6e, with stock's TPUEmbeddingV2: 2 SparseCores on each core" in text
    assert "adam_not_lazy, job.py:1: lazy_adam=False" in text
    assert "weight_limits, job.py:1: clip_weight_max=1.0" in text


@pytest.mark.full
def test_a_sample_of_an_example(tmp_path: pathlib.Path) -> None:
    """What batches of the program's own input_fn need is counted on the cores of the target.

    In a process of its own: the example turns TensorFlow 2's behavior off.
    """
    script = str(ROOT / "examples" / "sequence" / "train.py")
    options = ["--json", "--run", "--target", "v5p", "--cores", "2", "--sample", "3"]
    command = [*options, script, "--model_dir", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "estimator_bridge", "audit", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    _, as_it_runs = json.loads(ran.stdout)
    sample = as_it_runs["on_sparse_cores"]["sample"]

    assert sample["batches"] == 3
    (need,) = sample["needs"].values()
    # 64 samples on 2 cores, 2 features of 6 positions.
    assert need["cells"] == 32 * 6 * 2
    # At most all ids of the 8 samples of a SparseCore, and at least an 8th of them.
    assert 0 < need["unique_ids"] <= need["ids"] <= 8 * 6 * 2
    assert need["unique_ids"] <= -(-64 // 8) + -(-5 // 8)
    limits = sample["limits"]["max_ids_per_table"]
    assert all(limit >= need["ids"] for limit in limits.values())

"""`estimator-bridge audit --target torch`, and the map of rules that it reads."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from compat_tests.cases.legacy import Feature, Table
from compat_tests.pytorch.settings_of_rules import SETTINGS
from compat_tests.support import legacy_specs, translating
from compat_tests.support.translating import optimizer
from estimator_bridge import audit
from estimator_bridge.cli import main
from estimator_bridge.settings import torch_rules
from estimator_bridge.settings.catalogue import ROWS
from estimator_bridge.settings.torch_rules import EFFECTS, LIBRARIES, OUTCOMES, RULES
from tf2_engine.optimizers import OPTIMIZERS

PROGRAM = """
import tensorflow.compat.v1 as tf
spec = tf.tpu.experimental.EmbeddingConfigSpec(
    feature_columns=columns,
    optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1, clip_weight_max=3.0),
    clipping_limit=3.0,
)
"""


def on_torch(**settings: Any) -> Any:
    spec = legacy_specs.build(translating.case(**settings))
    return audit.audit_spec(spec, target=audit.Target("torch")).on_torch


def lines(**settings: Any) -> str:
    text = " ".join(line.strip() for line in on_torch(**settings).lines())
    return text


@pytest.mark.parametrize(
    "settings, wanted",
    [
        (
            optimizer("Adagrad", initial_accumulator=0.25),
            [
                "torch.optim: equal with settings: Adagrad(lr=rate, "
                "initial_accumulator_value=0.25, eps=0.0)",
                "EXACT_ADAGRAD(learning_rate=rate, eps=0.0), state momentum1 = 0.25",
            ],
        ),
        (
            optimizer("Adam", sum_inside_sqrt=False, epsilon=0.5),
            [
                "torch.optim: equal with settings: SparseAdam(lr=rate, eps=0.5, "
                "betas=(0.9, 0.999)), state step = 10000000",
                "FBGEMM: its source computes the same with settings, but no test has confirmed "
                "this: ADAM(learning_rate=rate, beta1=0.9, beta2=0.999, eps=0.5), state iter = "
                "10000000 (GPUs only)",
                "optax: equal only if every batch has every row: adam(",
            ],
        ),
        (
            optimizer("Adam", epsilon=0.5),
            [
                "torch.optim: no equal optimizer, because epsilon is added to the root, not under "
                "it; the nearest is "
                "SparseAdam(",
                "eps=0.0, eps_root=0.25)",
            ],
        ),
        (
            optimizer("ProximalAdagrad", l1_regularization_strength=0.5),
            ["torch.optim: no equal optimizer, because no rule has the proximal step"],
        ),
        (
            optimizer("Ftrl"),
            [
                f"{each}: no equal optimizer, because the library has no such rule"
                for each in LIBRARIES
            ],
        ),
    ],
)
def test_each_optimizer_has_its_counterparts(settings: Any, wanted: list[str]) -> None:
    """The report gives the call with the program's own settings, or the cause of a difference."""
    text = lines(**settings)
    assert [each for each in wanted if each not in text] == []


@pytest.mark.parametrize(
    "settings, rule",
    [
        ({"tables": {"t": Table(combiner="sqrtn")}}, "combiner"),
        ({"tables": {"t": Table(combiner=None)}}, "combiner_none"),
        ({"features": {"f": Feature("t", weight_key="w")}}, "weighted_feature"),
        ({"features": {"f": Feature("t", max_sequence_length=4)}}, "sequence"),
        ({"options": {"clipping_limit": 3.0}}, "clipping_limit"),
        ({"options": {"partition_strategy": "mod"}}, "mod_partitioning"),
        (optimizer("Adagrad", weight_decay_factor=0.5), "weight_decay"),
        (optimizer("Adagrad", clip_weight_max=1.0), "weight_limits"),
        (optimizer("Adagrad", clip_gradient_min=-1.0), "gradient_limits"),
        (optimizer("Adagrad", use_gradient_accumulation=False), "no_gradient_accumulation"),
        ({}, "ids_out_of_range"),
        ({}, "dense_ids"),
    ],
)
def test_what_changes_is_told_with_its_place(settings: Any, rule: str) -> None:
    """A setting that PyTorch treats otherwise is listed once, and others are not."""
    changes = on_torch(**settings).changes
    assert rule in {each.rule for each in changes}
    always = {each.rule for each in on_torch().changes}
    assert {each.rule for each in changes} - always <= {rule, "combiner"}


def test_a_source_is_told_the_conditions(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a run, each library has its calls by the names of settings, as text and as JSON."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    assert main.main(["audit", "--target", "torch", str(program)]) == 0

    out = capsys.readouterr().out
    assert "  program.py:5: Adagrad\n    torch.optim: equal with settings: Adagrad(lr=" in out
    assert "  clipping_limit, program.py:3: clipping_limit=3.0\n" in out
    assert "ROWWISE" not in out

    assert main.main(["audit", "--json", "--target", "torch", str(program)]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    (found,) = report["on_torch"]["optimizers"]
    assert found["counterparts"]["FBGEMM"][0]["outcome"] == "settings"
    assert "clipping_limit" in {each["rule"] for each in report["on_torch"]["settings"]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_map_has_every_optimizer_and_no_other(name: str) -> None:
    """For all settings each library has one counterpart, which names settings that there are."""
    assert RULES.keys() == OPTIMIZERS.keys()
    assert EFFECTS.keys() <= ROWS.keys()
    fields = {field.name for field in dataclasses.fields(OPTIMIZERS[name])}
    for library, rules in RULES[name].items():
        for rule in rules:
            named = [each for each in rule.arguments.values() if isinstance(each, str)]
            assert {each.removesuffix("**2") for each in named} <= fields
            assert rule.only.keys() <= fields
            assert rule.outcome in OUTCOMES
            assert rule.name or rule.cause
        for settings in SETTINGS.get(name, ()):
            assert torch_rules.counterpart(name, library, settings) in rules
    assert tuple(RULES[name]) == LIBRARIES

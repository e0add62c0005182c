"""The rules in docs/torch.md for rows of a sparse gradient, compared with float64 references."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from compat_tests.pytorch import library_runs
from compat_tests.pytorch.settings_of_rules import SETTINGS
from compat_tests.pytorch.test_rules import FIRST, ROWS, STEPS, expected
from compat_tests.references import optimizers as references
from compat_tests.references import tolerance
from compat_tests.support.paths import ROOT
from estimator_bridge.settings.torch_rules import RULES

pytestmark = pytest.mark.full

PAGE: dict[str, Any] = {}
exec(re.findall(r"```python\n(.*?)```", (ROOT / "docs/torch.md").read_text(), re.S)[0], PAGE)

NAMES = {
    "AdagradMomentum": "adagrad_momentum",
    "Adam": "adam",
    "FTRL": "ftrl",
    "Momentum": "momentum",
    "RMSProp": "rms_prop",
    "CenteredRMSProp": "rms_prop",
    "ProximalAdagrad": "proximal_adagrad",
    "ProximalYogi": "proximal_yogi",
    "Adadelta": "adadelta",
    "FrequencyEstimator": "frequency_estimator",
}
CASES = [
    pytest.param(name, settings, id=f"{name}-{number}")
    for name in NAMES
    for number, settings in enumerate(SETTINGS[name])
]


def test_every_rule_without_an_equal_in_pytorch_has_a_reference() -> None:
    """torch.optim or FBGEMM has an equal for all settings of the others, or there is no formula."""
    equal = {
        optimizer
        for optimizer, by_library in RULES.items()
        for library in ("torch.optim", "FBGEMM")
        for rule in by_library[library]
        if rule.outcome in ("equal", "settings") and not rule.only
    }
    assert set(NAMES) == set(RULES) - equal - {"MDLAdagradLight"}


def _optimizer(
    name: str, settings: Mapping[str, Any], table: Any, **shared: Any
) -> torch.optim.Optimizer:
    rule = PAGE[NAMES[name]]
    known = inspect.signature(rule).parameters
    of_rule = {key: value for key, value in settings.items() if key in known}
    slots = references.OPTIMIZERS[name].initial_slots(settings)
    made: torch.optim.Optimizer = PAGE["RowOptimizer"](
        [table], rule, slots, lr=0.1, **shared, **of_rule
    )
    return made


def _train(optimizer: Any, table: Any, steps: Any) -> None:
    for rows, gradients, rate in steps:
        optimizer.param_groups[0]["lr"] = rate
        twice = torch.tensor(np.concatenate([rows, rows]))[None]
        halves = torch.tensor(np.concatenate([gradients, gradients]) / 2)
        table.grad = torch.sparse_coo_tensor(twice, halves, table.shape)
        optimizer.step()


@pytest.mark.parametrize("name, settings", CASES)
def test_a_reference_implementation_is_equal(name: str, settings: Mapping[str, Any]) -> None:
    """After 50 steps with few rows each, all weights are equal apart from rounding."""
    steps = library_runs.steps_of(ROWS, 4, STEPS, whole=False, constant=False)
    if name == "FrequencyEstimator":
        steps = [step._replace(rate=float(n)) for n, step in enumerate(steps, 1)]
    if settings.get("lazy_adam") is False:
        steps = [_with_all_rows(step) for step in steps]
    table = torch.nn.Parameter(torch.tensor(FIRST))

    _train(_optimizer(name, settings, table), table, steps)

    want, scale = expected(name, settings, steps)
    tolerance.assert_close(
        want, table.detach().numpy(), n_terms=2, steps=STEPS, where=name, scale=scale
    )


def _with_all_rows(step: Any) -> Any:
    dense = np.zeros([ROWS, 4], np.float32)
    dense[step.rows] = step.gradients
    return step._replace(rows=np.arange(ROWS), gradients=dense)


def test_decay_and_limits_come_before_and_after_the_rule() -> None:
    """The weight decays, the summed gradient is limited, the rule runs, the weight is limited."""
    table = torch.nn.Parameter(torch.full([3, 4], 2.0))
    optimizer = _optimizer(
        "Momentum",
        {"momentum": 0.5, "use_nesterov": False},
        table,
        decay=0.25,
        limits=(-1.0, 1.375),
        gradient_limits=(-1.0, 3.0),
    )

    rows = torch.tensor([[0, 0, 1]])
    gradients = torch.tensor([[2.0], [2.0], [-4.0]]).expand(3, 4)
    table.grad = torch.sparse_coo_tensor(rows, gradients, table.shape)
    optimizer.step()

    # 2 - 0.25 * 2 = 1.5, then -0.1 * 3 for the sum 4, and +0.1 * 1 for -4; the limit is 1.375.
    # The rate, the product and the difference round by 2^-24 each.
    np.testing.assert_allclose(table.detach()[:, 0], [1.2, 1.375, 2.0], rtol=3 * 2.0**-24)

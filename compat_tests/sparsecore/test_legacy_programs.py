"""Legacy programs on the arithmetic of SparseCores: `run --arithmetic`, `TPUEstimator(arithmetic)`.

The arithmetic itself is judged by test_host_arithmetic.py; here it is which settings reach it.
"""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compat_tests.programs import clicks, jobs
from compat_tests.run.test_run import PROGRAM
from estimator_bridge import errors
from estimator_bridge.defaults import DEFAULTS
from estimator_bridge.legacy import parameters
from estimator_bridge.runtime.step import devices
from tf2_engine.backends import HostDriver, SparseCoreDriver

SPARSE_CORES = {"arithmetic": "sparsecore"}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The default of the process is as it was after a test."""
    yield
    DEFAULTS.arithmetic = "tpu"


def trained(
    model_dir: pathlib.Path, optimizer: Any, start: Any = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Trains the click program on two cores for three steps.

    Args:
        start: a job, from whose initial values it begins.

    Returns:
        The job, and what is in its checkpoint.
    """
    if start is not None:
        jobs.continue_from(jobs.first_checkpoint(start), str(model_dir))
    job = jobs.make(
        str(model_dir), optimizer, tpu_options={"num_shards": 2}, **{**SPARSE_CORES, **options}
    )
    job.train(clicks.input_fn, max_steps=3)
    return job, jobs.saved(job)


IGNORED = [
    (parameters.AdamParameters(0.1, lazy_adam=False), parameters.AdamParameters(0.1), "lazy_adam"),
    (
        parameters.AdagradParameters(0.1, use_gradient_accumulation=False),
        parameters.AdagradParameters(0.1),
        "use_gradient_accumulation",
    ),
    (
        parameters.AdagradParameters(0.1, clip_gradient_min=-1e-4, clip_gradient_max=1e-4),
        parameters.AdagradParameters(0.1),
        "clip_gradient_min",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize("optimizer, without, setting", IGNORED, ids=[each[2] for each in IGNORED])
def test_what_sparse_cores_ignore_has_no_effect_and_a_warning(
    optimizer: Any,
    without: Any,
    setting: str,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A setting that SparseCores ignore changes no bit there, but does on the first generation."""
    with caplog.at_level(logging.WARNING):
        job, ours = trained(tmp_path / "with", optimizer)
    warned = [text for text in caplog.messages if text.startswith("SparseCores: ")]
    _, plain = trained(tmp_path / "without", without, job)
    _, first = trained(tmp_path / "first", optimizer, job, arithmetic="tpu")

    assert len([text for text in warned if setting in text and "is ignored: " in text]) == 1
    assert jobs.largest_difference(ours, plain)[0] == 0
    assert jobs.largest_difference(ours, first)[0] > 1e-4


@pytest.mark.full
def test_limits_of_weights_and_sequences_are_honoured_and_said(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Limits of weights and sequences, which stock's class drops, are honoured with a warning."""
    limited = parameters.AdagradParameters(0.1, clip_weight_min=-1e-3, clip_weight_max=1e-3)
    with caplog.at_level(logging.WARNING):
        _, saved = trained(tmp_path, limited)

    warned = "\n".join(caplog.messages)
    assert "clip_weight_min=-0.001, clip_weight_max=0.001 is honoured here" in warned
    assert "max_sequence_length" in warned
    slots = {name for name in saved if name.endswith("/Adagrad")}
    tables = {name.removesuffix("/Adagrad") for name in slots}
    moved = [saved[name][(saved[f"{name}/Adagrad"] != 0.1).any(1)] for name in tables]
    assert sum(map(len, moved)) > 0
    assert all(np.abs(rows).max(initial=0) <= np.float32(1e-3) for rows in moved)


@pytest.mark.full
def test_what_cannot_be_had_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    """All settings that cannot be honoured are named in one error before the first step."""
    lost = parameters.MomentumParameters(0.1, 0.9, weight_decay_factor=0.5)
    with pytest.raises(errors.Untranslatable, match="SparseCores cannot honour") as raised:
        trained(tmp_path, lost)

    for words in ("MomentumParameters", "weight_decay_factor=0.5"):
        assert words in str(raised.value)


def test_an_arithmetic_and_an_engine_that_contradict_each_other() -> None:
    for engine, words in (
        (devices.SOFTWARE_TPU, "software TPU has embedding hardware of the first generation"),
        (HostDriver(), "Leave one of the two out"),
    ):
        with pytest.raises(errors.InvalidInput, match=words):
            devices.engine_of(engine, "sparsecore")
    with pytest.raises(errors.InvalidInput, match="must be 'tpu' or 'sparsecore', got 'v5p'"):
        devices.engine_of(None, "v5p")  # type: ignore[arg-type]

    driver = HostDriver(arithmetic="sparsecore")
    assert devices.engine_of(driver, "sparsecore") is driver
    assert devices.engine_of(None, None) == devices.HOST
    DEFAULTS.arithmetic = "sparsecore"
    assert devices.arithmetic_of(devices.engine_of(None, None)) == "sparsecore"
    assert devices.engine_of(None, "tpu") == devices.HOST
    assert not issubclass(SparseCoreDriver, HostDriver)


@pytest.mark.full
def test_a_program_runs_unedited(tmp_path: pathlib.Path) -> None:
    """`run` says whose arithmetic it is, at the start and where the tables are made."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    command = [sys.executable, "-m", "estimator_bridge", "run", "--arithmetic", "sparsecore"]
    ran = subprocess.run(
        [*command, script, str(tmp_path / "job"), "tpu"], capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stderr
    assert ", with the arithmetic of SparseCores." in ran.stderr
    assert "tables; host driver, with the arithmetic of SparseCores, on " in ran.stderr

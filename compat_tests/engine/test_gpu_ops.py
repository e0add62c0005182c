"""The fused ops for tables on a GPU are bitwise equal to the native ops for CPUs.

Without a GPU, the GPU kernels are compiled for many architectures, and run on the CPU in place of
the native ops. On a machine with a GPU, both are compared there; see `make gpu-check`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import CASES
from compat_tests.engine import test_conformance as conformance
from compat_tests.engine.test_gpu_kernels import BATCH, FEATURES, engine, train
from compat_tests.support import fresh
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.backends import HostDriver
from tf2_engine.backends.host.gpu_kernels import GpuKernels
from tf2_engine.native import RULES, cache, gpu_ops, loading

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")

on_gpu = pytest.mark.skipif(not loading.on_gpu(), reason="there is no GPU")
"""Marks tests that need one."""

WITH_POWERS = ("FTRL", "AdagradMomentum")
"""Kinds of optimizers that may take powers, which a GPU rounds otherwise."""
POWER_TOLERANCE = 1e-6
"""Absolute, of weights of about one after three steps; and relative. Powers are off by 2 ulp."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_kernels_compile(rule: str, arch: str) -> None:
    """NVRTC compiles the kernels of every rule for every architecture."""
    try:
        gpu_ops.nvrtc()
    except cache.CannotBuild as error:
        pytest.skip(str(error))
    assert gpu_ops.compile_kernels(arch, rule).startswith(b"\x7fELF")


@pytest.mark.parametrize("tier", ["--quick", pytest.param("--thorough", marks=pytest.mark.full)])
def test_kernels_have_the_bits_of_the_native_ops(tier: str) -> None:
    """On a CPU that runs them, the trainings of the conformance tests end with equal numbers."""
    process = fresh.module("compat_tests.support.gpu_shim", tier)
    assert process.returncode == 0, process.stderr
    assert "differs" not in process.stdout, process.stdout
    arrays, lookups, reads = (int(word) for word in process.stdout.split() if word.isdigit())
    assert arrays > 500
    assert lookups > 20
    assert reads > 12


@pytest.mark.parametrize(
    "module", ["test_native_bad_input", "test_native_row_splits", "test_native_ids_of_step"]
)
def test_bad_input_is_refused_as_on_a_cpu(module: str) -> None:
    """Tests of the native ops pass on those for GPUs: an error each time, in the same words."""
    process = fresh.module(
        "compat_tests.support.gpu_shim", f"compat_tests/native/{module}.py", "-m", "not full"
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("compat_tests/engine/test_gpu_batches.py", "-m", "not full"),
        pytest.param(
            ("compat_tests/engine/test_gpu_batches.py", "-m", "full"), marks=pytest.mark.full
        ),
        # These batches need no other op in any case.
        (
            *("--raw", "compat_tests/native/test_native_ids_of_step.py", "-m", "not full"),
            *("-k", "not read_by_no_other_op"),
        ),
    ],
    ids=["batches", "more batches", "ids of step"],
)
@pytest.mark.skipif(loading.on_gpu(), reason="there the tests run in this process")
def test_batches_on_a_gpu_are_read_by_its_kernels(arguments: tuple[str, ...]) -> None:
    """Tests of such batches pass on the CPU that runs the kernels."""
    process = fresh.module("compat_tests.support.gpu_shim", *arguments)
    assert process.returncode == 0, process.stdout
    assert "skipped" not in process.stdout, process.stdout


@pytest.mark.skipif(loading.on_gpu(), reason="there the ops can be loaded")
def test_without_kernels_tensorflows_ops_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, once; who requires the native ops gets that as an error."""
    reason = "there is no NVRTC"
    monkeypatch.setattr(loading, "on_gpu", lambda: True)
    monkeypatch.setattr(gpu_ops, "load", lambda rules: loading.Loaded(None, reason))
    loading._warn_once.cache_clear()
    for _ in range(2):
        embedding = engine(HostDriver())
        embedding.build_for([(BATCH,)] * FEATURES)
        assert isinstance(embedding._driver._configured.kernels, GpuKernels)  # type: ignore[attr-defined]
    assert sum(reason in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(errors.InvalidSpec, match=reason):
        engine(HostDriver(native=True)).build_for([(BATCH,)] * FEATURES)
    engine(HostDriver(native=False)).build_for([(BATCH,)] * FEATURES)


def test_nvrtc_names_what_it_cannot_compile() -> None:
    """A GPU that is newer than NVRTC is named, and what NVRTC says of it."""
    try:
        gpu_ops.nvrtc()
    except cache.CannotBuild as error:
        pytest.skip(str(error))
    with pytest.raises(cache.CannotBuild, match=r"sm_7777"):
        gpu_ops.compile_kernels("sm_7777", "adagrad")


def optimizer_of(name: str) -> Any:
    case = CASES[name]
    rate = (lambda: tf.constant(1.0)) if case.rate_is_step else 0.1
    return conformance.OPTIMIZERS[case.kind](rate, **case.settings)


FUSED = [
    name
    for name, optimizer in ((name, optimizer_of(name)) for name in CASES)
    if optimizer.looks_up_rows and not optimizer.updates_all_rows and optimizer.no_rule is None
]
"""The cases of which the fused ops compute everything."""


def trained_on(device: str, kind: str, name: str) -> list[Any]:
    """Returns the activations of the last step of a training on a device, and the tables after."""
    combiner = {"dense": "sum", "sparse": "sqrtn", "ragged": "mean"}[kind]
    with tf.device(device):
        optimizer = optimizer_of(name)
        dims = (1, 1, 1) if optimizer.only_dim == 1 else (8, 8, 5)
        embedding = engine(HostDriver(), optimizer=optimizer, combiner=combiner, dims=dims)
        embedding.build_for([(BATCH,)] * FEATURES)
        # A GPU draws other numbers than a CPU, by a bit.
        chance = np.random.default_rng(7)
        for table in embedding.tables.values():
            parameters = table.variables["parameters"][0]
            parameters.assign(chance.normal(size=parameters.shape).astype(np.float32))
        values = train(embedding, kind)
    assert "native ops" in repr(embedding._driver)
    assert ("on a GPU" in repr(embedding._driver)) == ("GPU" in device)
    return values


@on_gpu
@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
@pytest.mark.parametrize("name", FUSED)
def test_a_gpu_has_the_bits_of_a_cpu(kind: str, name: str) -> None:
    """So it is but for optimizers with powers, whose numbers are near; and runs repeat."""
    first, again = (trained_on("/GPU:0", kind, name) for _ in range(2))
    expected = trained_on("/CPU:0", kind, name)
    for one, repeated, other in zip(first, again, expected, strict=True):
        np.testing.assert_array_equal(one, repeated)
        if CASES[name].kind in WITH_POWERS:
            np.testing.assert_allclose(one, other, rtol=POWER_TOLERANCE, atol=POWER_TOLERANCE)
        else:
            np.testing.assert_array_equal(one, other)


@on_gpu
@pytest.mark.parametrize("dim", [1, 3, 64, 100, 260])
@pytest.mark.parametrize("rows", [1, 7, 100_000])
def test_long_runs_have_the_bits_of_a_cpu(rows: int, dim: int) -> None:
    """Rows that a batch has once, a few times, and thousands of times are summed in order."""
    chance = np.random.default_rng(rows)
    ids = tf.constant(chance.integers(rows, size=5000))
    gradient = tf.constant(chance.normal(size=(5000, dim)).astype(np.float32))
    results = []
    for device in ("/GPU:0", "/CPU:0"):
        with tf.device(device):
            table = TableSpec("t", rows, dim, "sum", Adagrad(0.1), tf.ones_initializer())
            spec = EngineSpec((table,), (FeatureSpec("f", "t"),))
            embedding = TPUEmbedding(spec, driver=HostDriver())
            embedding.enqueue({"f": ids})
            embedding.dequeue()
            embedding.apply_gradients({"f": gradient})
            results.append([value[0].numpy() for value in embedding.tables["t"].variables.values()])
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(actual, expected)

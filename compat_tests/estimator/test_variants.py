"""Columns and model_fns that TPU programs use, compared with stock on the software TPU.

The goldens are results of stock 2.15.1 (goldens/record_variants.py). The bridge is compared with
them on every version, and without a TPU also with stock itself.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.goldens.record_variants import PATH, STEPS, run
from compat_tests.programs import tiny
from compat_tests.programs.variants import VARIANTS, Variant
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu

if HAS_STOCK:
    from compat_tests.support import stock

GOLDENS = json.loads(PATH.read_text())
QUICK = {
    "sequence with gaps",
    "multivalent sequence",
    "tensor core beside embedding core",
    "shared on the tensor core",
    "bfloat16_scope",
    "outside_compilation",
    "cross_replica_sum",
}


def close(expected: dict[str, Any], results: dict[str, Any], rounding: float) -> None:
    """Compares the saved and reported values of two runs.

    Each step each side rounds a few sums of fewer than twenty terms, of a magnitude of at most 4.
    """
    allowed = STEPS * 20 * 4.0 * rounding
    for kind, values in expected.items():
        assert set(values) == set(results[kind]), kind
        for name, value in values.items():
            np.testing.assert_allclose(
                results[kind][name], value, rtol=0, atol=allowed, err_msg=f"{kind}: {name}"
            )


def test_every_variant_has_a_golden() -> None:
    assert {variant.name for variant in VARIANTS} == set(GOLDENS)
    assert len(GOLDENS) == len(VARIANTS)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, marks=[] if v.name in QUICK else pytest.mark.full, id=v.name)
        for v in VARIANTS
    ],
)
def test_the_bridge_does_what_stock_did_on_a_tpu(variant: Variant, tmp_path: pathlib.Path) -> None:
    """Checkpoint, metrics and reported activations are those of the goldens."""
    results = run(variant, estimator, tmp_path, use_tpu=True)
    close(GOLDENS[variant.name], results, variant.rounding)


@pytest.mark.full
@pytest.mark.stock
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_goldens_of_variants_are_fresh(variant: Variant, tmp_path: pathlib.Path) -> None:
    with software_tpu.stock_on_software_tpu():
        results = run(variant, stock.ESTIMATOR, tmp_path, use_tpu=True)
    close(GOLDENS[variant.name], results, variant.rounding)


@pytest.mark.full
@pytest.mark.stock
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_without_a_tpu_the_bridge_does_what_stock_does(
    variant: Variant, tmp_path: pathlib.Path
) -> None:
    theirs, ours = (
        run(variant, namespace, tmp_path / name, use_tpu=False)
        for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator))
    )
    assert theirs == ours


# --- What is refused, on both sides -------------------------------------------------------


def outcomes(tmp_path: pathlib.Path, variant: Variant, *, use_tpu: bool) -> list[Any]:
    """Returns the errors of two training steps on the bridge, and on stock if there is one."""
    results = []
    for name, namespace in (
        ("bridge", estimator),
        *([("stock", stock.ESTIMATOR)] if HAS_STOCK else []),
    ):
        on_tpu = name == "stock" and use_tpu
        with software_tpu.stock_on_software_tpu() if on_tpu else contextlib.nullcontext():
            job = variant.make(namespace, tmp_path / name, use_tpu=use_tpu)
            with pytest.raises(Exception) as caught:  # noqa: PT011 - compared by the tests
                job.train(variant.input_fn, steps=2)
            results.append(caught)
    return results


@pytest.mark.parametrize("use_tpu", [True, False])
def test_a_loss_that_is_nan_ends_a_training(use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """A NaN loss raises NanLossDuringTrainingError, in loops and without; nothing is saved.

    (On a software TPU the optimizer of stock's tables fails on the gradient before that.)
    """
    variant = Variant("NaN", body=_nan)
    for caught in outcomes(tmp_path, variant, use_tpu=use_tpu)[: 1 if use_tpu else None]:
        assert caught.type is tf.train.NanLossDuringTrainingError
    results = sorted(path.name for path in (tmp_path / "bridge").glob("*.index"))
    assert results == ["model.ckpt-0.index"]


def _nan(columns: Any) -> tiny.Body:
    inner = tiny.plain(columns)
    return lambda features: inner(features) * np.nan


@pytest.mark.parametrize("use_tpu", [True, False])
def test_columns_of_the_cpu_are_for_inference(use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """`embedding_lookup_device="cpu"` in training is the column's own ValueError, as with stock."""
    variant = Variant("cpu", lambda: [tiny.column(embedding_lookup_device="cpu")])
    for caught in outcomes(tmp_path, variant, use_tpu=use_tpu):
        assert caught.type is ValueError
        assert 'embedding_lookup_device="cpu"' in str(caught.value)


@pytest.mark.parametrize("what", ["host_call", "eval_metrics"])
def test_functions_on_the_host_have_no_v1_summaries(what: str, tmp_path: pathlib.Path) -> None:
    """`tf.compat.v1.summary` in a host call is refused by name: nothing would write it."""

    def function(output: Any) -> Any:
        tf.summary.scalar("mine", tf.reduce_mean(output))
        return {"mean": tf.metrics.mean(output)} if what == "eval_metrics" else output

    variant = Variant(what, model_options=lambda output, loss: {what: (function, [output])})
    if what == "host_call":
        caught, *_ = results = outcomes(tmp_path, variant, use_tpu=True)
        assert all(issubclass(each.type, ValueError) for each in results)
    else:
        with pytest.raises(ValueError, match="eval_metrics") as caught:
            variant.make(estimator, tmp_path, use_tpu=True).evaluate(variant.input_fn, steps=1)
    assert f"{what}: tf.compat.v1.summary" in str(caught.value)

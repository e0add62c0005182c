"""Honest pairs: one program on two engines, kernels, summation orders or TensorFlow versions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_checkpoints
from compat_tests.verify.power import seams
from compat_tests.verify.power.comparing import Run
from compat_tests.verify.power.other_version import RunElsewhere
from compat_tests.verify.power.program import ROWS, Model, Program
from estimator_bridge.verification.perturbation import perturbed

_PLAIN = Model(amplified=("", 0.0), ticks=0.0)
_SOME = ("users", "items", "words")

PROGRAMS: dict[str, Program] = {
    # Batch norm cancels the bias before it, so the gradient of this bias is only rounding, which
    # Adam turns into steps of full size.
    "normed": Program(tables=_SOME, model=_PLAIN, evaluates=True, predicts=True),
    "plain": Program(
        tables=("flags", "places", "rare"),
        model=dataclasses.replace(_PLAIN, normed=False, dropout=0.0),
        evaluates=True,
        predicts=True,
    ),
    "small": Program(tables=("flags", "places")),
    "clipped": Program(
        tables=("flags", "tags"), model=dataclasses.replace(_PLAIN, normed=False), evaluates=True
    ),
    "extremes": Program(tables=("users", "rare", "loud", "heavy"), evaluates=True),
    "shuffled": Program(tables=("users", "items"), shuffled=True, evaluates=True, predicts=True),
    "two cores": Program(tables=("users", "flags", "items"), cores=2, model=_PLAIN),
    "all tables": Program(tables=tuple(ROWS), evaluates=True),
}
"""The programs, keyed by name."""

BATCH_SIZES = (64, 1024, 8192)
SEEDS = (0, 1, 2)


def _reversed(ids: Any, g: Any) -> Any:
    return tf.reverse(ids, [0]), tf.reverse(g, [0])


@contextlib.contextmanager
def _reordered() -> Iterator[None]:
    """Sums the gradients of every table from the last sample to the first."""
    with contextlib.ExitStack() as stack:
        for table in ROWS:
            stack.enter_context(seams.contributions(table, _reversed)())
        yield


@contextlib.contextmanager
def _rounded_otherwise() -> Iterator[None]:
    """Moves each occurrence's gradient by one unit in the last place, up or down."""

    def nudged(ids: Any, g: Any) -> Any:
        def nudge(value: Any) -> Any:
            limits = np.where(np.arange(value.size) % 2, -np.inf, np.inf).astype(np.float32)
            return np.nextafter(value, limits.reshape(value.shape))

        moved = tf.numpy_function(nudge, [g], tf.float32)
        moved.set_shape(g.shape)
        return ids, moved

    with contextlib.ExitStack() as stack:
        for table in ROWS:
            stack.enter_context(seams.contributions(table, nudged)())
        yield


def _perturbed(checkpoint: str, changed: str) -> str:
    """Writes a checkpoint in which each float is replaced by the next one up or down."""
    return legacy_checkpoints.changed(
        checkpoint, changed, lambda name, value: perturbed(name, np.asarray(value), 1)
    )


class Pair(NamedTuple):
    """Two honest sides.

    Attributes:
        name: what side B is, or does differently.
        key: sides A with the same key share one recording.
    """

    name: str
    program: str
    key: str
    a: Run
    b: Run

    @property
    def title(self) -> str:
        size, seed = self.a.program.batch_size, self.a.program.seed
        return f"{self.program}, batch {size}, seed {seed}: {self.a.side} against {self.name}"


def pairs() -> list[Pair]:
    """Returns the pairs that this version of TensorFlow can run."""
    pairs_of_sides: list[Pair] = []
    for (name, program), size, seed in itertools.product(PROGRAMS.items(), BATCH_SIZES, SEEDS):
        sized = dataclasses.replace(program, batch_size=size, seed=seed)
        for side, what, a, b in _sides(sized, seed):
            pairs_of_sides.append(Pair(what, name, f"{name} {size} {seed} {side}", a, b))
    return pairs_of_sides


def pairs_across(python: str) -> Iterator[Pair]:
    """Yields pairs whose side B runs in another Python interpreter, with its TensorFlow."""
    asked = [python, "-c", "import tensorflow; print(tensorflow.__version__)"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    for (name, program), size in itertools.product(PROGRAMS.items(), BATCH_SIZES):
        sized = dataclasses.replace(program, batch_size=size)
        ops, elsewhere = Run(sized), RunElsewhere(sized, name=name, python=python)
        key = f"{name} {size} {sized.seed} ops"
        yield Pair(f"TensorFlow {version}", name, key, ops, elsewhere)


def _sides(program: Program, seed: int) -> Iterator[tuple[str, str, Run, Run]]:
    """Yields pairs of a program's runs, with the names of both sides. They depend on the seed."""
    ops = Run(program)
    native = Run(program, side="bridge-native")
    if seed == 0:
        yield "ops", "native ops", ops, native
        yield "ops", "the software TPU", ops, Run(program, side="bridge-software-tpu")
        yield "ops", "itself", ops, ops
    elif seed == 1:
        yield "ops", "sums in another order", ops, Run(program, context=_reordered)
        yield "ops", "perturbed gradients", ops, Run(program, context=_rounded_otherwise)
    else:
        start = dataclasses.replace(ops, start=_perturbed)
        yield "native", "a perturbed start", native, start
    if HAS_STOCK and program.cores == 1:
        # Stock cannot predict with sparse ids on a TPU.
        without = dataclasses.replace(program, predicts=False)
        stock, kernels = Run(without, side="stock-tpu"), ("native", "ops", "software-tpu")[seed]
        yield "stock", f"bridge-{kernels}", stock, Run(without, side=f"bridge-{kernels}")

"""`verify` judges variables that a program's own optimizer moves, and the slots that it makes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.verify.power.comparing import Comparer, Run
from compat_tests.verify.power.program import Model, Program
from estimator_bridge.estimator import EstimatorSpec
from estimator_bridge.recording.files import GRADIENTS
from estimator_bridge.verification.findings import Status
from estimator_bridge.verification.record.capture import Capture, capturing_model_fn
from estimator_bridge.verification.result import Result


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam with weight decay, in variables of its own that it makes with `get_variable`.

    `ulps` moves every gradient by so many units in the last place, alternately up and down.
    """

    beta2: float = 0.999
    epsilon: float = 1e-5
    decay: float = 0.01
    rate: float = 0.003
    ulps: int = 0

    def gradients(self, loss: Any) -> list[tuple[Any, Any]]:
        variables = tf.trainable_variables()
        gradients = tf.gradients(loss, variables)
        moved = map(self._moved, gradients) if self.ulps else gradients
        return list(zip(moved, variables, strict=True))

    def _moved(self, gradient: Any) -> Any:
        signs = 1.0 - 2.0 * tf.cast(tf.range(tf.size(gradient)) % 2, tf.float32)
        return gradient * (1.0 + self.ulps * 2.0**-23 * tf.reshape(signs, tf.shape(gradient)))

    def update(self, pairs: Iterable[tuple[Any, Any]], global_step: Any) -> Any:
        steps = [global_step.assign_add(1)]
        for gradient, variable in pairs:
            m, v = (
                tf.get_variable(
                    f"{variable.op.name}/{name}",
                    variable.shape,
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )
                for name in ("adam_m", "adam_v")
            )
            gradient = tf.convert_to_tensor(gradient)
            new_m = 0.9 * m + 0.1 * gradient
            new_v = self.beta2 * v + (1.0 - self.beta2) * tf.square(gradient)
            update = new_m / (tf.sqrt(new_v) + self.epsilon) + self.decay * variable
            steps += [m.assign(new_m), v.assign(new_v), variable.assign_sub(self.rate * update)]
        return tf.group(*steps)


RIGHT = Adam()


class OwnOptimizer(tf.train.Optimizer):
    """An optimizer that applies gradients itself, as the one of BERT does."""

    def __init__(self, adam: Adam) -> None:
        super().__init__(use_locking=False, name="OwnOptimizer")
        self._adam = adam

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return self._adam.gradients(loss)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any, name: Any = None) -> Any:
        return self._adam.update(grads_and_vars, global_step)


class LooseOptimizer(tf.train.Optimizer):
    """Makes the same update when it computes gradients, so that none are recorded."""

    def __init__(self, adam: Adam) -> None:
        super().__init__(use_locking=False, name="LooseOptimizer")
        self._adam = adam
        self._step: Any = None

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._step = self._adam.update(self._adam.gradients(loss), tf.train.get_global_step())
        return []

    def apply_gradients(self, grads_and_vars: Any, global_step: Any, name: Any = None) -> Any:
        return self._step


KINDS = {"own": OwnOptimizer, "loose": LooseOptimizer}
_MODEL = Model(amplified=("", 0.0), ticks=0.0)


def program(kind: str, adam: Adam) -> Program:
    model = dataclasses.replace(_MODEL, optimizer=lambda: KINDS[kind](adam))
    return Program(tables=("users", "flags"), model=model)


@pytest.fixture(scope="module")
def comparer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparer]:
    """A comparer that all tests share, so that each side A is recorded once."""
    with contextlib.closing(Comparer(tmp_path_factory.mktemp("own"))) as shared:
        yield shared


def compared(comparer: Comparer, kind: str, adam: Adam) -> Result:
    return comparer.compare(kind, Run(program(kind, RIGHT)), Run(program(kind, adam)))


def test_rounding_of_recorded_gradients_is_no_difference(comparer: Comparer) -> None:
    """Side B's gradients explain what its optimizer makes of them, so every slot is decided."""
    result = compared(comparer, "own", Adam(ulps=12))

    assert result.equal, str(result)
    assert result.measured
    names = {one.name for one in result.series if one.group == GRADIENTS}
    assert {"hidden/kernel", "norm/gamma", "logits/bias"} <= names


def test_rounding_of_unknown_gradients_is_no_difference(comparer: Comparer) -> None:
    """Equal gradients of the tables do not prove that the gradients of the model are equal."""
    result = compared(comparer, "loose", Adam(ulps=12))

    assert result.status in (Status.EQUAL, Status.UNDECIDED), str(result)
    assert result.measured
    names = {one.name for one in result.series if one.group == GRADIENTS}
    assert names == {"user", "flag"}


FAULTS: dict[str, Adam] = {
    "beta2 of .99": Adam(beta2=0.99),
    "epsilon times 10": Adam(epsilon=1e-4),
    "no weight decay": Adam(decay=0.0),
    "rate larger by one in 1000": Adam(rate=0.003003),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_an_own_optimizer_is_found(name: str, kind: str, comparer: Comparer) -> None:
    result = compared(comparer, kind, FAULTS[name])

    assert result.status == Status.DIFFERENT, str(result)


class Clipping(tf.train.GradientDescentOptimizer):
    """Clips gradients and hands them to its base class."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        clipped = [(tf.clip_by_value(g, -1.0, 1.0), variable) for g, variable in grads_and_vars]
        return super().apply_gradients(clipped, *args, **kwargs)


class Wrapper(tf.train.Optimizer):
    """Hands gradients to another optimizer."""

    def __init__(self, inner: Any) -> None:
        super().__init__(use_locking=False, name="Wrapper")
        self._inner = inner

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        return self._inner.apply_gradients(grads_and_vars, *args, **kwargs)


OPTIMIZERS: dict[str, tuple[Callable[[], Any], float]] = {
    "own": (lambda: OwnOptimizer(RIGHT), 4.0),
    "own in a wrapper": (lambda: Wrapper(OwnOptimizer(RIGHT)), 4.0),
    "clipping": (lambda: Clipping(0.1), 1.0),
    "clipping in a wrapper": (lambda: Wrapper(Clipping(0.1)), 1.0),
    "TensorFlow's": (lambda: tf.train.AdamOptimizer(0.1), 4.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gradients_that_are_applied_last_are_recorded(name: str) -> None:
    """Each step has one gradient of a variable, however many optimizers it passes."""
    optimizer, expected = OPTIMIZERS[name]
    capture = Capture()

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        w, rows = (
            tf.get_variable(name, [3], initializer=tf.ones_initializer()) for name in ("w", "rows")
        )
        loss = tf.reduce_sum(4.0 * w) + tf.reduce_sum(4.0 * tf.gather(rows, [2, 0, 2]))
        chosen = optimizer()
        step = tf.train.get_or_create_global_step()
        train_op = chosen.apply_gradients(chosen.compute_gradients(loss), step)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    with tf.Graph().as_default(), tf.Session() as session:
        spec = capturing_model_fn(model_fn, (), capture, lambda: True)({}, None, "train")
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(spec.train_op)

    for step in capture.flush(2):
        np.testing.assert_array_equal(step[GRADIENTS]["w"], [expected] * 3)
        np.testing.assert_array_equal(step[GRADIENTS]["rows"], [expected, 2 * expected])

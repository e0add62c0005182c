"""Which of the properties stock's own TPUEmbedding does not have on a software TPU, and why.

The list is strict: what is on it has to fail, and in the words that it says.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


def _installed(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version(name).split(".")[:2])


class Difference(NamedTuple):
    """Something that stock does not do.

    Attributes:
        where: the levels of the cases that it is about, by factor.
        says: matches how such a case fails.
        why: the reason.
        here: whether it is so with what is installed.
    """

    where: Mapping[str, Any]
    says: str
    why: str
    here: bool = True


DIFFERENCES = (
    *[
        Difference(
            {"kind": kind},
            f"CannotExpress: .*no optimizer {kind}",
            "tf.tpu.experimental.embedding has five of the thirteen optimizers; the others are "
            "reached by the legacy TPUEmbedding alone",
        )
        for kind in (
            "Adadelta",
            "CenteredRMSProp",
            "FrequencyEstimator",
            "Momentum",
            "ProximalAdagrad",
            "ProximalYogi",
            "RMSProp",
        )
    ],
    Difference(
        {"optimizer": "FTRL from 0"},
        "ValueError: .*initial_accumulator_value` must be a positive",
        "stock takes no initial accumulator of 0, which the device would take",
    ),
    *[
        Difference(
            {"property": "inputs", "mode": mode, "input": name},
            "ValueError: Inconsistent shape",
            "where a position has several ids, stock takes the length from the batch instead of "
            "max_sequence_length, so that it cannot cut the sequence",
        )
        for mode in ("eager", "function")
        for name in ("sequence of several", "sequence of several, weights")
    ],
    Difference(
        {"mode": "eager"},
        "AttributeError: Tensor.op is undefined when eager execution is enabled",
        "stock enqueues in a tf.function alone: it asks ids for the op that made them",
    ),
    Difference(
        {"mode": "graph"},
        "OperatorNotAllowedInGraphError: Using a symbolic `tf.Tensor` as a Python `bool`",
        "stock builds eagerly alone: it asks the TPU whether it is configured, and branches on "
        "the answer",
    ),
    Difference(
        {"property": "as it comes"},
        "TypeError: .*(bool|Expected an int)",
        "2.21 writes a bool to the enum low_dimensional_packing_status of its configuration, which "
        "protobuf 7 refuses; all other cases set the attribute to 0",
        here=_installed("protobuf") >= (7, 0),
    ),
    Difference(
        {"property": "as it comes"},
        "_DictWrapper",
        "2.15 hands a tf.function dicts in a wrapper, which typing_extensions from 4.6 on does not "
        "take for the protocol that they are checked against; all other cases hand it plain ones",
        here=_installed("tensorflow") < (2, 16) and _installed("typing_extensions") >= (4, 6),
    ),
)
"""Everything that stock fails; the first line that is about a case is the one that counts."""


def of(levels: Mapping[str, Any]) -> Difference | None:
    """Returns the line that is about a case, or None."""
    return next((line for line in DIFFERENCES if line.here and is_about(line, levels)), None)


def is_about(line: Difference, levels: Mapping[str, Any]) -> bool:
    """Returns whether a case has all the levels of a line."""
    return all(factor in levels and levels[factor] == level for factor, level in line.where.items())


@contextlib.contextmanager
def judged(
    levels: Mapping[str, Any], record: Callable[[str, str], None] | None = None
) -> Iterator[None]:
    """What runs while it is open succeeds, or fails as the list says; nothing else.

    Args:
        record: pytest's `record_property`; it is told the outcome "listed" of what fails so.

    Raises:
        AssertionError: it succeeds, or fails otherwise, although a line is about it.
    """
    line = of(levels)
    if line is None:
        yield
        return
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        assert re.search(line.says, said), f"{dict(line.where)} fails otherwise: {said}"
        if record is not None:
            record("outcome", "listed")
    else:
        raise AssertionError(
            f"Stock does this now: take {dict(line.where)} ({line.why}) off the list."
        )

"""Replacements of `Saver` and `Scaffold`, which choose what to restore and what to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tf2_engine import errors
from tf2_engine.types import Object, Variable


@dataclasses.dataclass(frozen=True, init=False)
class Saver:
    """Replaces `tf.compat.v1.train.Saver` in a `Scaffold`. `Trainer` writes the checkpoints.

    Attributes:
        renamed: maps names in the checkpoint to the variables that evaluations and predictions
            restore from them; see `ExponentialMovingAverage.variables_to_restore`.
        max_to_keep, keep_checkpoint_every_n_hours: which checkpoints to keep.
    """

    renamed: Mapping[str, Variable]
    max_to_keep: int | None
    keep_checkpoint_every_n_hours: float

    def __init__(
        self,
        var_list: Mapping[str, Variable] | Iterable[Variable] | None = None,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        **settings: Object,
    ) -> None:
        names = var_list if isinstance(var_list, Mapping) else {}
        object.__setattr__(self, "renamed", dict(names))
        object.__setattr__(self, "max_to_keep", max_to_keep)
        object.__setattr__(self, "keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours)

    def save(self, *args: Object, **settings: Object) -> None:
        """Raises OutOfOrder, because `Trainer.train` writes checkpoints."""
        raise errors.OutOfOrder(
            "Saver.save: there is no session to save. Trainer.train writes checkpoints, as its "
            "RunConfig says."
        )

    restore = save


@dataclasses.dataclass(frozen=True)
class Scaffold:
    """Replaces `tf.compat.v1.train.Scaffold` in the result of a model_fn."""

    saver: Saver | None = None
    summary_op: object = None  # has no effect, because all summaries are written

"""What a warm start takes over: `WarmStartSettings`, as `tf.estimator` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from estimator_bridge import errors


class _WarmStartSettings(NamedTuple):
    ckpt_to_initialize_from: Any
    vars_to_warm_start: Any
    var_name_to_vocab_info: Mapping[str, Any]
    var_name_to_prev_var_name: Mapping[str, str]


class WarmStartSettings(_WarmStartSettings):
    """Which variables start with values of another checkpoint.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, or a directory whose latest one is meant.
        vars_to_warm_start: a regular expression over trainable variables and tables; or a list of
            regular expressions over all variables; or a list of variables; or None for those in
            `var_name_to_vocab_info` alone.
        var_name_to_vocab_info: for variables whose rows or columns follow a vocabulary that has
            changed, a `tf.compat.v1.train.VocabInfo`. A table is named without its `part_`.
        var_name_to_prev_var_name: for variables that had another name, their name in the
            checkpoint.

    Raises:
        InvalidInput: no checkpoint is given.
    """

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: Mapping[str, Any] | None = None,
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> WarmStartSettings:
        """Fills in what is missing."""
        if not ckpt_to_initialize_from:
            raise errors.InvalidInput(
                "`WarmStartSettings`: `ckpt_to_initialize_from` must name a checkpoint or its "
                f"directory, got {ckpt_to_initialize_from!r}."
            )
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )

"""`WarmStartSettings` of `tf.estimator`: the variables that a warm start initializes."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from estimator_bridge import errors
from estimator_bridge.legacy.requirements import checked
from tf2_engine.types import Object

Variables: TypeAlias = str | list[Object] | None


@checked
class WarmStartSettings(NamedTuple):
    """The variables that are initialized from another checkpoint.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, or a directory, whose latest checkpoint is used.
        vars_to_warm_start: a regular expression for trainable variables and tables; or a list of
            regular expressions for all variables; or a list of variables; or None for only the
            variables of `var_name_to_vocab_info`.
        var_name_to_vocab_info: the `tf.compat.v1.train.VocabInfo` of each variable whose rows or
            columns follow a vocabulary that has changed. Write the name of a table without the
            ending `/part_<i>`.
        var_name_to_prev_var_name: the name of each variable in the checkpoint, if it differs.

    Raises:
        InvalidInput: no checkpoint is given.
    """

    ckpt_to_initialize_from: Object
    vars_to_warm_start: Variables = ".*"
    var_name_to_vocab_info: Object = None  # dicts after the check
    var_name_to_prev_var_name: Object = None

    def _checked(self) -> WarmStartSettings:
        if not self.ckpt_to_initialize_from:
            raise errors.InvalidInput(
                "`WarmStartSettings`: `ckpt_to_initialize_from` must name a checkpoint or its "
                f"directory, got {self.ckpt_to_initialize_from!r}."
            )
        return self._replace(
            var_name_to_vocab_info=self.var_name_to_vocab_info or {},
            var_name_to_prev_var_name=self.var_name_to_prev_var_name or {},
        )

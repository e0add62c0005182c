"""What the graph of a mode came to: the one thing that the loops run."""

from __future__ import annotations

import dataclasses
from typing import Any

from estimator_bridge.runtime.saving.job_saver import TableVariables


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of training, evaluation or prediction.

    Attributes:
        loss: scalar; None for prediction.
        train_op: training only.
        predictions: a tensor or a dict of tensors; prediction only.
        eval_metric_ops: for each metric (value, update op); evaluation only.
        mean_loss: the metric (value, update op) of the loss; None is its mean over the steps.
        scaffold: a tf.train.Scaffold, or None for the default.
        input_hooks: those that the input needs; they come first.
        hooks: those that the program asks for in this mode.
        chief_hooks: those that the program asks for on the chief.
        host_call: what the host call runs, in steps of training that a device loop makes; or None.
        before_save: called with the session, brings the table variables up to date; or None.
        end_of_loop: the train_op of the last step of a loop, which also brings the table variables
            up to date: stock retrieves the tables then, and what is pending is applied. None is
            the train_op of the other steps.
        tables: which variables are the tables of an embedding spec.
    """

    loss: Any = None
    train_op: Any = None
    predictions: Any = None
    eval_metric_ops: dict[str, Any] = dataclasses.field(default_factory=dict)
    mean_loss: tuple[Any, Any] | None = None
    scaffold: Any = None
    input_hooks: tuple[Any, ...] = ()
    hooks: tuple[Any, ...] = ()
    chief_hooks: tuple[Any, ...] = ()
    host_call: Any = None
    before_save: Any = None
    end_of_loop: Any = None
    tables: TableVariables = dataclasses.field(default_factory=TableVariables)

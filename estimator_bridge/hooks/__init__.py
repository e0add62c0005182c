"""Session hooks for an estimator: early stopping, evaluation, input state, summaries of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.hooks.table_summaries import TableSummaryHook

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.hooks.table_summaries": ["TableSummaryHook"],
    },
)

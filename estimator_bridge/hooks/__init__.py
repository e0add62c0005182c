"""Session hooks for an estimator: early stopping, evaluation, input state, summaries of tables."""

from estimator_bridge.hooks.table_summaries import TableSummaryHook

"""Session hooks for an estimator: early stopping, evaluation, input state, table summaries."""

from estimator_bridge.hooks.table_summaries import TableSummaryHook

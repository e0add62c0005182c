"""Finds out, from the arrays of one step, why updates, lookups or the model differ."""

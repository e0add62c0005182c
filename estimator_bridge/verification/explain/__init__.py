"""Recognises why updates, lookups and the model differ, from the arrays of one step."""

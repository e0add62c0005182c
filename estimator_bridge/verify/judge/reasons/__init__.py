"""Finds the causes of the first difference: changes that would give these numbers."""

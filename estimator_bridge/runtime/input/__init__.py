"""Reads batches from an `input_fn` and splits them over the cores."""

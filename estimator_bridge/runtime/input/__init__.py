"""Reads batches from an `input_fn`, and splits each batch over the cores."""

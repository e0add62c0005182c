"""Heads: what a model's logits mean, with their loss, predictions, metrics and exports."""

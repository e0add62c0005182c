"""Heads, which compute loss, predictions, metrics and export outputs from a model's logits."""

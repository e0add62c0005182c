"""The heads of models: losses, metrics and predictions."""

"""What runs a legacy model: inputs, sessions, the estimator."""

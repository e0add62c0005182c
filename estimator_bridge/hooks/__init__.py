"""Session hooks that use an estimator: early stopping, evaluation during training, input state."""

"""Session hooks that know an estimator: early stopping, evaluation while training."""

"""Tests of `estimator-bridge run`, `install`, and the names that programs find."""

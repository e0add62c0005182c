"""Tests of `estimator-bridge migrate`."""

"""Tests of `estimator-bridge verify`."""

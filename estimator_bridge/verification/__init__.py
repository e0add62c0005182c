"""Compares a program on two engines, step by step; `api.verify` is `estimator_bridge.verify`."""

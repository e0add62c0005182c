"""Compares the results of a program on two engines, step by step (`estimator_bridge.verify`)."""

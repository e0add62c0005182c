"""Tests of `tf2_engine.training`."""

"""Tests of the engine: `tf2_engine`."""

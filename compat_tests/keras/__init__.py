"""Tests of the Keras layer."""

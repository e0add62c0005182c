"""Tests of the translation of legacy specs."""

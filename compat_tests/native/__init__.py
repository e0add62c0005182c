"""Tests of the native ops."""

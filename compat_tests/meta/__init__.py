"""Tests of the references themselves, with numbers worked by hand."""

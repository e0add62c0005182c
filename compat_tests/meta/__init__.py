"""Tests of the references, with numbers worked by hand, and of the suite, with faults."""

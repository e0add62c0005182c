"""Conformance tests: the engine against references written without reading it."""

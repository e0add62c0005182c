"""Builds one step of a model: on the engine, or with ordinary variables."""

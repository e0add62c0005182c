"""Estimators with a model of their own, the heads that they are made of, and their inputs."""

"""Estimators that contain their model, their heads, and their inputs."""

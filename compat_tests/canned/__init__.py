"""Tests of canned estimators, heads and their inputs."""

"""Tests of the project itself: documents, commands, versions."""

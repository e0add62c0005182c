"""Parses a program into text and tree, and edits its text."""

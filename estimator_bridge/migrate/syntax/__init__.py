"""Parses programs, finds what their names stand for, and edits their text."""

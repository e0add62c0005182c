"""A program as text and tree, and edits of its text."""

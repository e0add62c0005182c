"""A program as text and tree: what it says, and edits of it."""

"""The text and the syntax tree of a program, and edits of the text."""

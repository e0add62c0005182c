"""Renders the findings of a comparison: for a terminal, and as an HTML page."""

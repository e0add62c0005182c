"""The causes of a first difference, by what would have made these numbers."""

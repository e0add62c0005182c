"""Ten legacy programs, one for each kind of column, to be audited, translated and migrated.

They are read and run as files; each imports stock's names in another way.
"""

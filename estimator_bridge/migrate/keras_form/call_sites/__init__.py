"""The calls by which a program creates and uses estimators, and their replacements."""

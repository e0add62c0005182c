"""Reduced programs with the calls that TPUEstimator programs make: what `migrate` does with them.

A program is `base.txt` with some of its sections replaced: see `programs.txt`. `verdicts` tells
for each what `audit` says of a form; the table of docs/migrate_corpus.md is made of that.
"""

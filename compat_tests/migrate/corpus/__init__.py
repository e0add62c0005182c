"""Short programs with the calls that TPUEstimator programs make, for `migrate`.

A program is `base.txt` with some sections replaced; see `programs.txt`. `verdicts` says what
`audit` reports for each form, and the table of docs/migrate_corpus.md is made from that.
"""

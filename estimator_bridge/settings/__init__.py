"""The catalogue of legacy settings: a row says what each does; all reports are renderings of it.

`catalogue.ROWS` holds the rows, which are written by subject, in the modules `*_settings`. `detect`
finds which of them a spec is about, as notes, and `render` words the notes: warnings, findings of
the audit, changes of `to_tf2`, causes of `verify`.
Nothing here imports TensorFlow. The tables of the documents are made of the rows, too.
"""

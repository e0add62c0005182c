"""The catalogue of legacy settings: one row says what a setting does, and all reports render rows.

`catalogue.ROWS` holds the rows, which the modules `*_settings` list by subject. `detect` notes
which rows apply to a spec. `render` puts the notes into words: warnings, findings of the audit,
changes of `to_tf2`, causes of `verify`, and the tables of the documentation. Nothing here imports
TensorFlow.
"""

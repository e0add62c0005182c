"""The catalogue of legacy settings: a row says what a setting does, and reports render the rows.

The modules `*_settings` define the rows by subject. `detect` finds the rows that apply to a spec.
`render` words them for warnings, the audit, changes of `to_tf2`, causes of `verify`, and the tables
of the documentation. Nothing here imports TensorFlow.
"""

"""The catalogue of legacy settings: each row says what a setting does. Reports are made of rows.

The modules `*_settings` define the rows by subject. `catalogue` finds the rows that apply to a
spec, and `render` formats them for warnings, the audit, `to_tf2`, `verify` and the documentation.
Nothing here imports TensorFlow.
"""

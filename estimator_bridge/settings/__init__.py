"""The catalogue of legacy settings: a row says what a setting does, and reports render the rows.

The modules `*_settings` define the rows by subject. `detect` finds the rows that apply to a spec.
`render` formats them for warnings, the audit, the changes that `to_tf2` reports, the causes that
`verify` reports, and the tables of the documentation. Nothing here imports TensorFlow.
"""

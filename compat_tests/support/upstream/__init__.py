"""Upstream's own tests, run with the bridge in place of their package, and what they find.

    python -m compat_tests.support.upstream --source DIR

where DIR is a checkout of tensorflow/estimator, at v2.15.0. Nothing of it is part of this project.
"""

"""Runs upstream's own tests with the bridge in place of their package.

    python -m compat_tests.support.upstream --source DIR

DIR is a checkout of tensorflow/estimator at v2.15.0. No part of it is in this project.
"""

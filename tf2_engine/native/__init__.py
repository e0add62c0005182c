"""Kernels in C++, compiled where they run.

A wheel holds the sources alone: a library fits one version of TensorFlow, one compiler and one
kind of processor. It is made at first use, or by `estimator-bridge build-native`; see `build` for
where it is kept and `loading` for when it is used.
"""

"""Callbacks for `fit` that do not depend on one version of Keras's `Callback` class."""

"""Callbacks for `fit`, built on the base class of each Keras."""

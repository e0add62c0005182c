"""Callbacks for `fit`, without the base class of a Keras."""

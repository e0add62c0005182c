"""The callbacks of `fit`, over the base class of each Keras."""

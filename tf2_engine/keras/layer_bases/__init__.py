"""The layers, without the base class of a Keras."""

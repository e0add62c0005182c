"""The layers, over the base class of each Keras."""

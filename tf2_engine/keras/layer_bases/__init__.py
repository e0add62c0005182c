"""The code of the layers, to combine with the `Layer` class of any version of Keras."""

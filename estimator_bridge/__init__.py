"""Legacy TPUEstimator programs with TPU embeddings, on TensorFlow 2."""

__version__ = "0.1.0"

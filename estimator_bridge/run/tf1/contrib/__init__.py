"""What `tf.contrib` had and TensorFlow has no more, as far as TPUEstimator programs use it.

Which name comes from where is in `contrib_names`.
"""

"""The Keras form: a program with a `keras.Model`, without `tf.compat.v1` and the estimator."""

"""Small programs of libraries that are built on tf.estimator; `make libraries` runs them."""

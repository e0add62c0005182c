"""Makes the calls of programs with the columns of `tf.contrib.layers`, on a plain Estimator."""

import tensorflow as tf
from tensorflow.contrib import layers
from tensorflow.contrib.framework.python.ops import arg_scope, variables

tf.flags.DEFINE_string("model_dir", None, "The model_dir.")


def columns():
    words = layers.sparse_column_with_hash_bucket("words", 20)
    kinds = layers.sparse_column_with_keys("kind", ["a", "b"])
    age = layers.real_valued_column("age")
    return [
        layers.embedding_column(words, 3, initializer=tf.ones_initializer()),
        layers.one_hot_column(kinds),
        age,
        layers.bucketized_column(age, [1.0, 3.0]),
    ]


def input_fn():
    features = {
        "words": tf.constant([["x", "y"], ["z", ""], ["", ""], ["x", "x"]]),
        "kind": tf.constant([["a"], ["b"], ["a"], ["b"]]),
        "age": tf.constant([0.0, 1.0, 2.0, 3.0]),
    }
    return features, tf.constant([[1.0], [2.0], [3.0], [4.0]])


def model_fn(features, labels, mode):
    with arg_scope([layers.fully_connected], weights_initializer=tf.ones_initializer()):
        net = layers.input_from_feature_columns(features, columns(), scope="input")
        assert net.shape.as_list() == [4, 3 + 2 + 1 + 3]
        net = layers.fully_connected(net, 1, activation_fn=None, scope="out")
    assert variables.get_unique_variable("out/weights").shape == [9, 1]
    loss = tf.losses.mean_squared_error(labels, net)
    train_op = layers.optimize_loss(
        loss, tf.train.get_global_step(), learning_rate=0.01, optimizer="SGD"
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main(_):
    estimator = tf.estimator.Estimator(model_fn, model_dir=tf.flags.FLAGS.model_dir)
    estimator.train(input_fn, steps=3)
    assert "input/words_embedding/weights" in estimator.get_variable_names()


if __name__ == "__main__":
    tf.app.run()

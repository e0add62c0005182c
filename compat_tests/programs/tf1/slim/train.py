"""Makes the calls of programs with `tf.contrib.slim`, and with an HParams from a flag."""

import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.framework.python.ops import arg_scope
from tensorflow.contrib.slim.nets import resnet_utils

tf.flags.DEFINE_string("model_dir", None, "The model_dir.")
tf.flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
tf.flags.DEFINE_string("hparams", "rate=0.1,sizes[1]=4", "Changes of settings.")


def model_fn(features, labels, mode, params):
    first = slim.variance_scaling_initializer(seed=1)
    with (
        slim.arg_scope(
            [slim.conv2d, slim.fully_connected],
            weights_regularizer=slim.l2_regularizer(0.001),
            weights_initializer=first,
            normalizer_fn=slim.batch_norm,
        ),
        arg_scope([slim.batch_norm], is_training=True, decay=0.9),
    ):
        net = slim.repeat(features, 2, slim.conv2d, params.sizes[1], [3, 3], scope="conv1")
        net = tf.contrib.layers.max_pool2d(net, [2, 2])
        net = resnet_utils.subsample(net, 2)
    net = slim.flatten(net)
    logits = slim.fully_connected(net, 3, activation_fn=None, weights_initializer=first)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    loss += tf.add_n(tf.losses.get_regularization_losses())
    optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(params.rate))
    train_op = tf.contrib.training.create_train_op(loss, optimizer)
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    count = params.batch_size
    images = tf.reshape(tf.sin(tf.range(count * 192, dtype=tf.float32)), [count, 8, 8, 3])
    data = tf.data.Dataset.from_tensor_slices((images, tf.range(count) % 3))
    return data.apply(tf.contrib.data.shuffle_and_repeat(1)).batch(count, drop_remainder=True)


def main(_):
    flags = tf.flags.FLAGS
    hparams = tf.contrib.training.HParams(rate=0.5, sizes=[4, 3], name="a")
    hparams.parse(flags.hparams)
    config = tf.contrib.tpu.RunConfig(
        model_dir=flags.model_dir, tpu_config=tf.contrib.tpu.TPUConfig(num_shards=2)
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, params=hparams, use_tpu=flags.use_tpu, train_batch_size=4
    )
    estimator.train(input_fn, steps=2)
    assert "conv1/conv1_1/BatchNorm/moving_mean" in estimator.get_variable_names()


if __name__ == "__main__":
    tf.app.run()

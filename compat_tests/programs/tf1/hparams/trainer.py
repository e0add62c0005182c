"""Makes the calls of programs whose settings are an HParams, from a flag."""

import tensorflow as tf

tf.flags.DEFINE_string("model_dir", None, "The model_dir.")
tf.flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
tf.flags.DEFINE_string("hparams", "rate=0.5,sizes[1]=3", "Changes of settings.")


def model_fn(features, labels, mode, params):
    assert isinstance(params, tf.contrib.training.HParams)
    net = features["x"]
    with tf.contrib.framework.arg_scope(
        [tf.contrib.layers.fully_connected],
        weights_initializer=tf.contrib.layers.variance_scaling_initializer(seed=2),
        normalizer_fn=tf.contrib.layers.batch_norm,
        normalizer_params={"decay": 0.9, "scale": True, "is_training": True},
    ):
        net = tf.contrib.layers.stack(net, tf.contrib.layers.fully_connected, params.sizes)
    net = tf.contrib.layers.linear(net, 1, weights_initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(net - labels))
    train_op = tf.contrib.layers.optimize_loss(
        loss,
        tf.train.get_global_step(),
        learning_rate=params.rate,
        optimizer=lambda rate: tf.contrib.tpu.CrossShardOptimizer(
            tf.train.GradientDescentOptimizer(rate)
        ),
        clip_gradients=1.0,
        summaries=[],
    )
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    count = params.batch_size
    numbers = tf.reshape(tf.range(count * 2, dtype=tf.float32), [count, 2])
    data = tf.data.Dataset.from_tensor_slices(({"x": numbers}, numbers[:, :1]))
    return data.apply(tf.contrib.data.shuffle_and_repeat(1)).batch(count, drop_remainder=True)


def main(_):
    flags = tf.flags.FLAGS
    hparams = tf.contrib.training.HParams(rate=0.1, sizes=[4, 4], name="a")
    hparams.parse(flags.hparams)
    assert hparams.sizes == [4, 3]
    config = tf.contrib.tpu.RunConfig(
        model_dir=flags.model_dir, tpu_config=tf.contrib.tpu.TPUConfig(num_shards=2)
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, params=hparams, use_tpu=flags.use_tpu, train_batch_size=4
    )
    estimator.train(input_fn, steps=3)


if __name__ == "__main__":
    tf.app.run()

"""Makes the calls of the MNIST program of the TPU repository."""

import tensorflow as tf
from absl import app, flags

flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")
flags.DEFINE_string("tpu", "", "The TPU.")
FLAGS = flags.FLAGS


def metric_fn(labels, logits):
    classes = tf.argmax(logits, axis=1)
    return {"accuracy": tf.metrics.accuracy(labels=labels, predictions=classes)}


def model_fn(features, labels, mode, params):
    image = features["image"] if isinstance(features, dict) else features
    pixels = tf.reshape(image, [-1, 8, 8, 1])
    seed = tf.keras.initializers.glorot_uniform(seed=4)
    net = tf.layers.conv2d(pixels, 4, 3, activation=tf.nn.relu, kernel_initializer=seed)
    net = tf.layers.flatten(tf.layers.max_pooling2d(net, 2, 2))
    logits = tf.layers.dense(net, 10, kernel_initializer=seed)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"class_ids": tf.argmax(logits, axis=1)}
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    step = tf.train.get_global_step()
    rate = tf.train.exponential_decay(0.1, step, 10, 0.96)
    optimizer = tf.train.GradientDescentOptimizer(learning_rate=rate)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=step)
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def input_fn(params):
    images = tf.reshape(tf.sin(tf.range(16 * 64, dtype=tf.float32)), [16, 64])
    data = tf.data.Dataset.from_tensor_slices((images, tf.range(16, dtype=tf.int32) % 10))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def predict_input_fn(params):
    return input_fn(params).map(lambda image, label: {"image": image}).take(2)


def main(argv):
    """Trains, evaluates and predicts."""
    del argv
    resolver = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu) if FLAGS.use_tpu else None
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.model_dir,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=False),
        tpu_config=tf.contrib.tpu.TPUConfig(2, 2),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
        params={"data_dir": ""},
        config=config,
    )
    estimator.train(input_fn=input_fn, max_steps=4)
    estimator.evaluate(input_fn=input_fn, steps=2)
    classes = [
        prediction["class_ids"] for prediction in estimator.predict(input_fn=predict_input_fn)
    ]
    assert len(classes) == 16


if __name__ == "__main__":
    app.run(main)

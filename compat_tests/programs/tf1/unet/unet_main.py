"""Makes the calls of unet3d: spatial partition, and an evaluation of each new checkpoint."""

import os

import numpy as np
import tensorflow as tf
from absl import app, flags

flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")
flags.DEFINE_integer("num_cores", 4, "Cores of the TPU.")
flags.DEFINE_multi_integer("input_partition_dims", [1, 2, 1, 1, 1], "How inputs are divided.")
FLAGS = flags.FLAGS

SIZE, CLASSES, STEPS = 4, 3, 2


def input_fn(params):
    """Returns images with a class for each voxel."""
    voxels = tf.range(4 * SIZE**3)
    images = tf.reshape(tf.sin(tf.to_float(voxels)), [4, SIZE, SIZE, SIZE, 1])
    masks = tf.reshape(tf.one_hot(voxels % CLASSES, CLASSES), [4, SIZE, SIZE, SIZE, CLASSES])
    data = tf.data.Dataset.from_tensor_slices((images, masks)).repeat()
    data = data.batch(params["batch_size"], drop_remainder=True)
    return data.prefetch(tf.contrib.data.AUTOTUNE)


def metric_fn(labels, logits):
    predicted, wanted = tf.argmax(logits, axis=-1), tf.argmax(labels, axis=-1)
    return {"accuracy": tf.metrics.accuracy(labels=wanted, predictions=predicted)}


def model_fn(features, labels, mode, params):
    seed = tf.glorot_uniform_initializer(seed=3)
    layers = tf.contrib.layers
    net = layers.conv3d(
        features, 4, 3, padding="SAME", activation_fn=None, weights_initializer=seed
    )
    net = tf.layers.batch_normalization(net, training=mode == tf.estimator.ModeKeys.TRAIN)
    pooled = layers.max_pool3d(tf.nn.relu(net), [2, 2, 2], [2, 2, 2], padding="VALID")
    pooled = layers.instance_norm(pooled)
    larger = [
        layers.conv3d_transpose(pooled, 4, 2, stride=2, weights_initializer=seed),
        tf.keras.layers.UpSampling3D(size=(2, 2, 2))(pooled),
    ]
    logits = layers.conv3d(
        tf.concat([net, *larger], -1), CLASSES, 1, activation_fn=None, weights_initializer=seed
    )
    probabilities = tf.nn.softmax(logits)
    overlap = tf.reduce_sum(probabilities * labels) / (
        tf.reduce_sum(probabilities) + tf.reduce_sum(labels) + tf.keras.backend.epsilon()
    )
    loss = 1.0 - 2.0 * overlap
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, logits])
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, eval_metrics=metrics)
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 100, 0.9, staircase=True)
    optimizer = tf.contrib.opt.NadamOptimizer(learning_rate=rate, beta1=params["momentum"])
    if params["use_tpu"]:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, step)
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def build_estimator():
    """Returns the estimator; a replica of the model has as many cores as its input has parts."""
    resolver, dims, per_replica, num_shards = None, None, None, FLAGS.num_cores
    if FLAGS.use_tpu:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(None, zone=None, project=None)
        tf.Session.reset(resolver.get_master())
        dims = [FLAGS.input_partition_dims, FLAGS.input_partition_dims]
        per_replica = np.prod(FLAGS.input_partition_dims)
        num_shards = FLAGS.num_cores // per_replica
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.model_dir,
        log_step_count_steps=1,
        tpu_config=tf.contrib.tpu.TPUConfig(
            1,
            num_shards=num_shards,
            num_cores_per_replica=per_replica,
            input_partition_dims=dims,
            per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    return tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=2,
        eval_batch_size=2,
        predict_batch_size=2,
        config=config,
        params={"momentum": 0.9, "use_tpu": FLAGS.use_tpu},
    )


def main(_):
    """Trains, and evaluates each checkpoint until the last."""
    tf.gfile.MakeDirs(FLAGS.model_dir)
    estimator = build_estimator()
    estimator.train(input_fn=input_fn, max_steps=STEPS)
    results = os.path.join(FLAGS.model_dir, "eval")
    tf.gfile.MakeDirs(results)
    writer = tf.summary.FileWriter(results)
    for checkpoint in tf.contrib.training.checkpoints_iterator(
        FLAGS.model_dir, min_interval_secs=0, timeout=10, timeout_fn=lambda: True
    ):
        metrics = estimator.evaluate(input_fn=input_fn, steps=1)
        with tf.Graph().as_default():
            values = [tf.Summary.Value(tag=name, simple_value=v) for name, v in metrics.items()]
            writer.add_summary(tf.Summary(value=values), metrics["global_step"])
        if int(os.path.basename(checkpoint).split("-")[1]) >= STEPS:
            break
    writer.close()


if __name__ == "__main__":
    app.run(main)

"""Makes the calls of XLNet and ALBERT: the names of version 1 by imports, deep paths, relu6."""

import tensorflow.compat.v1 as tf
from absl import flags
from tensorflow.compat.v1 import estimator as tf_estimator
from tensorflow.contrib import cluster_resolver as contrib_cluster_resolver
from tensorflow.contrib import layers as contrib_layers
from tensorflow.contrib import metrics as contrib_metrics
from tensorflow.contrib import tpu as contrib_tpu
from tensorflow.contrib.framework import list_variables, load_checkpoint, nest
from tensorflow.contrib.tpu.proto import compilation_result_pb2 as tpu_compilation_result
from tensorflow.contrib.tpu.python.ops import tpu_ops
from tensorflow.contrib.tpu.python.tpu import (
    tensor_tracer,
    tpu,
    tpu_config,
    tpu_context,
    tpu_feed,
    tpu_function,
    training_loop,
)
from tensorflow.contrib.training.python.training import hparam

import tensorflow.contrib as contrib  # isort: skip

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")

HPARAMS = hparam.HParams(size=6, hidden=[8, 6], rate=0.1)


def model_fn(features, labels, mode, params):
    assert tpu_function.get_tpu_context().number_of_shards == (2 if params["use_tpu"] else None)
    net = features
    for number, size in enumerate(HPARAMS.hidden):
        net = contrib_layers.fully_connected(
            net,
            size,
            weights_initializer=contrib_layers.xavier_initializer(seed=number),
            weights_regularizer=contrib_layers.l2_regularizer(0.01),
        )
        net = contrib_layers.layer_norm(net, begin_norm_axis=-1, begin_params_axis=-1)
    net = contrib_layers.flatten(contrib_layers.dropout(net, 0.9, is_training=False))
    last = contrib_layers.xavier_initializer(seed=9)
    score = tf.squeeze(contrib.layers.linear(net, 1, scope="score", weights_initializer=last), 1)
    loss = tf.losses.mean_squared_error(labels, score) + tf.losses.get_regularization_loss()
    if mode == tf_estimator.ModeKeys.EVAL:

        def metric_fn(score, labels):
            return {"pearsonr": contrib_metrics.streaming_pearson_correlation(score, labels)}

        return contrib_tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [score, labels])
        )
    if params["use_tpu"]:
        loss = loss + 0.0 * tpu_ops.cross_replica_sum(loss)

    def optimizer(rate):
        adam = tf.train.AdamOptimizer(rate)
        return contrib_tpu.CrossShardOptimizer(adam) if params["use_tpu"] else adam

    step = tf.train.get_global_step()
    train_op = contrib_layers.optimize_loss(loss, step, HPARAMS.rate, optimizer, summaries=[])
    return contrib_tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def input_fn(params):
    count = params["batch_size"]
    features = tf.reshape(tf.cos(tf.range(count * 6, dtype=tf.float32)), [count, 6])
    labels = tf.reduce_sum(features, 1)
    return tf.data.Dataset.from_tensors((features, labels)).repeat()


def main(_):
    cluster = contrib_cluster_resolver.TPUClusterResolver("here") if FLAGS.use_tpu else None
    config = tpu_config.RunConfig(
        cluster=cluster,
        model_dir=FLAGS.model_dir,
        tpu_config=tpu_config.TPUConfig(iterations_per_loop=1, num_shards=2),
    )
    estimator = contrib_tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=4,
        eval_batch_size=4,
    )
    estimator.train(input_fn, steps=3)
    estimator.evaluate(input_fn, steps=2)
    shapes = dict(list_variables(FLAGS.model_dir))
    assert shapes["fully_connected_1/weights"] == [8, 6]
    reader = load_checkpoint(FLAGS.model_dir)
    assert nest.flatten([reader.get_tensor("LayerNorm/gamma").shape, 1]) == [8, 1]
    # Imports that are there although they are not used.
    assert all([tpu, tpu_context, tpu_feed, training_loop, tensor_tracer, tpu_compilation_result])


if __name__ == "__main__":
    tf.app.run()

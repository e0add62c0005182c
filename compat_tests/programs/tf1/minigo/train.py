"""Makes the calls of minigo: metrics in a host call, and one spec for both kinds of estimators."""

import functools
import os

import tensorflow as tf
from absl import app, flags
from tensorflow.contrib import cloud as contrib_cloud  # noqa: F401
from tensorflow.contrib import cluster_resolver as contrib_cluster_resolver
from tensorflow.contrib import quantize as contrib_quantize  # noqa: F401
from tensorflow.contrib import summary as contrib_summary
from tensorflow.contrib.tpu.python.tpu import tpu_config as contrib_tpu_config
from tensorflow.contrib.tpu.python.tpu import tpu_estimator as contrib_tpu_estimator
from tensorflow.contrib.tpu.python.tpu import tpu_optimizer as contrib_tpu_optimizer

flags.DEFINE_string("work_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_integer("train_batch_size", 4, "Samples of a core.")
flags.DEFINE_integer("num_tpu_cores", 2, "Cores.")
flags.DEFINE_integer("summary_steps", 2, "Steps from one summary to the next.")
flags.DEFINE_multi_integer("lr_boundaries", [2, 4], "Steps at which the rate changes.")
flags.DEFINE_multi_float("lr_rates", [0.1, 0.01, 0.001], "The rates.")
FLAGS = flags.FLAGS

SIZE = 3
ZLIB = tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.ZLIB)


def write_records(path):
    """Writes boards, with the move and the outcome of each."""
    with tf.python_io.TFRecordWriter(path, options=ZLIB) as writer:
        for number in range(16):
            board = bytes((number + place) % 2 for place in range(SIZE * SIZE))
            values = {
                "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[board])),
                "outcome": tf.train.Feature(
                    float_list=tf.train.FloatList(value=[1.0 if number % 3 else -1.0])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=values))
            writer.write(example.SerializeToString())


def batches(path, batch_size):
    def parse(serialized):
        shapes = {"x": ((), tf.string), "outcome": ((), tf.float32)}
        features = {name: tf.FixedLenFeature(*each) for name, each in shapes.items()}
        parsed = tf.parse_example(serialized, features)
        boards = tf.cast(tf.decode_raw(parsed["x"], tf.uint8), tf.float32)
        parsed["outcome"].set_shape([batch_size])
        labels = {"value_tensor": parsed["outcome"]}
        return tf.reshape(boards, [batch_size, SIZE, SIZE, 1]), labels

    read = functools.partial(tf.data.TFRecordDataset, compression_type="ZLIB")
    data = tf.data.Dataset.from_tensor_slices([path]).flat_map(read).repeat().batch(batch_size)
    return data.filter(lambda each: tf.equal(tf.shape(each)[0], batch_size)).map(parse)


def host_call(value_cost, value_output, value_tensor, step, est_mode=tf.estimator.ModeKeys.TRAIN):
    """Returns the metrics of an evaluation; in training the ops that write them now and then."""
    with tf.variable_scope("metrics"):
        metrics = {
            "value_cost": tf.metrics.mean(value_cost),
            "value_confidence": tf.metrics.mean(tf.abs(value_output)),
            "avg_value_observed": tf.metrics.mean(tf.reduce_mean(value_tensor)),
        }
    if est_mode == tf.estimator.ModeKeys.EVAL:
        return metrics
    eval_step = tf.reduce_min(step)
    writer = contrib_summary.create_file_writer(FLAGS.work_dir, filename_suffix=".host")
    every = contrib_summary.record_summaries_every_n_global_steps(FLAGS.summary_steps, eval_step)
    with writer.as_default(), every:
        contrib_summary.scalar("step", eval_step, step=eval_step)
        for name, metric in metrics.items():
            contrib_summary.scalar(name, metric[1], step=eval_step)
    reset = tf.variables_initializer(tf.local_variables("metrics"))
    is_due = tf.equal(eval_step % FLAGS.summary_steps, tf.to_int64(1))
    return [*contrib_summary.all_summary_ops(), tf.cond(is_due, lambda: reset, tf.no_op)]


def model_fn(features, labels, mode, params):
    """Returns the spec of a mode, for either estimator."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    seed = tf.glorot_uniform_initializer(seed=5)
    net = tf.layers.conv2d(features, 4, 3, padding="same", kernel_initializer=seed)
    net = tf.nn.relu(tf.layers.batch_normalization(net, training=is_training, fused=True))
    net = tf.layers.dense(tf.layers.flatten(net), 1, kernel_initializer=seed)
    value_output = tf.nn.tanh(tf.reshape(net, [-1]))
    value_cost = tf.reduce_mean(tf.square(value_output - labels["value_tensor"]))
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.piecewise_constant(global_step, params["lr_boundaries"], params["lr_rates"])
    optimizer = tf.train.MomentumOptimizer(rate, 0.9)
    if params["use_tpu"]:
        optimizer = contrib_tpu_optimizer.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(value_cost, global_step=global_step)
    arguments = [
        *(tf.reshape(value_cost, [1]), value_output, labels["value_tensor"]),
        tf.reshape(global_step, [1]),
    ]
    evaluated = functools.partial(host_call, est_mode=tf.estimator.ModeKeys.EVAL)
    called = functools.partial(host_call, est_mode=tf.estimator.ModeKeys.TRAIN)
    spec = contrib_tpu_estimator.TPUEstimatorSpec(
        mode=mode,
        predictions={"value_output": value_output},
        loss=value_cost,
        train_op=train_op,
        eval_metrics=(evaluated, arguments),
        host_call=(called, arguments),
    )
    return spec if params["use_tpu"] else spec.as_estimator_spec()


class MovedHook(tf.train.SessionRunHook):
    """Writes a summary after each step."""

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        with tf.summary.FileWriter(FLAGS.work_dir) as writer:
            value = tf.Summary.Value(tag="moved", simple_value=1.0)
            writer.add_summary(tf.Summary(value=[value]), run_values.results)


def get_estimator():
    if not FLAGS.use_tpu:
        config = tf.estimator.RunConfig(save_summary_steps=FLAGS.summary_steps)
        return tf.estimator.Estimator(
            model_fn, model_dir=FLAGS.work_dir, config=config, params=FLAGS.flag_values_dict()
        )
    resolver = contrib_cluster_resolver.TPUClusterResolver("", zone=None, project=None)
    config = contrib_tpu_config.RunConfig(
        master=resolver.get_master(),
        evaluation_master=resolver.get_master(),
        model_dir=FLAGS.work_dir,
        save_checkpoints_steps=1000,
        tpu_config=contrib_tpu_config.TPUConfig(
            iterations_per_loop=2,
            num_shards=FLAGS.num_tpu_cores,
            per_host_input_for_training=contrib_tpu_config.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    return contrib_tpu_estimator.TPUEstimator(
        use_tpu=True,
        model_fn=model_fn,
        config=config,
        train_batch_size=FLAGS.train_batch_size * FLAGS.num_tpu_cores,
        eval_batch_size=FLAGS.train_batch_size * FLAGS.num_tpu_cores,
        params=FLAGS.flag_values_dict(),
    )


def main(_):
    tf.gfile.MakeDirs(FLAGS.work_dir)
    path = os.path.join(FLAGS.work_dir, "golden_chunk.tfrecord.zz")
    write_records(path)

    def host_input_fn():
        return batches(path, FLAGS.train_batch_size).make_one_shot_iterator().get_next()

    def input_fn(params):
        return batches(path, params["batch_size"])

    hooks = [] if FLAGS.use_tpu else [MovedHook()]
    get_estimator().train(input_fn if FLAGS.use_tpu else host_input_fn, steps=6, hooks=hooks)


if __name__ == "__main__":
    app.run(main)

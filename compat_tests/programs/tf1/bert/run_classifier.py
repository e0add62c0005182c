"""Makes the calls of BERT's `run_classifier`: records, flags, a TPUEstimator, a warm start."""

import collections
import os

import modeling
import optimization
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "The model_dir.")
flags.DEFINE_string("init_checkpoint", None, "Where variables start.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
tf.flags.DEFINE_string("tpu_name", None, "The TPU.")
flags.DEFINE_integer("num_tpu_cores", 2, "Its cores.")

LENGTH, VOCABULARY, SIZE, BATCH, STEPS = 6, 20, 8, 4, 3


def write_records(path):
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(16):
            features = collections.OrderedDict()
            ids = [(number * 7 + place * 3) % VOCABULARY for place in range(LENGTH)]
            for name, values in (("ids", ids), ("mask", [1] * LENGTH), ("label", [number % 2])):
                features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def input_fn_builder(path, is_training):
    name_to_features = {
        "ids": tf.FixedLenFeature([LENGTH], tf.int64),
        "mask": tf.FixedLenFeature([LENGTH], tf.int64),
        "label": tf.FixedLenFeature([], tf.int64),
    }

    def decode(record):
        example = tf.parse_single_example(record, name_to_features)
        for name in list(example.keys()):
            example[name] = tf.to_int32(example[name])
        return example

    def input_fn(params):
        files = tf.data.Dataset.from_tensor_slices(tf.constant([path]))
        if is_training:
            files = files.repeat().shuffle(buffer_size=1)
            records = files.apply(
                tf.contrib.data.parallel_interleave(
                    tf.data.TFRecordDataset, sloppy=False, cycle_length=1
                )
            )
        else:
            records = tf.data.TFRecordDataset([path])
        return records.apply(
            tf.contrib.data.map_and_batch(
                decode, batch_size=params["batch_size"], drop_remainder=True
            )
        )

    return input_fn


def model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    output = modeling.pooled_output(features["ids"], features["mask"], VOCABULARY, SIZE)
    weights = tf.get_variable("output_weights", [2, SIZE], initializer=modeling.initializer())
    logits = tf.matmul(output, weights, transpose_b=True)
    one_hot = tf.one_hot(features["label"], depth=2, dtype=tf.float32)
    per_example = -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits, axis=-1), axis=-1)
    loss = tf.reduce_mean(per_example)
    scaffold_fn = None
    if FLAGS.init_checkpoint:
        shared = modeling.checkpoint_map(tf.trainable_variables(), FLAGS.init_checkpoint)

        def scaffold_on_tpu():
            tf.train.init_from_checkpoint(FLAGS.init_checkpoint, shared)
            return tf.train.Scaffold()

        if params["use_tpu"]:
            scaffold_fn = scaffold_on_tpu
        else:
            tf.train.init_from_checkpoint(FLAGS.init_checkpoint, shared)
    if is_training:
        train_op = optimization.create_optimizer(loss, 0.1, STEPS, 1, params["use_tpu"])
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn
        )
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(per_example, labels, logits):
            classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return {
                "eval_accuracy": tf.metrics.accuracy(labels=labels, predictions=classes),
                "eval_loss": tf.metrics.mean(values=per_example),
            }

        metrics = (metric_fn, [per_example, features["label"], logits])
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=metrics, scaffold_fn=scaffold_fn
        )
    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, predictions={"probabilities": tf.nn.softmax(logits)}, scaffold_fn=scaffold_fn
    )


def main(_):
    """Trains, evaluates, predicts, and writes the metrics."""
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    path = os.path.join(FLAGS.output_dir, "train.tf_record")
    write_records(path)
    resolver = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(
            FLAGS.tpu_name, zone=None, project=None
        )
    per_host = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        master=None,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=STEPS,
        tf_random_seed=5,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=1,
            num_shards=FLAGS.num_tpu_cores,
            per_host_input_for_training=per_host,
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )
    estimator.train(input_fn=input_fn_builder(path, True), max_steps=STEPS)
    result = estimator.evaluate(input_fn=input_fn_builder(path, False), steps=2)
    with tf.gfile.GFile(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as writer:
        for key in sorted(result.keys()):
            tf.logging.info("  %s = %s", key, str(result[key]))
            writer.write("%s = %s\n" % (key, str(result[key])))
    for prediction in estimator.predict(input_fn=input_fn_builder(path, False)):
        assert prediction["probabilities"].shape == (2,)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()

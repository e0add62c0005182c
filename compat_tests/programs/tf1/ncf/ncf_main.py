"""Makes the calls of NCF: records that hold whole batches, one for each core of the TPU."""

import os

import tensorflow as tf
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")
flags.DEFINE_integer("cores", 2, "The cores for which the records are made.")

BATCH, USERS, ITEMS = 8, 11, 13


def write_records(path, per_core):
    """Writes records of `per_core` samples each."""
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(8):
            users = [(number * per_core + each) % USERS for each in range(per_core)]
            items = [(number * 3 + each * 5) % ITEMS for each in range(per_core)]
            values = {"users": users, "items": items, "labels": [u % 2 for u in users]}
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=each))
                for name, each in values.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def input_fn(params):
    """Returns the records, each a batch of one core."""
    batch_size = params["batch_size"]

    def parse(record):
        shape = tf.FixedLenFeature([batch_size], dtype=tf.int64)
        parsed = tf.parse_single_example(record, dict.fromkeys(["users", "items", "labels"], shape))
        features = {name: tf.cast(parsed[name], tf.int32) for name in ("users", "items")}
        return features, tf.cast(parsed["labels"], tf.int32)

    files = tf.data.Dataset.list_files(os.path.join(FLAGS.model_dir, "*.tfrecord"), shuffle=False)
    data = files.apply(tf.contrib.data.parallel_interleave(tf.data.TFRecordDataset, cycle_length=1))
    return data.map(parse, num_parallel_calls=2).repeat()


def model_fn(features, labels, mode, params):
    seed = tf.glorot_uniform_initializer(seed=6)
    vectors = [
        tf.nn.embedding_lookup(tf.get_variable(name, [size, 4], initializer=seed), features[name])
        for name, size in (("users", USERS), ("items", ITEMS))
    ]
    logits = tf.layers.dense(tf.concat(vectors, 1), 1, kernel_initializer=seed)
    loss = tf.losses.sigmoid_cross_entropy(tf.expand_dims(labels, 1), logits)
    optimizer = tf.train.AdamOptimizer(0.01)
    if params["use_tpu"]:
        # Each core gets a record.
        assert features["users"].shape == [BATCH // params["context"].num_replicas]
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def main(_):
    tf.gfile.MakeDirs(FLAGS.model_dir)
    per_core = BATCH // FLAGS.cores if FLAGS.use_tpu else BATCH
    write_records(os.path.join(FLAGS.model_dir, "a.tfrecord"), per_core)
    # As most programs, it leaves `num_shards` out: all cores that there are.
    config = tf.contrib.tpu.RunConfig(
        model_dir=FLAGS.model_dir,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=2,
            per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, use_tpu=FLAGS.use_tpu, train_batch_size=BATCH, params={}
    )
    estimator.train(input_fn, steps=4)


if __name__ == "__main__":
    tf.app.run(main)

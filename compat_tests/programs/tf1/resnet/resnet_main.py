"""Makes the calls of the ResNet of the TPU repository: `tf.layers`, a host call, deep imports."""

import resnet_model
import tensorflow as tf
from absl import app, flags
from tensorflow.contrib import summary
from tensorflow.contrib.tpu.python.tpu import async_checkpoint
from tensorflow.contrib.training.python.training import evaluation
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.estimator import estimator

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")

BATCH, SIZE = 4, 8


def input_fn(params):
    numbers = tf.range(BATCH * SIZE * SIZE * 3, dtype=tf.float32)
    images = tf.reshape(tf.sin(numbers), [BATCH, SIZE, SIZE, 3])
    data = tf.data.Dataset.from_tensor_slices((images, tf.range(BATCH) % 3)).repeat()
    data = data.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))
    return data.prefetch(tf.contrib.data.AUTOTUNE)


def model_fn(features, labels, mode, params):
    with tf.contrib.tpu.bfloat16_scope():
        is_training = mode == tf.estimator.ModeKeys.TRAIN
        logits = resnet_model.network(tf.cast(features, tf.bfloat16), is_training)
    logits = tf.cast(logits, tf.float32)
    cross_entropy = tf.losses.softmax_cross_entropy(
        logits=logits, onehot_labels=tf.one_hot(labels, 3), label_smoothing=0.1
    )
    decayed = [v for v in tf.trainable_variables() if "batch_normalization" not in v.name]
    loss = cross_entropy + 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in decayed])
    host_call = train_op = None
    if is_training:
        global_step = tf.train.get_global_step()
        optimizer = tf.contrib.opt.LARSOptimizer(
            0.1, momentum=0.9, weight_decay=1e-4, skip_list=["batch_normalization", "bias"]
        )
        # As programs have it that do not look whether there is a TPU.
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step)

        def host_call_fn(gs, loss):
            gs = gs[0]
            with summary.create_file_writer(FLAGS.model_dir, max_queue=2).as_default():
                with summary.always_record_summaries():
                    summary.scalar("loss", loss[0], step=gs)
                    return summary.all_summary_ops()

        host_call = (host_call_fn, [tf.reshape(global_step, [1]), tf.reshape(loss, [1])])
    eval_metrics = None
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, logits):
            top = tf.cast(tf.nn.in_top_k(logits, labels, 2), tf.float32)
            return {"top_1": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
                    "top_2": tf.metrics.mean(top)}  # fmt: skip

        eval_metrics = (metric_fn, [labels, logits])
    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, train_op=train_op, host_call=host_call, eval_metrics=eval_metrics
    )


def main(unused_argv):
    """Trains, and evaluates the checkpoints."""
    session_config = tf.ConfigProto(
        allow_soft_placement=True,
        graph_options=tf.GraphOptions(
            rewrite_options=rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
        ),
    )
    config = tf.contrib.tpu.RunConfig(
        model_dir=FLAGS.model_dir,
        save_checkpoints_steps=None,
        tf_random_seed=7,
        session_config=session_config,
        tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=2, num_shards=2),
    )
    classifier = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )
    hook = async_checkpoint.AsyncCheckpointSaverHook(checkpoint_dir=FLAGS.model_dir, save_steps=2)
    start = estimator._load_global_step_from_checkpoint_dir(FLAGS.model_dir)
    classifier.train(input_fn=input_fn, max_steps=start + 4, hooks=[hook])
    for checkpoint in evaluation.checkpoints_iterator(FLAGS.model_dir, timeout=0):
        results = classifier.evaluate(input_fn, steps=1, checkpoint_path=checkpoint)
        tf.logging.info("Eval results: %s", results)
        break


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    app.run(main)

"""Makes the calls of BigBird: Keras layers, and TPUEstimator by nested names of TensorFlow 2."""

import collections
import json
import os

import tensorflow.compat.v2 as tf
from absl import app, flags, logging
from tensorflow.python.framework import ops
from tensorflow.python.ops import custom_gradient

flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("iterations_per_loop", "1", "Steps of a loop.")
FLAGS = flags.FLAGS

LENGTH, WIDTH, WORDS, CORES, STEPS = 8, 4, 16, 2, 2


def variable_of(name):
    variables_here = ops.get_collection(ops.GraphKeys.GLOBAL_VARIABLES)
    return next(each for each in variables_here if each.trainable and each.op.name == name)


custom_gradient.get_variable_by_name = variable_of
Recomputed = collections.namedtuple("Recomputed", ["outputs", "inputs"])


def recomputed(function):
    """Returns a function whose gradient computes it once more."""

    @tf.custom_gradient
    def inner(*arguments):
        outputs = function(*arguments)

        def gradient(*gradients, variables=None):
            with tf.GradientTape() as tape:
                inputs = [tf.identity(each) for each in arguments]
                tape.watch(inputs)
                with tf.control_dependencies(gradients):
                    again = Recomputed(function(*inputs), inputs)
            sources = [*again.inputs, *(variables or [])]
            of_sources = tape.gradient(again.outputs, sources, output_gradients=gradients)
            return of_sources[: len(arguments)], of_sources[len(arguments) :]

        return outputs, gradient

    return inner


class Dense(tf.keras.layers.Layer):
    """A layer whose variables are made by get_variable, as it is made."""

    def __init__(self, width, name, seed, use_bias=True):
        super(Dense, self).__init__(name=name.split("/")[-1])
        with tf.compat.v1.variable_scope(name):
            self.w = tf.compat.v1.get_variable(
                name="kernel",
                shape=[WIDTH, width],
                initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.2, seed=seed),
            )
            self.b = None
            if use_bias:
                self.b = tf.compat.v1.get_variable(
                    name="bias", shape=[width], initializer=tf.zeros_initializer
                )

    def call(self, inputs, training=None):
        net = tf.einsum("...c,cd->...d", inputs, self.w)
        return net if self.b is None else tf.nn.bias_add(net, self.b)


class Model(tf.keras.layers.Layer):
    """A block of a transformer, as far as layers, scopes and names go."""

    def __init__(self, scope):
        super(Model, self).__init__(name=scope)
        with tf.compat.v1.variable_scope(scope):
            self.table = tf.compat.v1.get_variable(
                "word_embeddings",
                [WORDS, WIDTH],
                dtype=tf.float32,
                initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.2, seed=1),
            )
            self.norm = tf.keras.layers.LayerNormalization(axis=-1, epsilon=1e-12, name="LayerNorm")
            self.inner = Dense(WIDTH, "layer_0", 2)

    def call(self, ids, training=None):
        hot = tf.one_hot(tf.reshape(ids, [-1]), depth=WORDS)
        net = tf.reshape(tf.matmul(hot, self.table), [ids.shape[0], LENGTH, WIDTH])
        net = self.norm(net)
        net = recomputed(lambda each: self.inner(each, training=training))(net)
        return tf.reduce_mean(tf.nn.tanh(net), axis=1)


class AdamWeightDecay(tf.compat.v1.train.Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, rate, name="AdamWeightDecay"):
        super(AdamWeightDecay, self).__init__(False, name)
        self.rate = rate

    def _create_slots(self, var_list):
        for each in var_list:
            self._zeros_slot(each, "m", self._name)
            self._zeros_slot(each, "v", self._name)

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m, next_v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * tf.square(grad)
        update = next_m / (tf.sqrt(next_v) + 1e-6)
        if "LayerNorm" not in var.name:
            update += 0.01 * var
        return tf.group([var.assign(var - self.rate * update), m.assign(next_m), v.assign(next_v)])


def summaries_of(folder, scalars):
    """Returns a host call that writes scalars by the summaries of TensorFlow 2."""
    scalars = {name: tf.reshape(each, [1]) for name, each in scalars.items()}

    def host_call_fn(**values):
        writer = tf.summary.create_file_writer(folder, max_queue=1000)
        with writer.as_default(), tf.summary.record_if(True):
            for name, value in values.items():
                step = tf.compat.v1.train.get_or_create_global_step()
                tf.summary.scalar(name, tf.reduce_mean(value), step)
            return tf.compat.v1.summary.all_v2_summary_ops()

    return host_call_fn, scalars


def metric_fn(losses, labels, log_probs):
    """Returns the metrics; one is made of two others and has nothing to update."""
    predicted = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
    wide = tf.cast(labels, tf.int64)
    precision, update = tf.compat.v1.metrics.precision_at_k(wide, log_probs, k=1)
    recall, other = tf.compat.v1.metrics.recall_at_k(wide, log_probs, k=1)
    both = tf.math.divide_no_nan(2 * precision * recall, precision + recall)
    return {
        "P@1": (precision, update),
        "R@1": (recall, other),
        "f1@1": (both, tf.no_op()),
        "accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=predicted),
        "mean_loss": tf.compat.v1.metrics.mean(values=losses),
    }


def model_fn(features, labels, mode, params):
    """Returns the spec of training, evaluation or prediction."""
    spec = tf.compat.v1.estimator.tpu.TPUEstimatorSpec
    if isinstance(features, dict):
        features = features["input_ids"]
    training = mode == tf.estimator.ModeKeys.TRAIN
    pooled = Model("bert")(features, training=training)
    pooled = tf.keras.layers.Dropout(0.0)(pooled, training)
    log_probs = tf.nn.log_softmax(Dense(2, "bert/classifier", 3)(pooled), axis=-1)
    if labels is None:
        return spec(mode=mode, predictions={"log-probabilities": log_probs})
    loss = tf.reduce_mean(-tf.reduce_sum(tf.one_hot(labels, depth=2) * log_probs, axis=-1))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = (metric_fn, [tf.expand_dims(loss, 0), labels, log_probs])
        return spec(mode=mode, loss=loss, eval_metrics=metrics)
    variables = tf.compat.v1.trainable_variables()
    step = tf.compat.v1.train.get_or_create_global_step()
    rate = tf.compat.v1.train.polynomial_decay(0.1, step, STEPS)
    optimizer = AdamWeightDecay(rate)
    if FLAGS.use_tpu:
        optimizer = tf.compat.v1.tpu.CrossShardOptimizer(optimizer)
    gradients = optimizer.compute_gradients(loss, variables)
    train_op = optimizer.apply_gradients(gradients, global_step=step)
    host_call = summaries_of(FLAGS.model_dir, {"learning_rate": rate})
    return spec(mode=mode, loss=loss, train_op=train_op, host_call=host_call)


def input_fn_of(is_training):
    def input_fn(params):
        count = params["batch_size"]
        data = tf.data.Dataset.range(8).map(
            lambda n: (tf.range(n % 3 + 2), tf.cast(n % 2, tf.int32))
        )
        context = params.get("context", None)
        if is_training:
            if context:
                data = data.shard(context.num_hosts, context.current_host)
            data = data.repeat()
        data = data.map(lambda ids, label: (tf.cast(ids, tf.int32), label))
        return data.padded_batch(count, ([LENGTH], []), drop_remainder=True)

    return input_fn


def get_estimator():
    """Returns the estimator: on a TPU, or on all devices of the machine."""
    tpu = tf.compat.v1.estimator.tpu
    batch, strategy, session = 2, None, None
    sliced = tpu.InputPipelineConfig.PER_HOST_V1
    if FLAGS.use_tpu:
        sliced, batch = tpu.InputPipelineConfig.SLICED, batch * CORES
    else:
        session = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            gpu_options=tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=1.2),
        )
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        with tf.compat.v1.Session(cluster.master(), config=session) as opened:
            logging.info(opened.list_devices())
        strategy = tf.distribute.MirroredStrategy(devices=None)
    config = tpu.RunConfig(
        cluster=None,
        master=None,
        model_dir=FLAGS.model_dir,
        save_checkpoints_steps=2,
        keep_checkpoint_max=10,
        train_distribute=strategy,
        session_config=session,
        tpu_config=tpu.TPUConfig(
            tpu_job_name=None,
            iterations_per_loop=FLAGS.iterations_per_loop,
            num_shards=CORES,
            per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
            eval_training_input_configuration=sliced,
        ),
    )
    estimator = tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=batch,
        eval_batch_size=batch,
        warm_start_from=None,
    )
    # What the program tells its user; the estimator goes on with what it was given.
    estimator.train_batch_size = estimator.eval_batch_size = batch
    return estimator


def serving_input_fn():
    text = tf.compat.v1.placeholder(tf.string, [2], name="input_text")
    ids = tf.strings.to_hash_bucket_fast(tf.strings.bytes_split(text), WORDS)
    ids = ids.to_tensor(0)
    ids = tf.pad(ids, [[0, 0], [0, tf.maximum(LENGTH - tf.shape(ids)[1], 0)]])
    ids = tf.cast(tf.slice(ids, [0, 0], [2, LENGTH]), tf.int32, name="input_ids")
    return tf.estimator.export.ServingInputReceiver(
        features={"input_ids": ids}, receiver_tensors={"input": text}
    )


def main(_):
    """Trains, evaluates each checkpoint and exports."""
    tf.io.gfile.makedirs(FLAGS.model_dir)
    estimator = get_estimator()
    estimator.train(input_fn=input_fn_of(True), max_steps=STEPS)
    steps = None
    if FLAGS.use_tpu:
        with tf.compat.v1.Session() as session:
            data = input_fn_of(False)({"batch_size": estimator.eval_batch_size})
            steps = int(data.cardinality().eval(session=session))
    for each in tf.io.gfile.glob(os.path.join(FLAGS.model_dir, "model.ckpt*.meta")):
        checkpoint = each.split(".meta")[0]
        metrics = estimator.evaluate(
            input_fn=input_fn_of(False), checkpoint_path=checkpoint, steps=steps
        )
        path = os.path.join(FLAGS.model_dir, f"eval_{metrics['global_step']}.json")
        with tf.io.gfile.GFile(path, "w") as writer:
            json.dump({key: float(value) for key, value in metrics.items()}, writer)
    estimator.export_saved_model(os.path.join(FLAGS.model_dir, "export"), serving_input_fn)


if __name__ == "__main__":
    tf.compat.v1.disable_v2_behavior()
    tf.compat.v1.enable_resource_variables()
    app.run(main)

"""Adam with decoupled decay and a warm-up, as a subclass of `tf.train.Optimizer`."""

import tensorflow as tf


def create_optimizer(loss, rate, steps, warmup, use_tpu):
    step = tf.train.get_or_create_global_step()
    learning_rate = tf.train.polynomial_decay(
        tf.constant(value=rate, shape=[], dtype=tf.float32), step, steps, end_learning_rate=0.0
    )
    done = tf.cast(tf.cast(step, tf.int32), tf.float32)
    is_warmup = tf.cast(done < float(warmup), tf.float32)
    learning_rate = (1.0 - is_warmup) * learning_rate + is_warmup * rate * done / float(warmup)
    optimizer = DecayingAdam(learning_rate)
    if use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), clip_norm=1.0)
    train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
    return tf.group(train_op, [step.assign(step + 1)])


class DecayingAdam(tf.train.Optimizer):
    """Adam without bias correction, and decay beside it."""

    def __init__(self, learning_rate, name="DecayingAdam"):
        super().__init__(False, name)
        self.learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            name_of = variable.name.split(":")[0]
            first, second = (
                tf.get_variable(
                    name_of + suffix,
                    shape=variable.shape.as_list(),
                    dtype=tf.float32,
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )
                for suffix in ("/adam_m", "/adam_v")
            )
            next_first = 0.9 * first + tf.multiply(0.1, gradient)
            next_second = 0.999 * second + 0.001 * tf.square(gradient)
            update = next_first / (tf.sqrt(next_second) + 1e-6)
            if "LayerNorm" not in name_of and "bias" not in name_of:
                update += 0.01 * variable
            assignments += [
                variable.assign(variable - self.learning_rate * update),
                first.assign(next_first),
                second.assign(next_second),
            ]
        return tf.group(*assignments, name=name)

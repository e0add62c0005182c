"""Trains a GAN that makes numbers around 3, evaluates it, and makes some."""

import itertools
import json
import sys

import tensorflow as tf
import tensorflow_gan as tfgan

v1 = tf.compat.v1
v1.disable_v2_behavior()


def input_fn(mode=None, params=None):
    """Returns noise, and real numbers around 3."""
    noise, real = tf.random.normal([32, 2], seed=1), tf.random.normal([32, 1], 3.0, 0.1, seed=2)
    return noise, real


def generator_fn(noise, mode):
    """Returns numbers made of noise."""
    return v1.layers.dense(noise, 1, name="made")


def discriminator_fn(data, conditioning, mode):
    """Returns a logit for each number."""
    return v1.layers.dense(v1.layers.dense(data, 8, tf.nn.relu), 1)


estimator = tfgan.estimator.GANEstimator(
    sys.argv[1],
    generator_fn=generator_fn,
    discriminator_fn=discriminator_fn,
    generator_loss_fn=tfgan.losses.wasserstein_generator_loss,
    discriminator_loss_fn=tfgan.losses.wasserstein_discriminator_loss,
    generator_optimizer=v1.train.AdamOptimizer(0.1),
    discriminator_optimizer=v1.train.AdamOptimizer(0.02),
    config=tf.estimator.RunConfig(tf_random_seed=5),
)


def mean():
    """Returns the mean of 32 numbers that the generator makes."""
    made = [float(each[0]) for each in itertools.islice(estimator.predict(input_fn), 32)]
    return sum(made) / len(made)


estimator.train(input_fn, steps=1)
before = mean()
estimator.train(input_fn, steps=30)
after = mean()
metrics = sorted(estimator.evaluate(input_fn, steps=1))
better = abs(after - 3) < abs(before - 3) and "generator_loss" in metrics
json.dump({"before": before, "after": after, "better": bool(better)}, sys.stdout)

"""Trains a model with a module of the Hub in it, and exports that module again."""

import json
import sys

import tensorflow as tf
import tensorflow_hub as hub

v1 = tf.compat.v1
v1.disable_v2_behavior()


def module_fn():
    """Computes a line."""
    x = v1.placeholder(tf.float32, [None, 1])
    hub.add_signature(inputs=x, outputs=v1.layers.dense(x, 1))


SPEC = hub.create_module_spec(module_fn)


def input_fn():
    """Returns two points of y = 3 x."""
    return v1.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[3.0], [6.0]])).repeat()


def model_fn(features, labels, mode):
    """A module whose variables are trained."""
    module = hub.Module(SPEC, trainable=True, name="line")
    hub.register_module_for_export(module, "line")
    predictions = module(features["x"])
    if mode == v1.estimator.ModeKeys.PREDICT:
        return v1.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.mean_squared_error(labels, predictions)
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.05).minimize(loss, step)
    return v1.estimator.EstimatorSpec(mode, predictions, loss, train_op)


def serving_fn():
    """Takes x."""
    x = v1.placeholder(tf.float32, [None, 1])
    return v1.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


estimator = v1.estimator.Estimator(model_fn, sys.argv[1])
before = estimator.train(input_fn, steps=1).evaluate(input_fn, steps=1)
after = estimator.train(input_fn, steps=100).evaluate(input_fn, steps=1)
exporter = hub.LatestModuleExporter("hub", serving_fn)
path = exporter.export(estimator, f"{sys.argv[1]}/export", estimator.latest_checkpoint())
with tf.Graph().as_default(), v1.Session() as session:
    y = hub.Module(tf.compat.as_str(path) + "/line")(tf.constant([[1.0]]))
    session.run(v1.global_variables_initializer())
    exported = float(session.run(y)[0][0])
better = after["loss"] < before["loss"] and abs(exported - 3) < 0.5
json.dump(
    {"before": float(before["loss"]), "after": float(after["loss"]), "better": bool(better)},
    sys.stdout,
)

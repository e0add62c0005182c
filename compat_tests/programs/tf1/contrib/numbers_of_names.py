"""Computes what names of tf.contrib compute; writes it as JSON, with the variables' names.

Its output of TensorFlow 1.15.5 is `compat_tests/goldens/contrib_names.json`.
"""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

results = {}


def keep(name, value):
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        results[name] = [str(each.decode()) for each in array.ravel().tolist()]
    else:
        flat = array.ravel().astype(np.float64)
        results[name] = [list(array.shape), [float("%.7g" % each) for each in flat]]


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


def compute(name, make, steps=1):
    """Keeps the values of tensors, and the variables after some steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = make()
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(tf.tables_initializer())
        for variable in tf.trainable_variables() if steps == 1 else ():
            variable.load(numbers(*variable.shape.as_list(), seed=len(variable.op.name)), session)
        for _ in range(steps):
            values = session.run(tensors)
        flat = tf.contrib.framework.nest.flatten(values)
        for number, value in enumerate(each for each in flat if each is not None):
            keep("%s/%d" % (name, number), value)
        for variable in tf.global_variables():
            keep("%s/%s" % (name, variable.op.name), session.run(variable))


def cells():
    rnn = tf.contrib.rnn

    def dynamic(make):
        def build():
            inputs = tf.constant(numbers(2, 3, 2))
            outputs, state = tf.nn.dynamic_rnn(make(), inputs, dtype=tf.float32)
            kernel = [each for each in tf.trainable_variables() if "kernel" in each.op.name]
            return outputs, state, tf.gradients(tf.reduce_sum(tf.square(outputs)), kernel)

        return build

    compute("LSTMBlockCell", dynamic(lambda: rnn.LSTMBlockCell(2, 0.5)))
    compute("peephole", dynamic(lambda: rnn.LSTMBlockCell(2, use_peephole=True)))
    compute("Cudnn", dynamic(lambda: tf.contrib.cudnn_rnn.CudnnCompatibleLSTMCell(2)))
    compute("LayerNorm", dynamic(lambda: rnn.LayerNormBasicLSTMCell(2, forget_bias=0.7)))
    compute("no norm", dynamic(lambda: rnn.LayerNormBasicLSTMCell(2, layer_norm=False)))

    def stacked():
        each = [[rnn.BasicLSTMCell(2), rnn.LSTMBlockCell(1)] for _ in range(2)]
        inputs = tf.constant(numbers(2, 3, 2))
        lengths = [3, 1]
        return rnn.stack_bidirectional_dynamic_rnn(
            each[0], each[1], inputs, dtype=tf.float32, sequence_length=lengths
        )

    compute("stack", stacked)


def optimizers():
    opt = tf.contrib.opt
    momentum = opt.extend_with_decoupled_weight_decay(tf.train.MomentumOptimizer)
    clip = tf.contrib.estimator.clip_gradients_by_norm
    makers = {
        "LazyAdam": (lambda: opt.LazyAdamOptimizer(0.1), {}),
        "AdamW": (lambda: opt.AdamWOptimizer(0.1, 0.05), {}),
        "AdamW of v": (lambda: opt.AdamWOptimizer(0.1, 0.05), {"decay_var_list": True}),
        "MomentumW": (lambda: momentum(0.1, learning_rate=0.05, momentum=0.9), {}),
        "averages": (lambda: opt.MovingAverageOptimizer(tf.train.AdamOptimizer(0.1), 0.8), {}),
        "clipped": (lambda: clip(tf.train.AdagradOptimizer(0.1), 0.5), {}),
    }
    for name, (make, settings) in makers.items():
        for use_resource in (False, True):
            for minimize in (False, True):

                def build():
                    v = tf.get_variable("v", initializer=numbers(4, 2), use_resource=use_resource)
                    w = tf.get_variable("w", initializer=numbers(2), use_resource=use_resource)
                    loss = tf.reduce_sum(w) + tf.reduce_sum(tf.nn.embedding_lookup(v, [0, 2, 2]))
                    more = {key: [v] for key in settings}
                    optimizer = make()
                    if minimize:
                        return optimizer.minimize(loss, **more)
                    return optimizer.apply_gradients(optimizer.compute_gradients(loss), **more)

                compute("%s %s %s" % (name, use_resource, minimize), build, steps=3)
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", initializer=tf.ones([3]))
        optimizer = opt.MovingAverageOptimizer(tf.train.GradientDescentOptimizer(0.1), 0.8)
        step = optimizer.minimize(tf.reduce_sum(v * v))
        saver = optimizer.swapping_saver()
        session.run(tf.global_variables_initializer())
        session.run(step)
        saved = saver.save(session, os.path.join(tempfile.mkdtemp(), "model"))
    for name, _ in tf.train.list_variables(saved):
        keep("saved/%s" % name, tf.train.load_variable(saved, name))


def images():
    image = tf.contrib.image
    batch, single = tf.constant(numbers(2, 3, 4, 1)), tf.constant(numbers(3, 4, 1))
    bytes_ = tf.cast(tf.abs(single) * 100, tf.uint8)
    projection = [1.1, 0.1, -1.0, 0.05, 0.9, 0.5, 0.001, 0.002]
    turned = image.angles_to_projective_transforms(0.2, 3.0, 4.0)
    outputs = [image.compose_transforms(projection, turned)]
    for kind in ("NEAREST", "BILINEAR"):
        outputs += [
            image.rotate(each, 0.3, kind) for each in (batch, single, single[..., 0], bytes_)
        ]
        outputs += [
            image.rotate(batch, [0.3, -1.2], kind),
            image.translate(single, [1.0, -2.0], kind),
        ]
        outputs.append(image.translate(batch, [[1.0, -2.0], [0.5, 0.5]], kind))
        outputs.append(image.transform(batch, projection, kind, output_shape=[2, 3]))
    square = tf.reduce_sum(tf.square(image.rotate(batch, 0.3, "BILINEAR")))
    return outputs + tf.gradients(square, batch)


def tables():
    lookup, words = tf.contrib.lookup, tf.constant(["a", "c", "zz", "yy"])
    path = os.path.join(tempfile.mkdtemp(), "words")
    with open(path, "w") as file:
        file.write("a\nb\nc\n")
    ids = tf.constant([1, 5], tf.int64)
    return [
        lookup.index_table_from_tensor(mapping=["a", "b", "c"], num_oov_buckets=2).lookup(words),
        lookup.index_table_from_tensor(tf.constant(["c", "a"]), default_value=7).lookup(words),
        lookup.index_table_from_file(vocabulary_file=path, num_oov_buckets=3).lookup(words),
        lookup.index_to_string_table_from_tensor(mapping=["x", "y"]).lookup(ids),
        lookup.index_to_string_table_from_file(path, default_value="?").lookup(ids),
    ]


def random_numbers():
    stateless = tf.contrib.stateless
    kinds = (
        stateless.stateless_random_uniform,
        stateless.stateless_random_normal,
        stateless.stateless_truncated_normal,
    )
    drawn = stateless.stateless_multinomial(tf.constant([[0.1, 0.2, 0.7]]), 5, [1, 2])
    return [each([3], [1, 2]) for each in kinds] + [drawn]


def predictions():
    def model_fn(features, labels, mode):
        y = tf.layers.dense(features["x"], 2, kernel_initializer=tf.ones_initializer(), name="d")
        output = tf.estimator.export.PredictOutput
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=y,
            loss=tf.reduce_sum(y),
            train_op=tf.assign_add(tf.train.get_or_create_global_step(), 1),
            export_outputs={"serving_default": output({"y": y}), "more": output({"z": y + 1})},
        )

    def receiver():
        x = tf.placeholder(tf.float32, [None, 3], name="inputs")
        return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    estimator = tf.estimator.Estimator(model_fn, tempfile.mkdtemp())
    x = numbers(2, 3)
    estimator.train(lambda: tf.data.Dataset.from_tensors({"x": x}), max_steps=1)
    export = estimator.export_savedmodel(tempfile.mkdtemp(), receiver)
    export = export.decode() if isinstance(export, bytes) else export
    predictor = tf.contrib.predictor
    names = {"input_names": {"a": "inputs:0"}, "output_names": {"b": "d/BiasAdd:0"}}
    keep("y", predictor.from_saved_model(export)({"x": x})["y"])
    keep("z", predictor.from_saved_model(export, signature_def_key="more")({"x": x})["z"])
    keep("b", predictor.from_saved_model(export, **names)({"a": x})["b"])
    keep("e", predictor.from_estimator(estimator, receiver)({"x": x})["y"])


cells()
optimizers()
compute("images", images)
compute("tables", tables)
compute("random numbers", random_numbers)
predictions()
with open(sys.argv[1], "w") as file:
    json.dump(results, file, sort_keys=True)

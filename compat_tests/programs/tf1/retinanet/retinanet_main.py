"""Makes the calls of RetinaNet: decoded examples, predictions made on the host, an export."""

import os

import numpy as np
import tensorflow as tf
from absl import app, flags

flags.DEFINE_string("model_dir", None, "The model_dir.")
flags.DEFINE_string("hparams", "", "Changes of settings.")
flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")
FLAGS = flags.FLAGS

STEPS, BOXES, SIDES = 2, 2, ["ymin", "xmin", "ymax", "xmax"]
decoders = tf.contrib.slim.tfexample_decoder


def default_hparams():
    return tf.contrib.training.HParams(
        image_size=8,
        num_classes=3,
        aspect_ratios=[(1.0, 1.0), (1.4, 0.7)],
        momentum=0.9,
        rate=0.08,
    )


def write_examples(path):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    with tf.Graph().as_default(), tf.Session() as session:
        encoded = session.run(tf.image.encode_png(pixels))
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(4):
            text = {"image/encoded": encoded, "image/source_id": str(number).encode()}
            floats = {f"box/{side}": [0.1 + 0.1 * at, 0.3] for at, side in enumerate(SIDES)}
            values = {
                **{k: tf.train.Feature(bytes_list={"value": [v]}) for k, v in text.items()},
                **{k: tf.train.Feature(float_list={"value": v}) for k, v in floats.items()},
                "box/label": tf.train.Feature(int64_list={"value": [1, number % 3]}),
            }
            example = tf.train.Example(features=tf.train.Features(feature=values))
            writer.write(example.SerializeToString())


class InputReader(object):
    """An input function that is an object."""

    def __init__(self, pattern, is_training):
        self._pattern, self._is_training = pattern, is_training

    def __call__(self, params):
        """Returns images and labels; in prediction the labels are among the features."""
        decoder = decoders.TFExampleDecoder(
            {
                "image/encoded": tf.FixedLenFeature((), tf.string, default_value=""),
                "image/format": tf.FixedLenFeature((), tf.string, default_value="png"),
                "image/source_id": tf.FixedLenFeature((), tf.string, default_value=""),
                "box/label": tf.VarLenFeature(tf.int64),
                **{f"box/{side}": tf.VarLenFeature(tf.float32) for side in SIDES},
            },
            {
                "image": decoders.Image("image/encoded", "image/format", channels=3),
                "source_id": decoders.Tensor("image/source_id"),
                "boxes": decoders.BoundingBox(SIDES, "box/"),
                "classes": decoders.Tensor("box/label"),
            },
        )
        size, count = params["image_size"], params["batch_size"]

        def parse(value):
            keys = sorted(decoder.list_items())
            data = dict(zip(keys, decoder.decode(tf.reshape(value, []), items=keys)))
            image = tf.image.convert_image_dtype(data["image"], dtype=tf.float32)
            image = tf.image.resize_images(image, [size, size])
            targets = tf.fill([size // 2, size // 2], tf.to_int32(data["classes"][0]))
            boxes = tf.reshape(data["boxes"], [BOXES, 4])
            return image, targets, boxes, tf.string_to_number(data["source_id"]), 1.0

        def labelled(images, targets, boxes, sources, scales):
            labels = {"targets": targets, "boxes": boxes, "source_ids": sources}
            labels["mean_num_positives"] = tf.tile([[2.0]], [count, 1])
            if not self._is_training:
                return {"inputs": images, "image_info": scales, "labels": labels}
            return images, labels

        data = tf.data.Dataset.list_files(self._pattern, shuffle=False)
        if self._is_training:
            data = data.repeat()
        read = tf.contrib.data.parallel_interleave(
            lambda name: tf.data.TFRecordDataset(name).prefetch(1), cycle_length=1, sloppy=False
        )
        data = data.apply(read).map(parse, num_parallel_calls=2)
        data = data.prefetch(tf.contrib.data.AUTOTUNE).batch(count, drop_remainder=True)
        return data.map(labelled).prefetch(tf.contrib.data.AUTOTUNE)


def network(images, params, is_training):
    """Returns logits; both convolutions of a class have the same weights."""
    net = tf.layers.conv2d(images, 4, 3, padding="same", name="stem", kernel_initializer=seeded(1))
    net = tf.layers.max_pooling2d(net, 2, 2)
    logits = []
    for number in range(2):
        with tf.variable_scope("class_net", reuse=tf.AUTO_REUSE):
            normalized = tf.layers.batch_normalization(
                net, training=is_training, name=f"bn_{number}"
            )
            of_class = tf.layers.separable_conv2d(
                normalized,
                params["num_classes"] * len(params["aspect_ratios"]),
                3,
                padding="same",
                name="class",
                depthwise_initializer=seeded(2),
                pointwise_initializer=seeded(3),
            )
        logits.append(of_class)
    return tf.add_n(logits)


def seeded(seed):
    return tf.random_normal_initializer(stddev=0.1, seed=seed)


def detections(arguments):
    """Returns the best boxes of each image: ops of the host, outside of what a TPU compiles."""
    logits, labels = arguments

    def best(of_image):
        _, places = tf.nn.top_k(tf.reshape(of_image, [-1]), k=4)
        side = tf.to_float(places)
        return tf.stack([side, side, side + 2.0, side + 2.0], 1), side

    kinds = (tf.float32, tf.float32)
    boxes, classes = tf.map_fn(best, tf.nn.softmax(logits), back_prop=False, dtype=kinds)
    detections = {"boxes": boxes, "classes": classes}
    if labels is not None:
        detections["source_id"] = labels["source_ids"]
    return detections


def model_fn(features, labels, mode, params):
    if mode == tf.estimator.ModeKeys.PREDICT:
        info, labels = features["image_info"], features.get("labels")
        logits = network(features["inputs"], params, False)
        predictions = tf.contrib.tpu.outside_compilation(detections, (logits, labels))
        predictions["image_info"] = tf.identity(info, "ImageInfo")
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, predictions=predictions)
    logits = network(features, params, True)
    normalizer = tf.reduce_sum(labels["mean_num_positives"]) + 1.0
    targets = tf.one_hot(labels["targets"], params["num_classes"])
    logits = logits[..., : params["num_classes"]]
    crosses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    decay = tf.add_n([tf.nn.l2_loss(each) for each in tf.trainable_variables()])
    loss = tf.reduce_sum(crosses) / normalizer + 1e-4 * decay
    step = tf.train.get_global_step()
    # A setting that the model_fn itself makes.
    params["adjusted_rate"] = params["rate"] * params["batch_size"] * params["num_shards"] / 64
    rate = tf.where(step < 1, params["adjusted_rate"] * 0.5, params["adjusted_rate"])
    optimizer = tf.train.MomentumOptimizer(rate, momentum=params["momentum"])
    if params["use_tpu"]:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    frozen = [each for each in tf.trainable_variables() if "stem" not in each.name]
    minimize = optimizer.minimize(loss, global_step=step, var_list=frozen)
    train_op = tf.group(minimize, tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def estimator_of(config, params):
    return tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=params["use_tpu"],
        train_batch_size=4,
        predict_batch_size=2,
        config=config,
        params=params,
    )


def serving_input_fn():
    size = default_hparams().image_size

    def prepared(encoded):
        image = tf.image.convert_image_dtype(tf.image.decode_png(encoded, channels=3), tf.float32)
        return tf.image.resize_images(image, [size, size]), tf.to_float(tf.shape(image)[0])

    encoded = tf.placeholder(shape=[None], dtype=tf.string)
    images, info = tf.map_fn(prepared, encoded, back_prop=False, dtype=(tf.float32, tf.float32))
    images = tf.reshape(images, [2, size, size, 3])
    features = {"inputs": images, "image_info": info}
    return tf.estimator.export.ServingInputReceiver(features=features, receiver_tensors=encoded)


def main(_):
    """Trains, predicts with the checkpoint, and exports."""
    resolver = None
    if FLAGS.use_tpu:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(None, zone=None, project=None)
        tf.Session.reset(resolver.get_master())
    hparams = default_hparams()
    hparams.override_from_dict({"rate": 0.8})
    hparams.parse(FLAGS.hparams)
    params = dict(hparams.values(), num_shards=2, use_tpu=FLAGS.use_tpu)
    session = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        evaluation_master="",
        model_dir=FLAGS.model_dir,
        log_step_count_steps=1,
        session_config=session,
        tpu_config=tf.contrib.tpu.TPUConfig(
            1,
            num_shards=2,
            num_cores_per_replica=None,
            input_partition_dims=None,
            per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    tf.gfile.MakeDirs(FLAGS.model_dir)
    path = os.path.join(FLAGS.model_dir, "a.tfrecord")
    write_examples(path)
    estimator_of(config, params).train(input_fn=InputReader(path, True), max_steps=STEPS)
    for _ in tf.contrib.training.checkpoints_iterator(
        FLAGS.model_dir, min_interval_secs=0, timeout=10, timeout_fn=lambda: True
    ):
        estimator = estimator_of(config, params)
        batches = list(
            estimator.predict(input_fn=InputReader(path, False), yield_single_examples=False)
        )
        detections = {key: np.concatenate([each[key] for each in batches]) for key in batches[0]}
        assert detections["boxes"].shape == (4, 4, 4), detections["boxes"].shape
        assert detections["source_id"].tolist() == [0.0, 1.0, 2.0, 3.0], detections["source_id"]
        break
    exporting = estimator_of(config, dict(params, use_tpu=True))
    exporting.export_saved_model(
        os.path.join(FLAGS.model_dir, "export"), serving_input_receiver_fn=serving_input_fn
    )


if __name__ == "__main__":
    app.run(main)

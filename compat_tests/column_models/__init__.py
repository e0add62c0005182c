"""Ten legacy programs, one for each kind of column, to be audited, translated and migrated.

A file has what is special in its program; `source` adds the model and the training. The programs
are read and run as files; each imports stock's names in another way.
"""

from __future__ import annotations

import pathlib
import shutil

HERE = pathlib.Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("[a-z]*.py")))

REST = """\
def input_fn(params):
  return tf.data.Dataset.from_tensors(make_batch(params['batch_size'])).repeat()


def model_fn(features, labels, mode, params):
  del params
  # One number per sample; nothing here is random but the tables.
  net = {net}
  prediction = tf.reduce_sum(net, 1)
  loss = tf.losses.mean_squared_error(labels, prediction)
  if mode == tf_estimator.ModeKeys.EVAL:
    return tf_estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
  optimizer = tf.train.GradientDescentOptimizer(0.1)
  if USE_TPU:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  return tf_estimator.tpu.TPUEstimatorSpec(
      mode, loss=loss,
      train_op=optimizer.minimize(loss, tf.train.get_or_create_global_step()))


def main(model_dir):
  estimator = tf_estimator.tpu.TPUEstimator(
      model_fn,
      use_tpu=USE_TPU,
      config=tf_estimator.tpu.RunConfig(
          model_dir=model_dir, tf_random_seed=1,
          tpu_config=tf_estimator.tpu.TPUConfig(iterations_per_loop=2, num_shards=2)),
      train_batch_size=8, eval_batch_size=8,
      embedding_config_spec=make_spec())
  estimator.train(input_fn, max_steps=4)
  print(json.dumps({{'loss': float(estimator.evaluate(input_fn, steps=1)['loss'])}}))


if __name__ == '__main__':
  tf.disable_v2_behavior()
  main(sys.argv[1])
"""
"""The rest of each program, in the names of most of them; {net} are the activations."""

NET = {
    "dicts": "sum(features[key] for key in COLUMNS)",
    "sequence": "tf.reduce_sum(tf.keras.experimental.SequenceFeatures(COLUMNS)(features)[0], 1)",
}
OTHER_NAMES = {
    "identity": {"tf_estimator": "tf.estimator"},
    "vocabulary_file": {"tf_estimator": "tf.estimator"},
    "weighted": {"tf_estimator": "tf2.compat.v1.estimator"},
    "hashed": {"tf_estimator.tpu.": "", "tf_estimator.": ""},
    "sequence": {
        "tf_estimator.tpu.RunConfig": "tpu_config.RunConfig",
        "tf_estimator.tpu.TPUConfig": "tpu_config.TPUConfig",
        "tf_estimator.tpu.": "tpu_estimator.",
        "tf_estimator.": "model_fn_lib.",
    },
}


def source(name: str) -> str:
    """Returns a whole program."""
    rest = REST.format(net=NET.get(name, "tf.keras.layers.DenseFeatures(COLUMNS)(features)"))
    for common, its_own in OTHER_NAMES.get(name, {}).items():
        rest = rest.replace(common, its_own)
    return (HERE / f"{name}.py").read_text() + "\n\n" + rest


def write(folder: pathlib.Path) -> None:
    """Writes all programs, and the file that one of them reads."""
    shutil.copy(HERE / "words.txt", folder)
    for name in NAMES:
        (folder / f"{name}.py").write_text(source(name))

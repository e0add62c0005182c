"""Models with the Keras layer on a software TPU: training, checkpoints to and from a CPU, exports.

Run in a separate process, with the Keras to use: `python -m ... <tf.keras|tf_keras> <results>`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

import tensorflow as tf

from compat_tests.programs import keras_models as models
from tf2_engine import soft_tpu
from tf2_engine.keras import exportable

RUNS = [(1, "functional", "loop"), (1, "subclass", "fit"), (2, "subclass", "loop"),
        (2, "functional", "fit")]  # fmt: skip
"""Cores, form of the model, and how it is trained."""


def compiled_model(keras: Any, strategy: Any, arithmetic: str) -> tuple[Any, Any]:
    """Returns a model of ids and the optimizer that it was made with, under a strategy."""
    with strategy.scope():
        optimizer = keras.optimizers.Adagrad(models.RATE)
        return models.make_model(keras, "subclass", optimizer, arithmetic=arithmetic), optimizer


def on_cpu(model: Any) -> Any:
    """Returns the output of a model that was not built for a TPU."""
    return model(next(iter(models.dataset(models.GLOBAL_BATCH)))[0])


def checkpoints(keras: Any, folder: str) -> dict[str, Any]:
    """Saves on a TPU and restores on a CPU, in both arithmetics, and the other way round."""
    results: dict[str, Any] = {}
    strategy = soft_tpu.SoftTPUStrategy(2)
    model, optimizer = compiled_model(keras, strategy, "tpu")
    models.train(strategy, model, optimizer, "loop")
    (table, _) = models.layer_of(model).embedding_tables.values()
    results["stand-in/shards"] = len(table.variables)
    results["stand-in/before"] = tf.convert_to_tensor(table)
    path = tf.train.Checkpoint(model=model).save(f"{folder}/of_tpu")
    results["stand-in/after"] = tf.convert_to_tensor(table)
    results |= models.prefixed("of_tpu/tpu", models.tables_of(model))
    for arithmetic in ("tpu", "keras"):
        other, _ = compiled_model(keras, tf.distribute.get_strategy(), arithmetic)
        status = tf.train.Checkpoint(model=other).restore(path)
        on_cpu(other)
        if arithmetic == "tpu":
            status.assert_existing_objects_matched().assert_consumed()
        results |= models.prefixed(f"of_tpu/{arithmetic}", models.tables_of(other))
        saved = tf.train.Checkpoint(model=other).save(f"{folder}/of_{arithmetic}")
        strategy = soft_tpu.SoftTPUStrategy(2)
        back, optimizer = compiled_model(keras, strategy, "tpu")
        tf.train.Checkpoint(model=back).restore(saved).expect_partial()
        back.compile(optimizer, loss="mse")
        results[f"back/{arithmetic}/predict"] = back.predict(
            models.distributed(strategy), steps=models.STEPS, verbose=0
        )
        results[f"back/{arithmetic}/model"] = other.predict(
            models.dataset(models.GLOBAL_BATCH), verbose=0
        )
        results |= models.prefixed(f"back/{arithmetic}", models.tables_of(back))
    return results


def exports(keras: Any, folder: str) -> dict[str, Any]:
    """Exports a model straight from training on a TPU, and from its restore on a CPU."""
    expected: dict[str, Any] = {}
    strategy = soft_tpu.SoftTPUStrategy(2)
    model, optimizer = compiled_model(keras, strategy, "tpu")
    models.train(strategy, model, optimizer, "loop")
    path = tf.train.Checkpoint(model=model).save(f"{folder}/exported")
    restored, _ = compiled_model(keras, tf.distribute.get_strategy(), "tpu")
    tf.train.Checkpoint(model=restored).restore(path).expect_partial()
    features, _ = next(iter(models.dataset(models.GLOBAL_BATCH * models.STEPS)))
    for source, one in (("trained", model), ("restored", restored)):
        serve = models.serving_function(one)
        tf.saved_model.save(exportable(one), f"{folder}/{source}", signatures=serve)
        expected[source] = restored(features)
    return expected


def main(name: str, folder: str) -> None:
    """Runs everything with one Keras, and writes the results to a file."""
    keras = tf.keras if name == "tf.keras" else importlib.import_module(name)
    results: dict[str, Any] = {}
    for cores, form, how in RUNS:
        state = models.run(keras, soft_tpu.SoftTPUStrategy(cores), form, how, "tpu")
        results |= models.prefixed(f"{cores}/{form}/{how}", state)
    for cores, built in itertools.product((1, 2), (True, False)):
        if built or not hasattr(keras, "Variable"):
            strategy = soft_tpu.SoftTPUStrategy(cores)
            results |= models.prefixed(
                f"separate/{cores}/{int(built)}", models.separate(keras, strategy, "tpu", built)
            )
    results |= models.prefixed(
        "separate/cpu", models.separate(keras, tf.distribute.get_strategy(), "keras")
    )
    results |= models.prefixed("checkpoints", checkpoints(keras, folder))
    results |= models.prefixed("exports", exports(keras, folder))
    models.write(results, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The catalogue's rows for settings of runs: calls to estimators, TPUConfig, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.settings import row
from estimator_bridge.settings.row import SettingRow, always, equals, no_input_per_host

RUNS: Mapping[str, SettingRow] = {
    "predict": row.surprising(
        cpu="works",
        tpu="broken: features are never looked up",
        tf2="looks features up without training",
        way_out="the bridge's predict works",
        sparse_core=row.other("looks features up without training"),
        bridge="works, also with one core and without a TPU",
        why="predictions need no TPU hardware",
        detect=always("TPUEstimator.predict"),
    ),
    "export_to_tpu": row.plain(
        cpu="no graph for TPUs is exported",
        tpu="a graph for TPUs is exported as well",
        tf2="a SavedModel with TensorFlow's own ops",
        bridge="no graph for TPUs is exported, and a log line says so",
        why="such a graph loads only on TPU hardware",
        reads={"TPUEstimator.export_to_tpu": equals(True)},
        warnings={
            row.EXPORT: "export_to_tpu=True: no graph for TPUs (tags serve, tpu) is exported; the "
            'graph with the tag "serve" has only TensorFlow\'s own ops, for CPUs and GPUs.'
        },
    ),
    "best_exporter": row.surprising(
        cpu="after a restart, the first model is always exported, and later models are compared "
        "with it",
        tpu="the same",
        tf2="gone; the exporter of tf2_engine.keras keeps the best model",
        way_out="the bridge keeps the best model across restarts (quirks='documented'); if the "
        "evaluation has a name, set the exporter's event_file_pattern to the evaluation's files",
        why="the documentation says that the exporter exports a model if it is better than every "
        "existing model",
        quirks={
            "stock": "the same, with a warning",
            "documented": "a model is exported if it is better than all models that earlier "
            "runs evaluated, or if none is exported yet",
        },
        calls=("BestExporter",),
        warnings={
            (
                row.EXPORT,
                "stock",
            ): "{where}this model is exported although an earlier run evaluated "
            "a better model, and later models are compared with this one, as stock does after a "
            'restart. quirks="documented" keeps the best model.',
        },
    ),
    "final_exporter": row.surprising(
        cpu="exports nothing if max_steps is None, or if a hook or the end of the input ends "
        "training before max_steps",
        tpu="the same",
        tf2="gone",
        way_out="set max_steps to the step at which training ends, or use a LatestExporter",
        bridge="the same, with a warning",
        why="every exporter receives is_the_final_export, and programs write their own exporters",
        calls=("FinalExporter",),
        warnings={
            row.EXPORT: "{where}nothing is exported: training ended at step {value}, and an "
            "export is final only at step max_steps={max_steps} or later. Set max_steps to "
            "the last step, or use a LatestExporter.",
        },
    ),
    "iterations_per_loop": row.fields(
        "TPUConfig: iterations_per_loop",
        "hooks are called once per loop of this many steps; for a time such as '60m', stock "
        "estimates the number of steps",
        "`steps_per_execution` of Keras, or your own loop",
        bridge="the same; a loop with a time ends when the time is up",
        why="the program asked for a time, not for a number of steps",
    ),
    "host_call": row.fields(
        "TPUConfig: experimental_host_call_every_n_steps",
        "the number of steps from one host call to the next inside a loop",
        "summaries can be written anywhere",
    ),
    "num_shards": row.plain(
        cpu=row.DEVICE_ONLY,
        tpu="the number of cores; the bridge emulates them",
        tf2="the replicas of a TPUStrategy",
        sparse_core=row.other(
            "the replicas of a TPUStrategy; their SparseCores together must be a power of two",
            "use 1, 2, 4, 8, ... cores",
        ),
        reads={"TPUConfig.num_shards": None},
        cause_name="core count",
        cause="Side A has {a} core(s), and side B {b}: batches are split differently, losses are "
        "divided by different numbers, and batch statistics come from different samples. Set "
        "TPUConfig.num_shards to the same number; stock runs one core on the software TPU.",
    ),
    "one_core": row.refused(
        cpu="works",
        tpu="num_shards=1 with embeddings is an error",
        tf2="works",
        way_out="the bridge accepts one core",
        bridge="works",
        why="the limit only concerns TPU hardware",
        sparse_core=row.other("works"),
        reads={"TPUConfig.num_shards": equals(1)},
    ),
    "model_parallelism": row.fields(
        "TPUConfig: num_cores_per_replica input_partition_dims",
        "several cores share a replica",
        "the `device_assignment` of a TPUStrategy",
        bridge="each replica computes the whole model, and a log line says so",
        why="sharing only affects the layout on TPU hardware, not the results",
        sparse_core=row.other("each core is a replica of its own; tables are on all cores"),
    ),
    "input_per_host": row.refused(
        cpu="works",
        tpu="with embeddings, only PER_HOST_V1 and PER_HOST_V2 work",
        tf2="one dataset per host, or per replica",
        way_out="set per_host_input_for_training to PER_HOST_V2",
        sparse_core=row.other("one dataset per host, or per replica"),
        reads={"TPUConfig.per_host_input_for_training": no_input_per_host},
    ),
    "feeding_of_devices": row.fields(
        "TPUConfig: eval_training_input_configuration initial_infeed_sleep_secs tpu_job_name "
        "experimental_feed_hook experimental_allow_per_host_v2_parallel_get_next",
        "how hosts feed their TPUs; the bridge does not feed TPUs and does not need these settings",
        "tf.data and the strategy feed them",
    ),
    "sparse_core": row.differs(
        cpu="ignored",
        tpu="honoured by embedding hardware of the first generation (TPU v2 and v3)",
        tf2="TPUs with SparseCores (v5p, v6e, TPU7x) refuse or ignore it",
        way_out="audit --target says whether it is refused or ignored; the host driver of "
        "tf2_engine supports it",
    ),
    "canned_estimator": row.differs(
        cpu="works up to TensorFlow 2.15",
        tpu="no embeddings on a TPU",
        tf2="gone",
        way_out="run it with estimator-bridge, which has all canned estimators except boosted "
        "trees",
    ),
    "canned_loss": row.surprising(
        cpu="tf.compat.v1.estimator: the sum over the batch; tf.estimator: the mean",
        tpu="the same",
        tf2="Keras computes the mean",
        way_out="set loss_reduction; with SGD, a sum trains like a mean if you divide the learning "
        "rate by the batch size",
        shown="{value}",
    ),
    "canned_shared": row.surprising(
        cpu="estimators of tf.estimator never train the table of shared_embeddings; those of "
        "tf.compat.v1.estimator do",
        tpu="the same",
        tf2="trained",
        way_out="the bridge trains it (quirks='documented'); elsewhere use an embedding_column",
        why="the documentation says that the table is trainable, but existing models were trained "
        "without it",
        quirks={
            "stock": "not trained, with a warning",
            "documented": "trained by the optimizer of the network",
        },
        calls=("shared_embeddings",),
        warnings={
            (row.TRAINING, "stock"): "{where}the shared table {value} is not trained, because "
            'stock\'s tf.estimator does not train it. quirks="documented" trains it.',
        },
    ),
    "canned_outside": row.surprising(
        cpu="estimators of tf.estimator, and DNNLinearCombined estimators of "
        "tf.compat.v1.estimator, never train a variable that an input_fn creates; other "
        "estimators train it",
        tpu="the same",
        tf2="a model trains its own variables",
        way_out="create the variable in your own model_fn or layer",
        bridge="the same, with a warning",
        why="existing models were trained without it",
        warnings={
            row.TRAINING: "the variable {value} is made before the model, by the input_fn; as in "
            "stock, it is therefore not trained. To train it, make it in your own model_fn.",
        },
    ),
    "canned_rate": row.surprising(
        cpu="tf.compat.v1.estimator: 0.05; tf.estimator: Keras's default, 0.001 for most "
        "optimizers",
        tpu="the same",
        tf2="Keras's default",
        way_out="pass the optimizer as an object, with its rate",
        shown="{value}",
    ),
    "canned_optimizer": row.refused(
        cpu="an error from TensorFlow 2.11 on: Keras's new optimizers cannot train in graphs",
        tpu="the same",
        tf2="works in Keras",
        way_out="use the optimizer from tf.keras.optimizers.legacy",
        shown="{value}",
    ),
    "parts_of_unknown_order": row.surprising(
        cpu="a checkpoint is restored as if it had been written with div",
        tpu="div and mod write files that differ only in the order of rows",
        tf2="rows are in the order of the ids",
        way_out="tell convert how the checkpoint was written: --spec, or --from_partition and "
        "--from_hosts",
        sparse_core=row.other(
            "the checkpoint says where rows are",
            "tell convert how the old checkpoint was written",
        ),
        shown="{value} parts",
    ),
    "no_slots": row.differs(
        cpu="slots have the names of the model's optimizer",
        tpu="the device's slots have different names",
        tf2="slots belong to the table",
        way_out="slots that are not found start from their initial values; name the optimizer "
        "with --optimizer",
        sparse_core=row.other(
            "slots belong to the stack; if the layout differs, stock's restore silently resets "
            "them",
            "convert with --to sparsecore and --like",
        ),
        shown="without {value}",
    ),
}

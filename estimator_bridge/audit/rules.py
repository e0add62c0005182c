"""What stock ignores or treats surprisingly: one row each, with what CPU, TPU and TF2 do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

KINDS = {
    "ignored": "stock drops it without a word",
    "surprising": "stock does something else than one would expect",
    "differs": "CPU, TPU and TensorFlow 2 differ",
    "refused": "stock raises an error",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One thing to know.

    Attributes:
        kind: one of `KINDS`.
        cpu: what stock does with use_tpu=False; with use_tpu=True the bridge does as `tpu` says.
        tpu: what stock does with use_tpu=True.
        tf2: what becomes of it in TensorFlow 2.
        way_out: what to do about it.
    """

    kind: str
    cpu: str
    tpu: str
    tf2: str
    way_out: str


_STEP_IN_TF2 = "a callable without arguments; who calls it counts the step"
_NOT_ON_CPU = "ignored: the model's optimizer trains the tables"

RULES: Mapping[str, Rule] = {
    "clipping_limit": Rule(
        "ignored",
        "ignored",
        "ignored, although documented",
        "no such setting",
        "set clip_weight_min and clip_weight_max of the optimizer, or quirks='documented', which "
        "does it; quirks='stock' keeps stock's numbers",
    ),
    "optimization_parameters": Rule(
        "differs",
        _NOT_ON_CPU,
        "the device applies them, without the model's optimizer",
        "the optimizer of each TableConfig; stock's TPUEmbedding trains on a TPU only, tf2_engine "
        "anywhere",
        "do not compare numbers of use_tpu=False and True; the bridge has the device's rules on "
        "any machine",
    ),
    "adam_without_correction": Rule(
        "surprising",
        _NOT_ON_CPU,
        "no bias correction, epsilon (1e-8) inside of the root, only rows of the batch move",
        "the same rule, but its epsilon is 1e-7 unless written out; Keras's Adam corrects the bias",
        "carry every setting explicitly, as to_tf2 does",
    ),
    "ftrl_zero_accumulator": Rule(
        "refused",
        _NOT_ON_CPU,
        "accumulators may start at 0",
        "stock's FTRL refuses an initial accumulator of 0",
        "use tf2_engine.FTRL",
    ),
    "optimizer_lost": Rule(
        "refused",
        _NOT_ON_CPU,
        "the device applies it",
        "tf.tpu.experimental.embedding has no such class",
        "use the one of tf2_engine",
    ),
    "no_gradient_accumulation": Rule(
        "surprising",
        _NOT_ON_CPU,
        "each core's sum is applied by itself, the owner of the row first, so the numbers depend "
        "on the number of cores",
        "the same; SparseCores ignore it",
        "keep the number of cores (TPUConfig.num_shards), or accumulate",
    ),
    "learning_rate_zero": Rule(
        "ignored",
        "ignored",
        "0.0 counts as unset: the optimizer's rate is used",
        "a rate of 0.0 is 0.0",
        "leave it out, or freeze the table by a learning_rate_fn that returns 0",
    ),
    "learning_rate_fn": Rule(
        "surprising",
        _NOT_ON_CPU,
        "called with the global step, which is read in no fixed order to its increment; tags of "
        "several functions are in the order of a set, which differs from run to run",
        _STEP_IN_TF2,
        "the bridge reads the step before it is counted, and orders tags by first use",
    ),
    "weight_decay_zero": Rule(
        "ignored",
        _NOT_ON_CPU,
        "0.0 counts as unset, and so does its multiplication by the rate",
        "0.0 is no decay",
        "leave it out",
    ),
    "combiner_none": Rule(
        "surprising",
        "the mean of a sample's rows",
        "the sum of a sample's rows; dense ids are one per sample",
        "refused: 'sum', 'mean' or 'sqrtn'",
        "write the combiner that is meant; to_tf2 takes 'sum'",
    ),
    "hot_id_replication": Rule(
        "differs",
        "ignored",
        "frequent rows are kept on every core; no number changes",
        "no such setting in a TableConfig",
        "leave it out, or hand tf2_engine an EngineSpec",
    ),
    "mod_partitioning": Rule(
        "refused",
        "refused; so is eval_on_tpu=False",
        "rows lie in checkpoints in an order that depends on the number of hosts; evaluation on "
        "CPUs and exports read the wrong rows",
        "stock's TPUEmbedding knows div alone",
        "convert checkpoints with --from_partition mod; the bridge works with mod everywhere",
    ),
    "config_dicts": Rule(
        "surprising",
        "nothing is looked up: model_fn is handed raw ids",
        "looked up",
        "FeatureConfigs, looked up everywhere",
        "the bridge looks them up with use_tpu=False, too",
    ),
    "gradient_multiplier": Rule(
        "differs",
        "ignored",
        "multiplies the gradients of all activations, not the loss",
        "no such setting",
        "multiply the gradients before apply_gradients",
    ),
    "pipelining": Rule(
        "surprising",
        "ignored",
        "activations of a step do not see the update of the step before it",
        "the same, off by default",
        "expect other numbers than without; the bridge has the same staleness",
    ),
    "profile_data_directory": Rule(
        "differs",
        "ignored",
        "the device writes lookup statistics there",
        "no such setting",
        "hand tf2_engine an EngineSpec",
    ),
    "column_transforms_on_cpu_only": Rule(
        "surprising",
        "the column hashes, looks up or replaces its input",
        "the ids of the input_fn are looked up as they are; strings are an error",
        "feature columns are not used",
        "make ids in the input_fn; in TensorFlow 2 use to_tf2().preprocessing",
    ),
    "weighted_feature": Rule(
        "surprising",
        "dense and sparse weights work; weights of 0 and less drop the id unless summed",
        "dense weights are an error, and with dense ids of rank 2 the weights are dropped in "
        "silence",
        "weights go beside the ids; off a TPU stock refuses them for dense ids and sequences",
        "make ids and weights sparse in the input_fn",
    ),
    "dense_ids": Rule(
        "surprising",
        "-1 is left out",
        "id 0 is left out where there is a combiner; with ids of rank 1 the samples behind it "
        "shift",
        "every id counts",
        "hand sparse ids to features with a combiner",
    ),
    "sequence": Rule(
        "differs",
        "as long as the longest sequence of the batch, nothing is cut",
        "cut or filled up to max_sequence_length; lengths are a feature of their own",
        "cut or filled up; no lengths; SparseCores ignore max_sequence_length",
        "do not rely on the width; lengths are in to_tf2().preprocessing",
    ),
    "tensor_core_column": Rule(
        "surprising",
        "an ordinary embedding column",
        "an ordinary variable, looked up by a product; the shape is kept on the class, so columns "
        "of different shapes share the last one",
        "no such column",
        "use a Keras Embedding",
    ),
    "deprecated_column": Rule(
        "differs",
        "works",
        "works, but hashed, bucketized and crossed input is refused",
        "feature columns are not used",
        "make it with tf.compat.v1.tpu.experimental.embedding_column",
    ),
    "ids_out_of_range": Rule(
        "surprising",
        "an id below 0 is left out, one beyond the table is an error",
        "unspecified: any row, or none",
        "unspecified on a TPU",
        "the bridge and tf2_engine name table, feature and id, or drop the id on request",
    ),
    "predict": Rule(
        "surprising",
        "works",
        "broken: features are never looked up",
        "a lookup without training",
        "the bridge's predict works",
    ),
    "one_core": Rule(
        "refused",
        "works",
        "num_shards=1 with embeddings is an error",
        "works",
        "the bridge takes one core",
    ),
    "input_per_host": Rule(
        "refused",
        "works",
        "with embeddings only PER_HOST_V1 and PER_HOST_V2",
        "one dataset per host, or per replica",
        "set per_host_input_for_training to PER_HOST_V2",
    ),
    "sparse_core": Rule(
        "differs",
        "ignored",
        "honoured by embedding hardware of the first generation (TPU v2 to v4)",
        "TPUs with SparseCores refuse or ignore it",
        "use the host driver of tf2_engine there",
    ),
    "canned_estimator": Rule(
        "refused",
        "works up to TensorFlow 2.15",
        "no embeddings on a TPU",
        "gone",
        "write the model as a model_fn, or in Keras",
    ),
    "parts_of_unknown_order": Rule(
        "surprising",
        "restored as if by div",
        "div and mod write the same file, with the rows in another order",
        "rows are in the order of the ids",
        "tell convert how it was written: --spec, or --from_partition and --from_hosts",
    ),
    "no_slots": Rule(
        "differs",
        "slots have the names of the model's optimizer",
        "slots of the device have names of their own",
        "slots belong to the table",
        "slots start anew if they are not found; say the optimizer with --optimizer",
    ),
}
"""By name; documents and tests go through this table."""

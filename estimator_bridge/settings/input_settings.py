"""Settings of inputs: features, their columns, and ids."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.settings import row as on
from estimator_bridge.settings import row_kinds as kinds
from estimator_bridge.settings.detectors import always, dense_ids, equals, is_set
from estimator_bridge.settings.legacy_spec import Place
from estimator_bridge.settings.row import SettingRow

INPUTS: Mapping[str, SettingRow] = {
    "feature_columns": kinds.fields(
        "EmbeddingConfigSpec: feature_columns tensor_core_feature_columns",
        "tables and features",
        "FeatureConfigs and `preprocessing`",
        cpu="ordinary columns, which look up by themselves",
    ),
    "column_of_unknown_kind": kinds.plain(
        cpu="works",
        tpu="works",
        tf2="its ids cannot be made without it",
        change=kinds.by_hand("", "{value}", was="columns", setting="feature_columns"),
    ),
    "column_transforms_on_cpu_only": kinds.surprising(
        cpu="the column hashes, looks up or replaces its input",
        tpu="the ids of the input_fn are looked up as they are; strings are an error",
        tf2="feature columns are not used",
        way_out="make ids in the input_fn; in TensorFlow 2 use to_tf2().preprocessing",
        sparse_core=kinds.other(
            "ids are ids", "make ids in the input_fn, or by to_tf2().preprocessing"
        ),
        shown="its column {value}",
        warnings={
            on.LOOKUP: "{where}its column {value} with use_tpu=False only; with use_tpu=True the "
            "ids of the input_fn are looked up as they are."
        },
        change=kinds.numbers(
            "preprocessing",
            "On a TPU the legacy column leaves values as they are; `preprocessing` transforms them "
            "as off a TPU. Hand it what comes before your own transformation, or hand the ids to "
            "the engine directly.",
            was="ids of the input_fn, as they are",
            setting="categorical_column",
        ),
    ),
    "weighted_feature": kinds.surprising(
        cpu="dense and sparse weights work; weights of 0 and less drop the id unless summed",
        tpu="dense weights are an error, and with dense ids of rank 2 the weights are dropped in "
        "silence",
        tf2="weights go beside the ids; off a TPU stock refuses them for dense ids and sequences",
        way_out="make ids and weights sparse in the input_fn",
        sparse_core=kinds.raises(
            "ValueError unless weights are sparse or ragged as their ids are; ids of weight 0 "
            "count as touched",
            "make ids and weights sparse or ragged",
        ),
        reads={"FeatureConfig.weight_key": is_set},
        calls=("weighted_categorical_column",),
        shown="weights {value!r}",
        change=kinds.form(
            "weights of `enqueue`",
            "TensorFlow 2 takes weights beside ids, not among the features; `preprocessing` "
            "returns both.",
        ),
    ),
    "dense_ids": kinds.surprising(
        cpu="-1 is left out",
        tpu="id 0 is left out where there is a combiner; with ids of rank 1 the samples behind it "
        "shift",
        tf2="every id counts",
        way_out="hand sparse ids to features with a combiner",
        why="0 is what batches of rank 2 are padded with; of rank 1, no program can have meant "
        "that samples get the rows of others",
        quirks={
            "stock": "the same of rank 2, with a warning; of rank 1 an error when a batch contains "
            "id 0",
            "documented": "the same of rank 2, with a warning; of rank 1 ids as they are, with a "
            "warning",
        },
        sparse_core=kinds.raises(
            "dense ids are one per sample; more are an error, and every id counts",
            "make ids sparse or ragged, sorted by sample, without -1 and without the id 0 of "
            "padding",
        ),
        detect=dense_ids,
        warnings={
            on.DENSE_RANK_2: "{where}the ids are dense, of rank 2: id 0 is taken for padding and "
            "dropped{weights}, as stock does. Give a SparseTensor to keep it.",
            (on.DENSE_RANK_1, "documented"): "{where}the ids are dense, of rank 1: one id per "
            'sample, id 0 too{weights}. Stock fails on id 0 (quirks="stock").',
            (on.DENSE_RANK_1, "stock"): "{where}the ids are dense, of rank 1, and the table has a "
            "combiner: stock fails on every batch with id 0{weights}. Give a SparseTensor, or use "
            'quirks="documented".',
        },
    ),
    "padding_of_dense_ids": kinds.plain(
        cpu="-1 and ''",
        tpu="0 where there is a combiner",
        tf2="-1 and '' of `preprocessing`; none of the engine",
        detect=always("features"),
        change=kinds.numbers(
            "-1 is left out",
            "Stock drops id 0 of dense tensors on a TPU; `preprocessing` drops -1 and '', as "
            "feature columns do off a TPU.",
            was="0 is left out where there is a combiner",
            setting="dense ids",
        ),
    ),
    "sequence": kinds.differs(
        cpu="as long as the longest sequence of the batch, nothing is cut",
        tpu="cut or filled up to max_sequence_length, but in exports looked up whole; lengths are "
        "a feature of their own",
        tf2="cut or filled up; no lengths; SparseCores ignore max_sequence_length",
        way_out="do not rely on the width, and cut longer sequences in the input_fn and in the "
        "serving_input_receiver_fn; lengths are in to_tf2().preprocessing",
        why="an exported model is to answer as the model that was trained and evaluated",
        quirks={
            "stock": "the same, with a warning",
            "documented": "cut or filled up in exports too, with a warning",
        },
        sparse_core=kinds.dropped(
            "max_sequence_length is ignored; ids of rank 3 are refused",
            "make ids ragged with a row for each position, [batch · T] with one id or none, and "
            "output_shape=[batch, T]; cut and count in the program",
        ),
        reads={
            "FeatureConfig.max_sequence_length": is_set,
            "shared_embedding_columns.max_sequence_lengths": is_set,
        },
        change=kinds.form(
            "FeatureConfig.max_sequence_length",
            "TensorFlow 2 returns no lengths beside the activations; `preprocessing` does.",
        ),
        warnings={
            (on.EXPORT, "stock"): "{where}max_sequence_length={value}: the exported model looks "
            "up whole sequences, as stock's does, where training cuts them. Cut longer ones in the "
            'serving_input_receiver_fn, or use quirks="documented".',
            (on.EXPORT, "documented"): "{where}max_sequence_length={value}: the exported model "
            "cuts longer sequences, as training does; stock's looks them up whole "
            '(quirks="stock").',
        },
        cause_name="sequence length",
        cause="{who} alone cuts a sequence to its max_sequence_length: {lengths}. Cut longer ones "
        "in the {function}.",
    ),
    "tensor_core_column": kinds.surprising(
        cpu="an ordinary embedding column",
        tpu="an ordinary variable, looked up by a product; the shape is kept on the class, so "
        "columns of different shapes share the last one",
        tf2="no such column",
        way_out="use a Keras Embedding",
        sparse_core=kinds.other("no such column", "use a Keras Embedding"),
        reads={"embedding_column.embedding_lookup_device": equals("tpu_tensor_core")},
        detect=lambda legacy: [
            (Place("feature", column.key), "tpu_tensor_core")
            for column in legacy.tensor_core_columns
        ],
        shown="",
        change=kinds.by_hand(
            "tf.keras.layers.Embedding",
            "Its table is an ordinary variable of the model, which the model's optimizer trains.",
        ),
    ),
    "deprecated_column": kinds.differs(
        cpu="works",
        tpu="works, but hashed, bucketized and crossed input is refused",
        tf2="feature columns are not used",
        way_out="make it with tf.compat.v1.tpu.experimental.embedding_column",
        shown="columns of type {value} are deprecated",
        warnings={
            on.LOOKUP: "{where}columns of type {value} are deprecated; make it with "
            "tf.compat.v1.tpu.experimental.embedding_column."
        },
    ),
    "ids_out_of_range": kinds.surprising(
        cpu="an id below 0 is left out, one beyond the table is an error",
        tpu="unspecified: any row, or none",
        tf2="unspecified on a TPU",
        way_out="the bridge and tf2_engine name table, feature and id, or drop the id on request",
        sparse_core=kinds.other(
            "an id beyond the table looks up, and trains, padding or a row of another table; ids "
            "are cut to 32 bits",
            "check ids in the input_fn; the software SparseCore and the host driver name them",
        ),
        bridge="an error that names table, feature and id",
        why="no public document says what a TPU does; `python -m compat_tests` asks whatever "
        "executes",
        detect=always("all features"),
    ),
}

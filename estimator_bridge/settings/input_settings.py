"""The catalogue's rows for settings of inputs: features, columns, and ids."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.settings import row
from estimator_bridge.settings.legacy_spec import Place
from estimator_bridge.settings.row import SettingRow, always, dense_ids, equals, is_set

INPUTS: Mapping[str, SettingRow] = {
    "feature_columns": row.fields(
        "EmbeddingConfigSpec: feature_columns tensor_core_feature_columns",
        "tables and features",
        "FeatureConfigs and `preprocessing`",
        cpu="ordinary feature columns, which do their own lookups",
    ),
    "column_of_unknown_kind": row.plain(
        cpu="works",
        tpu="works",
        tf2="the ids cannot be computed without the column",
        change=row.by_hand("", "{value}", was="columns", setting="feature_columns"),
    ),
    "column_transforms_on_cpu_only": row.surprising(
        cpu="the column hashes, looks up or replaces its input",
        tpu="the ids from the input_fn are looked up unchanged; strings are an error",
        tf2="feature columns are not used",
        way_out="compute the ids in the input_fn; in TensorFlow 2 use to_tf2().preprocessing",
        sparse_core=row.other(
            "ids are looked up unchanged",
            "compute the ids in the input_fn, or with to_tf2().preprocessing",
        ),
        shown="its column {value}",
        warnings={
            row.LOOKUP: "{where}its column {value} only with use_tpu=False; with use_tpu=True, the "
            "ids from the input_fn are looked up as they are."
        },
        change=row.numbers(
            "preprocessing",
            "On a TPU the legacy column leaves values unchanged; `preprocessing` transforms "
            "them, as the column does without a TPU. Pass it the values before your own "
            "transformation, or pass the ids to the engine directly.",
            was="ids of the input_fn, unchanged",
            setting="categorical_column",
        ),
    ),
    "weighted_feature": row.surprising(
        cpu="dense and sparse weights work; an id whose weight is 0 or negative is dropped, "
        "unless the combiner is a sum",
        tpu="dense weights for sparse ids are an error; with dense ids of rank 2, all weights are "
        "silently dropped",
        tf2="weights are a separate argument, beside the ids; without a TPU, stock refuses them "
        "for dense ids and sequences",
        way_out="make ids and weights sparse in the input_fn",
        sparse_core=row.raises(
            "ValueError unless weights have the form of their ids, sparse or ragged; rows of "
            "ids with weight 0 count as touched",
            "make ids and weights sparse or ragged",
        ),
        reads={"FeatureConfig.weight_key": is_set},
        calls=("weighted_categorical_column",),
        shown="weights {value!r}",
        change=row.form(
            "weights of `enqueue`",
            "TensorFlow 2 takes weights beside ids, not among the features; `preprocessing` "
            "returns both.",
        ),
    ),
    "dense_ids": row.surprising(
        cpu="the id -1 is skipped",
        tpu="id 0 is skipped if the table has a combiner; with ids of rank 1, the sample with id 0 "
        "and all later samples get the activation of the next sample",
        tf2="every id is looked up",
        way_out="pass sparse ids if the table has a combiner",
        why="batches of rank 2 are padded with 0; with rank 1, no program can have intended "
        "that samples get the rows of other samples",
        quirks={
            "stock": "the same for rank 2, with a warning; for rank 1 an error when a batch "
            "contains id 0",
            "documented": "the same for rank 2, with a warning; for rank 1 every id is looked "
            "up, with a warning",
        },
        sparse_core=row.raises(
            "dense ids mean exactly one id per sample (more are an error), and every id is looked "
            "up, even 0",
            "make ids sparse or ragged, sorted by sample, without -1, and without 0 where it is "
            "padding",
        ),
        detect=dense_ids,
        warnings={
            row.DENSE_RANK_2: "{where}the ids are dense, of rank 2: as in stock, id 0 is treated "
            "as padding and dropped{weights}. Give a SparseTensor to keep id 0.",
            (row.DENSE_RANK_1, "documented"): "{where}the ids are dense, of rank 1: each sample "
            'has one id, which may be 0{weights}. Stock fails on id 0 (quirks="stock").',
            (row.DENSE_RANK_1, "stock"): "{where}the ids are dense, of rank 1, and the table has a "
            "combiner: stock fails on every batch with id 0{weights}. Give a SparseTensor, or use "
            'quirks="documented".',
        },
    ),
    "padding_of_dense_ids": row.plain(
        cpu="-1 and ''",
        tpu="0, if the table has a combiner",
        tf2="`preprocessing` skips -1 and ''; the engine skips nothing",
        detect=always("features"),
        change=row.numbers(
            "the id -1 is skipped",
            "Stock drops id 0 of dense tensors on a TPU; `preprocessing` drops -1 and '', as "
            "feature columns do without a TPU.",
            was="0 is skipped if the table has a combiner",
            setting="dense ids",
        ),
    ),
    "sequence": row.differs(
        cpu="padded to the longest sequence in the batch; nothing is cut",
        tpu="cut or padded to max_sequence_length, but looked up whole in exports; the lengths "
        "are a separate feature",
        tf2="cut or padded; no lengths are returned; SparseCores ignore max_sequence_length",
        way_out="do not rely on the width, and cut longer sequences in the input_fn and in the "
        "serving_input_receiver_fn; to_tf2().preprocessing returns the lengths",
        why="an exported model should give the same answers as the model that was trained and "
        "evaluated",
        quirks={
            "stock": "the same, with a warning",
            "documented": "cut or padded in exports, too, with a warning",
        },
        sparse_core=row.dropped(
            "max_sequence_length is ignored; ids of rank 3 are refused",
            "give ragged ids, of shape [batch · T], a row for each position and at most one id per "
            "row; set output_shape=[batch, T]; cut the sequences and compute their lengths in the "
            "program",
        ),
        reads={
            "FeatureConfig.max_sequence_length": is_set,
            "shared_embedding_columns.max_sequence_lengths": is_set,
        },
        change=row.form(
            "FeatureConfig.max_sequence_length",
            "TensorFlow 2 returns no lengths beside the activations; `preprocessing` does.",
        ),
        warnings={
            (row.EXPORT, "stock"): "{where}max_sequence_length={value}: the exported model looks "
            "up whole sequences, as stock's does, although training cuts them. Cut longer "
            'sequences in the serving_input_receiver_fn, or use quirks="documented".',
            (row.EXPORT, "documented"): "{where}max_sequence_length={value}: the exported model "
            "cuts longer sequences, as training does; stock's exported model looks them up whole "
            '(quirks="stock").',
        },
        cause_name="sequence length",
        cause="{who} cuts a sequence to its max_sequence_length, and the other side does not: "
        "{lengths}. Cut longer sequences in the {function}.",
    ),
    "tensor_core_column": row.surprising(
        cpu="an ordinary embedding column",
        tpu="an ordinary variable, looked up by a matrix product; the shape is stored on the "
        "class, so columns of different shapes all use the last shape",
        tf2="no such column",
        way_out="use a Keras Embedding",
        sparse_core=row.other("no such column", "use a Keras Embedding"),
        reads={"embedding_column.embedding_lookup_device": equals("tpu_tensor_core")},
        detect=lambda legacy: [
            (Place("feature", column.key), "tpu_tensor_core")
            for column in legacy.tensor_core_columns
        ],
        shown="",
        change=row.by_hand(
            "tf.keras.layers.Embedding",
            "Its table is an ordinary variable of the model, which the model's optimizer trains.",
        ),
    ),
    "deprecated_column": row.differs(
        cpu="works",
        tpu="works, but hashed, bucketized and crossed input is refused",
        tf2="feature columns are not used",
        way_out="make it with tf.compat.v1.tpu.experimental.embedding_column",
        shown="columns of type {value} are deprecated",
        warnings={
            row.LOOKUP: "{where}columns of type {value} are deprecated; make it with "
            "tf.compat.v1.tpu.experimental.embedding_column."
        },
    ),
    "ids_out_of_range": row.surprising(
        cpu="a negative id is skipped, an id beyond the table is an error",
        tpu="unspecified: any row, or none",
        tf2="unspecified on a TPU",
        way_out="the bridge and tf2_engine raise an error that names table, feature and id, or "
        "drop the id on request",
        sparse_core=row.other(
            "an id beyond the table looks up and trains padding or a row of another table; ids "
            "are cut to 32 bits",
            "check ids in the input_fn; software SparseCores and the host driver name such ids",
        ),
        bridge="an error that names table, feature and id",
        why="no public document says what a TPU does; `python -m compat_tests` finds out what "
        "your hardware does",
        detect=always("all features"),
    ),
}

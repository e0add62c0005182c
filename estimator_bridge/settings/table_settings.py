"""The catalogue's rows for table settings, and for settings that decide how tables are stored."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.settings import row
from estimator_bridge.settings.legacy_spec import NOTHING, SPEC
from estimator_bridge.settings.row import SettingRow, equals, is_set

TABLES: Mapping[str, SettingRow] = {
    "table_size": row.fields(
        "TableConfig: vocabulary_size dimension initializer",
        "shape and initial values of a table",
        "`vocabulary_size`, `dim` and `initializer` of a TableConfig",
        cpu="shape and initial values of a variable",
        sparse_core=row.other(
            "padded to multiples of 8 columns, and of 8 rows per SparseCore; the initializer is "
            "called for each core with the padded shape, so with a seed it gives each core the "
            "same values",
            "load a converted checkpoint, or wrap the initializer in stock's shard_initializer",
        ),
    ),
    "combiner": row.fields(
        "TableConfig: combiner", "how a sample's rows are combined", "the same", cpu="the same"
    ),
    "combiner_none": row.surprising(
        cpu=row.NotAsWritten(
            "the mean of a sample's rows",
            "None is the mean with use_tpu=False, the sum with use_tpu=True",
        ),
        tpu="the sum of a sample's rows; dense ids mean one id per sample",
        tf2="None is refused: use 'sum', 'mean' or 'sqrtn'",
        sparse_core=row.raises(
            "None is refused: use 'sum', 'mean' or 'sqrtn'", "write the combiner that you mean"
        ),
        way_out="write the combiner that you mean; to_tf2 uses 'sum'",
        bridge="the same, depending on `use_tpu`, with a warning",
        why="programs have been trained in both ways",
        reads={"TableConfig.combiner": equals(None)},
        shown="",
        warnings={
            row.LOOKUP: "{where}combiner=None adds the embeddings of a sample's ids with "
            "use_tpu=True; stock takes their mean with use_tpu=False.",
            row.EXPORT: "{where}combiner=None; the exported model takes the mean of a sample's "
            "embeddings, as stock's does, although training added them.",
        },
        change=row.numbers(
            "'sum'",
            "TensorFlow 2 refuses None. With None, a TPU adds the rows of a sample; without a "
            "TPU, stock takes their mean.",
        ),
        cause_name="combiner None",
        cause="combiner=None is the mean with use_tpu=False and the sum with use_tpu=True; this "
        "applies to {tables}. Set the combiner explicitly.",
    ),
    "hot_id_replication": row.differs(
        cpu=row.DEVICE_ONLY,
        tpu="frequent rows are kept on every core; results do not change",
        tf2="no such setting in a TableConfig",
        way_out="leave it out, or pass an EngineSpec to tf2_engine",
        sparse_core=row.gone("there is no counterpart; results do not change"),
        reads={"TableConfig.hot_id_replication": equals(True)},
        shown="",
        change=row.ours("engine_spec", "A TableConfig has no such setting; results do not change."),
    ),
    "partition_strategy": row.fields(
        "EmbeddingConfigSpec: partition_strategy",
        "div: each host has consecutive rows",
        "the same",
        cpu="div: the rows of a variable are in the order of the ids",
        sparse_core=row.other(
            "always mod over SparseCores; each table begins at a different SparseCore; padded",
            "convert checkpoints with --to sparsecore",
        ),
    ),
    "mod_partitioning": row.refused(
        cpu="refused, and so is eval_on_tpu=False",
        tpu="the order of rows in checkpoints depends on the number of hosts; exports, and "
        "evaluation on CPUs, read the wrong rows",
        tf2="stock's TPUEmbedding only supports div",
        way_out="convert checkpoints with --from_partition mod; the bridge works with mod "
        "everywhere",
        sparse_core=row.other(
            "always mod over SparseCores; each table begins at a different SparseCore; padded; "
            "the layout of checkpoints depends on cores and SparseCores, not on hosts",
            "convert checkpoints with --to sparsecore",
        ),
        bridge="works, with a warning if `use_tpu=False`",
        why="mod only affects the layout of checkpoints, not the results",
        reads={"EmbeddingConfigSpec.partition_strategy": equals("mod")},
        warnings={
            row.OFF_TPU: "partition_strategy='mod' has no effect with use_tpu=False: tables are "
            "ordinary variables, whose rows are saved in the order of the ids.",
            row.LISTED_OFF_TPU: "partition_strategy='mod', which only affects checkpoints "
            "(rows are in the order of the ids here, as in checkpoints of a single host)",
        },
        change=row.ours(
            "engine_spec",
            "Stock's TPUEmbedding only supports 'div', and a feature_config has no such setting. "
            "Results do not depend on which host holds a row; `convert` reorders old checkpoints.",
        ),
    ),
    "config_dicts": row.surprising(
        cpu="nothing is looked up: model_fn gets raw ids",
        tpu="looked up, except in exports, where model_fn gets raw ids",
        tf2="FeatureConfigs, looked up everywhere",
        way_out="the bridge looks them up with use_tpu=False and in exports, too",
        bridge="looked up, with a warning if `use_tpu=False` and in exports",
        why="a program with config dicts should work in the same way with and without a TPU",
        reads={
            "EmbeddingConfigSpec.table_to_config_dict": is_set,
            "EmbeddingConfigSpec.feature_to_config_dict": None,
            "FeatureConfig.table_id": None,
        },
        detect=lambda legacy: [(SPEC, NOTHING)] if legacy.form == "dict" else [],
        warnings={
            row.DICTS_OFF_TPU: "use_tpu=False with config dicts: the tables {tables} are trainable "
            "variables, which the model's own optimizer trains. Unlike with use_tpu=True, these "
            "settings have no effect: {settings}.",
            row.EXPORT: "{where}config dicts: the exported model looks its features up, as "
            "training does; in exports, stock passes raw ids to the model_fn.",
        },
    ),
    "gradient_multiplier": row.differs(
        tpu="multiplies the gradients of all activations, not the loss",
        tf2="no such setting",
        way_out="multiply the gradients before apply_gradients",
        sparse_core=row.other("no such setting", "multiply the gradients of activations"),
        reads={"EmbeddingConfigSpec.experimental_gradient_multiplier_fn": is_set},
        change=row.by_hand(
            "gradient_multiplier()",
            "No TPUEmbedding has such a setting: multiply the gradients of all activations before "
            "`apply_gradients`.",
        ),
    ),
    "pipelining": row.surprising(
        cpu=row.DEVICE_ONLY,
        tpu="activations of a step do not include the update of the previous step",
        tf2="the same, off by default",
        way_out="expect different numbers than without pipelining; the bridge has the same "
        "staleness",
        sparse_core=row.other(
            "the same staleness, but only inside a compiled loop, and not while summaries are "
            "recorded",
            "put the training loop into a tf.function with tf.range",
        ),
        reads={"EmbeddingConfigSpec.pipeline_execution_with_tensor_core": equals(True)},
        cause_name="stale activation",
        cause="Table {table}, feature {feature}: in step {step} side {side} looks up the rows "
        "as they were after step {seen}, without the update in between. "
        "pipeline_execution_with_tensor_core has this effect.",
    ),
    "profile_data_directory": row.differs(
        cpu=row.DEVICE_ONLY,
        tpu="the device writes lookup statistics to this directory",
        tf2="no such setting",
        way_out="pass an EngineSpec to tf2_engine",
        sparse_core=row.gone("there is no counterpart; results do not change"),
        reads={"EmbeddingConfigSpec.profile_data_directory": is_set},
        shown="{value}",
        change=row.ours("engine_spec", "Stock's TPUEmbedding in TensorFlow 2 has no such setting."),
    ),
}

"""The catalogue: a row for every legacy setting, in the order of reports."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping

from estimator_bridge.settings import legacy_spec
from estimator_bridge.settings import row as on
from estimator_bridge.settings.legacy_spec import NOTHING, SPEC, LegacyOptimizer, LegacySpec, Place
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.settings.row import ChangeText, Ignored, OnSparseCores, SettingRow
from tf2_engine.types import Object

_DEVICE_ONLY = Ignored("ignored", "it has no effect with use_tpu=False")
_OF_OPTIMIZER = "the optimizer of the TableConfig has it"

_ignored = functools.partial(SettingRow, "ignored")
_surprising = functools.partial(SettingRow, "surprising")
_differs = functools.partial(SettingRow, "differs")
_refused = functools.partial(SettingRow, "refused")
_plain = functools.partial(SettingRow, on.PLAIN)

_form = functools.partial(ChangeText, "form")
_ours = functools.partial(ChangeText, "ours")
_numbers = functools.partial(ChangeText, "numbers")
_by_hand = functools.partial(ChangeText, "by hand")
_left_out = functools.partial(ChangeText, "left out", "")

# On TPUs with SparseCores.
_raises = functools.partial(OnSparseCores, "raises")
_dropped = functools.partial(OnSparseCores, "ignored")
_other = functools.partial(OnSparseCores, "other")
_gone = functools.partial(OnSparseCores, "gone")

_LOST = tuple(name for name, row in OPTIMIZERS.items() if not row.on_sparse_cores)
"""Optimizers that `tf.tpu.experimental.embedding` has no class for."""

# Which values of a setting matter to a row.
_off = operator.not_


def given(value: Object) -> bool:
    """Returns whether a setting is set."""
    return value is not None


def _zero(value: Object) -> bool:
    return not isinstance(value, bool) and bool(value == 0)


def _not_zero(value: Object) -> bool:
    return value is not None and not _zero(value)


def _equals(wanted: Object) -> on.When:
    return lambda value: value is wanted or bool(value == wanted)


def _no_input_per_host(value: Object) -> bool:
    """Returns whether an `InputPipelineConfig`, or its name, is neither PER_HOST_V1 nor V2."""
    # True is PER_HOST_V1 to stock, and 1 to Python.
    modes = (1, "PER_SHARD_V1", 4, "BROADCAST", 5, "SLICED")
    return value is False or (value is not True and value in modes)


def _always(place: str) -> on.Detector:
    return lambda legacy: [(Place(place), NOTHING)]


def _in_optimizers(value_of: Callable[[LegacyOptimizer], Object]) -> on.Detector:
    """Returns a detector of the optimizers for which a function returns a value to show."""
    return lambda legacy: (
        (where, value)
        for where, optimizer in legacy.optimizers()
        if (value := value_of(optimizer)) is not None
    )


def _multiplier_without_decay(optimizer: LegacyOptimizer) -> Object:
    multiplied = optimizer.settings["multiply_weight_decay_factor_by_learning_rate"]
    return True if multiplied and not optimizer.settings["weight_decay_factor"] else None


def _dense_ids(legacy: LegacySpec) -> Iterator[tuple[Place, Object]]:
    """Yields the features whose ids, if they are dense, lose id 0."""
    for feature in legacy.features:
        if not feature.max_sequence_length and legacy.table(feature.table).combiner is not None:
            yield Place("feature", feature.key), NOTHING


def _fields(
    fields: str,
    tpu: str,
    tf2: str,
    cpu: str = _DEVICE_ONLY,
    bridge: str = "",
    why: str = "",
    sparse_core: OnSparseCores = on.AS_BEFORE,
) -> SettingRow:
    """Returns a row about plain fields, named as in "FeatureConfig: table_id"."""
    owner, settings = fields.split(": ")
    reads: dict[str, on.When | None] = {f"{owner}.{name}": None for name in settings.split()}
    return _plain(tpu, tf2, cpu, bridge=bridge, why=why, reads=reads, sparse_core=sparse_core)


def _limits(name: str, tpu: str, sparse_core: OnSparseCores) -> SettingRow:
    """Returns a row about a lower and an upper limit of optimizers."""

    def limits(optimizer: LegacyOptimizer) -> Object:
        ends = optimizer.settings[f"{name}_min"], optimizer.settings[f"{name}_max"]
        return None if ends == (None, None) else ends

    return _plain(
        tpu,
        _OF_OPTIMIZER,
        sparse_core=sparse_core,
        reads={f"*Parameters.{name}_min": given, f"*Parameters.{name}_max": given},
        detect=_in_optimizers(limits),
        shown=f"{name}_min={{value[0]}}, {name}_max={{value[1]}}",
        finding="sparse_core",
    )


ROWS: Mapping[str, SettingRow] = {
    # Updates: optimizers, learning rates, decay and limits.
    "clipping_limit": _ignored(
        tpu=Ignored("ignored, although documented", "stock reads it nowhere"),
        tf2="no such setting",
        way_out="set clip_weight_min and clip_weight_max of the optimizer, or quirks='documented', "
        "which does it; quirks='stock' keeps stock's numbers",
        why="the setting is documented, and programs were trained without it",
        quirks={
            "stock": Ignored(
                "ignored, with a warning", "the bridge ignores it as stock does (quirks=stock)"
            ),
            "documented": "weights are clipped to ±limit unless the optimizer sets limits of its "
            "own",
        },
        reads={"EmbeddingConfigSpec.clipping_limit": given},
        shown="{value}",
        warnings={
            (on.TRAINING, "stock"): "`clipping_limit`={value} is ignored, as stock ignores it. Use "
            '`clip_weight_min` and `clip_weight_max` of the optimizer, or quirks="documented".',
            (on.TRAINING, "documented"): "`clipping_limit`={value}: weights are kept in [-{value}, "
            "{value}] as documented, in tables whose optimizer sets no `clip_weight_min` or "
            '`clip_weight_max`; stock ignores it (quirks="stock").',
        },
        change=_numbers(
            "clip_weight_min, clip_weight_max",
            'Documented, but stock ignores it; quirks="stock" does so, too.',
        ),
        change_of_stock=_left_out(
            'Documented, but stock ignores it; quirks="documented" honours it.'
        ),
    ),
    "optimization_parameters": _differs(
        tpu="the device applies them, without the model's optimizer",
        tf2="the optimizer of each TableConfig; stock's TPUEmbedding trains on a TPU only, "
        "tf2_engine anywhere",
        way_out="do not compare numbers of use_tpu=False and True; the bridge has the device's "
        "rules on any machine",
        sparse_core=_other(
            "the optimizer of a table: SGD, Adagrad, AdagradMomentum, Adam or FTRL; which tables "
            "share a stack, and so a layout, depends on it",
        ),
        reads={"EmbeddingConfigSpec.optimization_parameters": given},
        change=_form(
            "TableConfig.optimizer",
            "Every table has its optimizer, with every setting written out: defaults differ.",
        ),
        cause_name="optimizer substitution",
        cause="Side {side} runs with use_tpu=False: the model's own optimizer trains its tables, "
        "and `optimization_parameters` has no effect. Tables agree at the start alone.",
    ),
    "table_optimizer": _plain(
        tpu="takes the place of the spec's optimizer for this table",
        tf2="the optimizer of the TableConfig",
        reads={"TableConfig.optimization_parameters": given},
    ),
    "optimizer_of_engine": _plain(
        tpu="the device applies it",
        tf2="stock has no such optimizer, or it refuses a setting; tf2_engine has it",
        change=_ours("tf2_engine.{kind}", "{reason}.", setting="optimization_parameters"),
        sparse_core=_raises(
            "ValueError, when the first gradients are applied",
            "use one of the five, or the host driver",
        ),
    ),
    "hyperparameters": _plain(
        tpu="the device's rule has it",
        tf2=f"{_OF_OPTIMIZER}, with another default here and there",
        reads={
            "*Parameters.learning_rate": None,
            **{
                f"{kind}.{setting}": None
                for kind, row in OPTIMIZERS.items()
                for setting in row.plain.split()
            },
        },
    ),
    "adam_without_correction": _surprising(
        tpu="no bias correction, epsilon (1e-8) inside of the root, only rows of the batch move",
        tf2="the same rule, but its epsilon is 1e-7 unless written out; Keras's Adam corrects the "
        "bias",
        way_out="carry every setting explicitly, as to_tf2 does",
        sparse_core=_other(
            "the same rule, always lazy; epsilon is 1e-7 unless written out",
            "write every setting out",
        ),
        reads={"AdamParameters.epsilon": None},
        calls=("AdamParameters",),
        detect=_in_optimizers(
            lambda it: it.settings["epsilon"] if it.kind == "AdamParameters" else None
        ),
        shown="epsilon={value}",
    ),
    "lazy_adam": _fields(
        "AdamParameters: lazy_adam", "the device's rule has it", _OF_OPTIMIZER, cpu=on.NOT_ON_CPU
    ),
    "adam_not_lazy": _plain(
        tpu="all rows of a table move in every step, those of the batch with a gradient",
        tf2=_OF_OPTIMIZER,
        sparse_core=_dropped(
            "ignored: only rows of the batch move", "expect other numbers, or use the host driver"
        ),
        reads={"AdamParameters.lazy_adam": _off},
        finding="sparse_core",
    ),
    "ftrl_zero_accumulator": _refused(
        tpu="accumulators may start at 0",
        tf2="stock's FTRL refuses an initial accumulator of 0",
        way_out="use tf2_engine.FTRL",
        sparse_core=_raises(
            "FTRL refuses an initial accumulator of 0",
            "start at a small positive number, and convert the slots",
        ),
        reads={"FtrlParameters.initial_accumulator_value": _zero},
    ),
    "optimizer_lost": _refused(
        tpu="the device applies it",
        tf2="tf.tpu.experimental.embedding has no such class",
        way_out="use the one of tf2_engine",
        sparse_core=_raises(
            "there is no such class, and the device has no rule for it",
            "change the optimizer, or stay with the host driver of tf2_engine",
        ),
        calls=_LOST,
        detect=_in_optimizers(
            lambda it: legacy_spec.SourceText(it.kind) if it.kind in _LOST else None
        ),
    ),
    "no_gradient_accumulation": _surprising(
        tpu="each core's sum is applied by itself, the owner of the row first, so the numbers "
        "depend on the number of cores",
        tf2="the same; SparseCores ignore it",
        way_out="keep the number of cores (TPUConfig.num_shards), or accumulate",
        sparse_core=_dropped(
            "ignored: always one update of a row per global batch",
            "expect other numbers, with SGD up to rounding the same; accumulate from the start",
        ),
        reads={"*Parameters.use_gradient_accumulation": _off},
    ),
    "learning_rate_zero": _ignored(
        tpu=Ignored("0.0 counts as unset: the optimizer's rate is used", "0.0 counts as unset"),
        tf2="a rate of 0.0 is 0.0",
        way_out="leave it out, or freeze the table by a learning_rate_fn that returns 0",
        bridge="the same, with a warning",
        why="programs were trained so",
        reads={"TableConfig.learning_rate": _zero},
        warnings={
            on.TRAINING: "{where}`learning_rate`={value} counts as unset, as in stock; the rate of "
            "the optimizer is used."
        },
        change=_form("{rate}, the optimizer's", "Stock takes 0 for unset."),
    ),
    "table_learning_rate": _plain(
        tpu="takes the place of the optimizer's rate for this table",
        tf2="optimizers alone have rates",
        reads={"TableConfig.learning_rate": _not_zero},
        change=_form(
            "{kind}.learning_rate",
            "TensorFlow 2 has rates in optimizers only, so the table has one of its own.",
        ),
    ),
    "learning_rate_fn": _surprising(
        tpu="called with the global step, which is read in no fixed order to its increment; tags "
        "of several functions are in the order of a set, which differs from run to run",
        tf2="a callable without arguments; who calls it counts the step",
        way_out="the bridge reads the step before it is counted, and orders tags by first use",
        sparse_core=_other(
            "a callable without arguments, called while the step is traced; tables share a stack "
            "only if they have the same callable",
            "make one callable of each function",
        ),
        bridge="the step before it is counted; tags in the order of first use",
        why="training is to be repeatable, and a configuration the same in every process; of the "
        "step that stock reads, a race is all that could be shown",
        reads={"TableConfig.learning_rate_fn": given},
        change=_by_hand(
            "{kind}.learning_rate, a callable without arguments",
            "TensorFlow 2 calls it without the step; it reads `step`, which you count up.",
        ),
    ),
    "weight_decay_zero": _ignored(
        tpu=Ignored(
            "0.0 counts as unset, and so does its multiplication by the rate", "0.0 counts as unset"
        ),
        sparse_core=_raises("NotImplementedError for any value, 0.0 too", "leave it out"),
        tf2="0.0 is no decay",
        way_out="leave it out",
        bridge="the same, with a warning",
        why="programs were trained so",
        reads={"*Parameters.weight_decay_factor": _zero},
        warnings={
            on.TRAINING: "{where}`{kind}`: `weight_decay_factor`={value} counts as unset, as in "
            "stock."
        },
        change=_left_out("Stock takes 0 for unset."),
    ),
    "weight_decay_multiplied": _plain(
        tpu="the decay is multiplied by the current rate; without a decay it has no effect",
        tf2=_OF_OPTIMIZER,
        sparse_core=_raises("NotImplementedError for any value, False too", "leave it out"),
        reads={"*Parameters.multiply_weight_decay_factor_by_learning_rate": None},
        detect=_in_optimizers(_multiplier_without_decay),
        shown="{setting}={value} alone",
        finding="weight_decay_zero",
        warnings={
            on.TRAINING: "{where}`{kind}`: `multiply_weight_decay_factor_by_learning_rate` has no "
            "effect without a `weight_decay_factor`."
        },
    ),
    "weight_decay": _plain(
        tpu="decoupled decay of the rows of a batch",
        tf2=_OF_OPTIMIZER,
        sparse_core=_raises(
            "NotImplementedError", "train without decay, or with the host driver of tf2_engine"
        ),
        reads={"*Parameters.weight_decay_factor": _not_zero},
        finding="sparse_core",
    ),
    "weight_limits": _limits(
        "clip_weight",
        "limits of a weight after its update",
        _dropped(
            "ignored: weights go where the update takes them",
            "leave the limits out and compare with `verify`; the host driver has them",
        ),
    ),
    "gradient_limits": _limits(
        "clip_gradient",
        "limits of an accumulated gradient",
        _dropped(
            "ignored: the sum of a row exists inside of the device's op alone",
            "clip the gradients of activations, which is not the same; the host driver has them",
        ),
    ),
    # Tables, and how the engine holds them.
    "table_size": _fields(
        "TableConfig: vocabulary_size dimension initializer",
        "shape and first values of a table",
        "`vocabulary_size`, `dim` and `initializer` of a TableConfig",
        cpu="shape and first values of a variable",
        sparse_core=_other(
            "padded to 8 columns, and 8 rows per SparseCore; an initializer is called for each "
            "core with the padded shape, so that a seeded one gives each core the same values",
            "load a converted checkpoint, or wrap the initializer by stock's shard_initializer",
        ),
    ),
    "combiner": _fields(
        "TableConfig: combiner", "how the rows of a sample become one", "the same", cpu="the same"
    ),
    "combiner_none": _surprising(
        cpu=on.NotAsWritten(
            "the mean of a sample's rows",
            "None is the mean with use_tpu=False, the sum with use_tpu=True",
        ),
        tpu="the sum of a sample's rows; dense ids are one per sample",
        tf2="refused: 'sum', 'mean' or 'sqrtn'",
        sparse_core=_raises("'sum', 'mean' or 'sqrtn'", "write the combiner that is meant"),
        way_out="write the combiner that is meant; to_tf2 takes 'sum'",
        bridge="the same, by `use_tpu`, with a warning",
        why="each is what some program was trained with",
        reads={"TableConfig.combiner": _equals(None)},
        shown="",
        warnings={
            on.LOOKUP: "{where}combiner=None adds the embeddings of a sample's ids with "
            "use_tpu=True; stock takes their mean with use_tpu=False.",
            on.EXPORT: "{where}combiner=None; the exported model takes the mean of a sample's "
            "embeddings, as stock's does, where training added them.",
        },
        change=_numbers(
            "'sum'",
            "TensorFlow 2 has no None. A TPU adds the rows of a sample then; off a TPU stock takes "
            "their mean.",
        ),
        cause_name="combiner None",
        cause="combiner=None is the mean with use_tpu=False and the sum with use_tpu=True; that "
        "is so of {tables}. Write the combiner out.",
    ),
    "hot_id_replication": _differs(
        cpu=_DEVICE_ONLY,
        tpu="frequent rows are kept on every core; no number changes",
        tf2="no such setting in a TableConfig",
        way_out="leave it out, or hand tf2_engine an EngineSpec",
        sparse_core=_gone("there is none, and no number changes"),
        reads={"TableConfig.hot_id_replication": _equals(True)},
        shown="",
        change=_ours("engine_spec", "A TableConfig cannot say it; it changes no number."),
    ),
    "partition_strategy": _fields(
        "EmbeddingConfigSpec: partition_strategy",
        "div: a host holds consecutive rows",
        "the same",
        cpu="div: the rows of a variable are in their own order",
        sparse_core=_other(
            "always mod over SparseCores, rotated by table and padded",
            "convert checkpoints with --to sparsecore",
        ),
    ),
    "mod_partitioning": _refused(
        cpu="refused; so is eval_on_tpu=False",
        tpu="rows lie in checkpoints in an order that depends on the number of hosts; evaluation "
        "on CPUs and exports read the wrong rows",
        tf2="stock's TPUEmbedding knows div alone",
        way_out="convert checkpoints with --from_partition mod; the bridge works with mod "
        "everywhere",
        sparse_core=_other(
            "always mod over SparseCores, rotated by table and padded; a layout of checkpoints "
            "that depends on cores and SparseCores, not on hosts",
            "convert checkpoints with --to sparsecore",
        ),
        bridge="works; with `use_tpu=False` with a warning",
        why="it is a layout of checkpoints, and changes no number",
        reads={"EmbeddingConfigSpec.partition_strategy": _equals("mod")},
        warnings={
            on.OFF_TPU: "partition_strategy='mod' has no effect with use_tpu=False: tables are "
            "ordinary variables and are saved row by row in their own order.",
            on.LISTED_OFF_TPU: "partition_strategy='mod', which is a layout of checkpoints alone "
            "(rows are in their own order here, as in those of a single host)",
        },
        change=_ours(
            "engine_spec",
            "Stock's TPUEmbedding knows 'div' alone, and a feature_config cannot say it. Which "
            "host holds a row changes no number; `convert` reorders old checkpoints.",
        ),
    ),
    "config_dicts": _surprising(
        cpu="nothing is looked up: model_fn is handed raw ids",
        tpu="looked up",
        tf2="FeatureConfigs, looked up everywhere",
        way_out="the bridge looks them up with use_tpu=False, too",
        bridge="looked up; with `use_tpu=False` with a warning",
        why="with them a program is the same on and off a TPU",
        reads={
            "EmbeddingConfigSpec.table_to_config_dict": given,
            "EmbeddingConfigSpec.feature_to_config_dict": None,
            "FeatureConfig.table_id": None,
        },
        detect=lambda legacy: [(SPEC, NOTHING)] if legacy.form == "dict" else [],
        warnings={
            on.DICTS_OFF_TPU: "use_tpu=False with config dicts: the tables {tables} are trainable "
            "variables, which the model's own optimizer trains. Unlike with use_tpu=True these "
            "settings have no effect: {settings}."
        },
    ),
    "gradient_multiplier": _differs(
        tpu="multiplies the gradients of all activations, not the loss",
        tf2="no such setting",
        way_out="multiply the gradients before apply_gradients",
        sparse_core=_other("no such setting", "multiply the gradients of activations"),
        reads={"EmbeddingConfigSpec.experimental_gradient_multiplier_fn": given},
        change=_by_hand(
            "gradient_multiplier()",
            "No TPUEmbedding has it: multiply the gradients of all activations before "
            "`apply_gradients`.",
        ),
    ),
    "pipelining": _surprising(
        cpu=_DEVICE_ONLY,
        tpu="activations of a step do not see the update of the step before it",
        tf2="the same, off by default",
        way_out="expect other numbers than without; the bridge has the same staleness",
        sparse_core=_other(
            "the same staleness, but only inside of a loop that is compiled, and not while "
            "summaries are recorded",
            "put the training loop into a tf.function with tf.range",
        ),
        reads={"EmbeddingConfigSpec.pipeline_execution_with_tensor_core": _equals(True)},
        cause_name="stale activation",
        cause="Table {table}, feature {feature}: in step {step} side {side} looks up the rows as "
        "they were after step {seen}, without the update between. So does "
        "pipeline_execution_with_tensor_core.",
    ),
    "profile_data_directory": _differs(
        cpu=_DEVICE_ONLY,
        tpu="the device writes lookup statistics there",
        tf2="no such setting",
        way_out="hand tf2_engine an EngineSpec",
        sparse_core=_gone("there is none, and no number changes"),
        reads={"EmbeddingConfigSpec.profile_data_directory": given},
        shown="{value}",
        change=_ours("engine_spec", "Stock's TPUEmbedding of TensorFlow 2 has no such setting."),
    ),
    # Inputs, and what columns make of them.
    "feature_columns": _fields(
        "EmbeddingConfigSpec: feature_columns tensor_core_feature_columns",
        "tables and features",
        "FeatureConfigs and `preprocessing`",
        cpu="ordinary columns, which look up by themselves",
    ),
    "column_of_unknown_kind": _plain(
        cpu="works",
        tpu="works",
        tf2="its ids cannot be made without it",
        change=_by_hand("", "{value}", was="columns", setting="feature_columns"),
    ),
    "column_transforms_on_cpu_only": _surprising(
        cpu="the column hashes, looks up or replaces its input",
        tpu="the ids of the input_fn are looked up as they are; strings are an error",
        tf2="feature columns are not used",
        way_out="make ids in the input_fn; in TensorFlow 2 use to_tf2().preprocessing",
        sparse_core=_other("ids are ids", "make ids in the input_fn, or by to_tf2().preprocessing"),
        shown="its column {value}",
        warnings={
            on.LOOKUP: "{where}its column {value} with use_tpu=False only; with use_tpu=True the "
            "ids of the input_fn are looked up as they are."
        },
        change=_numbers(
            "preprocessing",
            "On a TPU the legacy column leaves values as they are; `preprocessing` transforms them "
            "as off a TPU. Hand it what comes before your own transformation, or hand the ids to "
            "the engine directly.",
            was="ids of the input_fn, as they are",
            setting="categorical_column",
        ),
    ),
    "weighted_feature": _surprising(
        cpu="dense and sparse weights work; weights of 0 and less drop the id unless summed",
        tpu="dense weights are an error, and with dense ids of rank 2 the weights are dropped in "
        "silence",
        tf2="weights go beside the ids; off a TPU stock refuses them for dense ids and sequences",
        way_out="make ids and weights sparse in the input_fn",
        sparse_core=_raises(
            "ValueError unless weights are sparse or ragged as their ids are; ids of weight 0 "
            "count as touched",
            "make ids and weights sparse or ragged",
        ),
        reads={"FeatureConfig.weight_key": given},
        calls=("weighted_categorical_column",),
        shown="weights {value!r}",
        change=_form(
            "weights of `enqueue`",
            "TensorFlow 2 takes weights beside ids, not among the features; `preprocessing` "
            "returns both.",
        ),
    ),
    "dense_ids": _surprising(
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
        sparse_core=_raises(
            "dense ids are one per sample; more are an error, and every id counts",
            "make ids sparse or ragged, sorted by sample, without -1 and without the id 0 of "
            "padding",
        ),
        detect=_dense_ids,
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
    "padding_of_dense_ids": _plain(
        cpu="-1 and ''",
        tpu="0 where there is a combiner",
        tf2="-1 and '' of `preprocessing`; none of the engine",
        detect=_always("features"),
        change=_numbers(
            "-1 is left out",
            "Stock drops id 0 of dense tensors on a TPU; `preprocessing` drops -1 and '', as "
            "feature columns do off a TPU.",
            was="0 is left out where there is a combiner",
            setting="dense ids",
        ),
    ),
    "sequence": _differs(
        cpu="as long as the longest sequence of the batch, nothing is cut",
        tpu="cut or filled up to max_sequence_length; lengths are a feature of their own",
        tf2="cut or filled up; no lengths; SparseCores ignore max_sequence_length",
        way_out="do not rely on the width; lengths are in to_tf2().preprocessing",
        sparse_core=_dropped(
            "max_sequence_length is ignored; ids of rank 3 are refused",
            "make ids ragged with a row for each position, [batch · T] with one id or none, and "
            "output_shape=[batch, T]; cut and count in the program",
        ),
        reads={
            "FeatureConfig.max_sequence_length": given,
            "shared_embedding_columns.max_sequence_lengths": given,
        },
        change=_form(
            "FeatureConfig.max_sequence_length",
            "TensorFlow 2 returns no lengths beside the activations; `preprocessing` does.",
        ),
        cause_name="sequence length",
        cause="With use_tpu=True alone a sequence is cut to its max_sequence_length: {lengths}. "
        "Cut longer ones in the input_fn.",
    ),
    "tensor_core_column": _surprising(
        cpu="an ordinary embedding column",
        tpu="an ordinary variable, looked up by a product; the shape is kept on the class, so "
        "columns of different shapes share the last one",
        tf2="no such column",
        way_out="use a Keras Embedding",
        sparse_core=_other("no such column", "use a Keras Embedding"),
        reads={"embedding_column.embedding_lookup_device": _equals("tpu_tensor_core")},
        detect=lambda legacy: [
            (Place("feature", column.key), "tpu_tensor_core")
            for column in legacy.tensor_core_columns
        ],
        shown="",
        change=_by_hand(
            "tf.keras.layers.Embedding",
            "Its table is an ordinary variable of the model, which the model's optimizer trains.",
        ),
    ),
    "deprecated_column": _differs(
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
    "ids_out_of_range": _surprising(
        cpu="an id below 0 is left out, one beyond the table is an error",
        tpu="unspecified: any row, or none",
        tf2="unspecified on a TPU",
        way_out="the bridge and tf2_engine name table, feature and id, or drop the id on request",
        sparse_core=_other(
            "an id beyond the table looks up, and trains, padding or a row of another table; ids "
            "are cut to 32 bits",
            "check ids in the input_fn; the software SparseCore and the host driver name them",
        ),
        bridge="an error that names table, feature and id",
        why="no public document says what a TPU does; `python -m compat_tests` asks whatever "
        "executes",
        detect=_always("all features"),
    ),
    # Runs: calls of estimators, TPUConfig, checkpoints.
    "predict": _surprising(
        cpu="works",
        tpu="broken: features are never looked up",
        tf2="a lookup without training",
        way_out="the bridge's predict works",
        sparse_core=_other("a lookup without training"),
        bridge="works, with one core and without a TPU too",
        why="nothing stands in its way here",
        detect=_always("TPUEstimator.predict"),
    ),
    "export_to_tpu": _plain(
        cpu="no graph for TPUs is exported",
        tpu="a graph for TPUs is exported as well; by the bridge it is not",
        tf2="a SavedModel of TensorFlow's own ops",
        reads={"TPUEstimator.export_to_tpu": _equals(True)},
        warnings={
            on.EXPORT: "export_to_tpu=True: no graph for TPUs (tags serve, tpu) is exported; the "
            'graph with the tag "serve" is of TensorFlow\'s own ops, for CPUs and GPUs.'
        },
    ),
    "iterations_per_loop": _fields(
        "TPUConfig: iterations_per_loop",
        "hooks are called once per so many steps; of a time such as '60m' the number of steps is "
        "estimated",
        "`steps_per_execution` of Keras, or a loop of your own",
        bridge="the same; a loop of a time ends by the clock",
        why="the time is what was asked for",
    ),
    "host_call": _fields(
        "TPUConfig: experimental_host_call_every_n_steps",
        "steps from one host call to the next inside of a loop",
        "summaries are written anywhere",
    ),
    "num_shards": _plain(
        cpu=_DEVICE_ONLY,
        tpu="the number of cores; the bridge emulates them",
        tf2="the replicas of a TPUStrategy",
        sparse_core=_other(
            "the replicas of a TPUStrategy; their SparseCores together must be a power of two",
            "use 1, 2, 4, 8, ... cores",
        ),
        reads={"TPUConfig.num_shards": None},
        cause_name="core count",
        cause="A has {a} core(s), B {b}: batches are split otherwise, losses are divided by "
        "another number, and batch statistics are of other samples. Set TPUConfig.num_shards "
        "alike; stock runs one core on the software TPU.",
    ),
    "one_core": _refused(
        cpu="works",
        tpu="num_shards=1 with embeddings is an error",
        tf2="works",
        way_out="the bridge takes one core",
        sparse_core=_other("works"),
        reads={"TPUConfig.num_shards": _equals(1)},
    ),
    "model_parallelism": _fields(
        "TPUConfig: num_cores_per_replica input_partition_dims",
        "several cores share a replica; the bridge runs each replica whole, with a warning",
        "the `device_assignment` of a TPUStrategy",
        sparse_core=_other("each core is a replica of its own; tables are on all cores"),
    ),
    "input_per_host": _refused(
        cpu="works",
        tpu="with embeddings only PER_HOST_V1 and PER_HOST_V2",
        tf2="one dataset per host, or per replica",
        way_out="set per_host_input_for_training to PER_HOST_V2",
        sparse_core=_other("one dataset per host, or per replica"),
        reads={"TPUConfig.per_host_input_for_training": _no_input_per_host},
    ),
    "feeding_of_devices": _fields(
        "TPUConfig: eval_training_input_configuration initial_infeed_sleep_secs tpu_job_name "
        "experimental_feed_hook experimental_allow_per_host_v2_parallel_get_next",
        "how hosts feed their TPUs; the bridge has none to feed, and does without",
        "tf.data and the strategy feed them",
    ),
    "sparse_core": _differs(
        cpu="ignored",
        tpu="honoured by embedding hardware of the first generation (TPU v2 and v3)",
        tf2="TPUs with SparseCores (v5p, v6e, TPU7x) refuse or ignore it",
        way_out="audit --target says which; the host driver of tf2_engine has it",
    ),
    "canned_estimator": _differs(
        cpu="works up to TensorFlow 2.15",
        tpu="no embeddings on a TPU",
        tf2="gone",
        way_out="run it with estimator-bridge, which has all but boosted trees",
    ),
    "canned_loss": _surprising(
        cpu="tf.compat.v1.estimator: the sum over the batch; tf.estimator: the mean",
        tpu="the same",
        tf2="Keras takes the mean",
        way_out="say loss_reduction; where you change the API, the sum needs a learning rate that "
        "is smaller by the batch size",
        shown="{value}",
    ),
    "canned_rate": _surprising(
        cpu="tf.compat.v1.estimator: 0.05; tf.estimator: that of Keras, 0.001 for most",
        tpu="the same",
        tf2="Keras's own",
        way_out="give the optimizer as an object, with its rate",
        shown="{value}",
    ),
    "canned_optimizer": _refused(
        cpu="an error from TensorFlow 2.11 on: these optimizers do not train in graphs",
        tpu="the same",
        tf2="works in Keras",
        way_out="take it from tf.keras.optimizers.legacy",
        shown="{value}",
    ),
    "parts_of_unknown_order": _surprising(
        cpu="restored as if by div",
        tpu="div and mod write the same file, with the rows in another order",
        tf2="rows are in the order of the ids",
        way_out="tell convert how it was written: --spec, or --from_partition and --from_hosts",
        sparse_core=_other(
            "the checkpoint says where rows are",
            "tell convert how the old one was written",
        ),
        shown="{value} parts",
    ),
    "no_slots": _differs(
        cpu="slots have the names of the model's optimizer",
        tpu="slots of the device have names of their own",
        tf2="slots belong to the table",
        way_out="slots start anew if they are not found; say the optimizer with --optimizer",
        sparse_core=_other(
            "slots belong to the stack; where the layout differs stock's restore resets them in "
            "silence",
            "convert with --to sparsecore and --like",
        ),
        shown="without {value}",
    ),
}
"""By name: what notes call `rule`."""

RULES: Mapping[str, SettingRow] = {
    name: row for name, row in ROWS.items() if row.severity != on.PLAIN
}
"""The rows that the audit reports."""


def readers(owner: str, setting: str) -> Iterator[tuple[str, on.When | None]]:
    """Yields the names of the rows that read a field, each with which values matter to it."""
    fields = {f"{owner}.{setting}"}
    if owner.endswith("Parameters"):
        fields.add(f"*Parameters.{setting}")
    for name, row in ROWS.items():
        for field in fields & row.reads.keys():
            yield name, row.reads[field]


def finding_of(rule: str) -> str | None:
    """Returns the rule under which the audit reports a row, or None if it does not."""
    return ROWS[rule].finding or (rule if rule in RULES else None)

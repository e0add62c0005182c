"""The catalogue's rows for settings of updates: optimizers, learning rates, decay and limits."""

from __future__ import annotations

from collections.abc import Mapping

from estimator_bridge.settings import legacy_spec, row
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from estimator_bridge.settings.row import (
    Ignored,
    SettingRow,
    in_optimizers,
    is_not_zero,
    is_off,
    is_set,
    is_zero,
    multiplier_without_decay,
)

LOST = tuple(name for name, each in OPTIMIZERS.items() if not each.on_sparse_cores)
"""Legacy optimizers for which `tf.tpu.experimental.embedding` has no class."""

UPDATES: Mapping[str, SettingRow] = {
    "clipping_limit": row.ignored(
        tpu=Ignored("ignored, although documented", "stock never reads it"),
        tf2="no such setting",
        way_out="set clip_weight_min and clip_weight_max of the optimizer, or "
        "quirks='documented', which clips as documented; quirks='stock' keeps stock's "
        "numbers",
        why="the setting is documented, but programs have been trained without it",
        quirks={
            "stock": Ignored(
                "ignored, with a warning", "the bridge ignores it as stock does (quirks=stock)"
            ),
            "documented": "weights are clipped to ±limit unless the optimizer sets limits of its "
            "own",
        },
        reads={"EmbeddingConfigSpec.clipping_limit": is_set},
        shown="{value}",
        warnings={
            (
                row.TRAINING,
                "stock",
            ): "`clipping_limit`={value} is ignored, as in stock. Use "
            '`clip_weight_min` and `clip_weight_max` of the optimizer, or quirks="documented".',
            (
                row.TRAINING,
                "documented",
            ): "`clipping_limit`={value}: weights are kept in [-{value}, "
            "{value}] as documented, in tables whose optimizer sets no `clip_weight_min` or "
            '`clip_weight_max`; stock ignores it (quirks="stock").',
        },
        change=row.numbers(
            "clip_weight_min, clip_weight_max",
            'Documented, but stock ignores it, and so does quirks="stock".',
        ),
        change_of_stock=row.left_out(
            'Documented, but stock ignores it; quirks="documented" honours it.'
        ),
    ),
    "optimization_parameters": row.differs(
        tpu="the device applies them, without the model's optimizer",
        tf2="the optimizer of each TableConfig; stock's TPUEmbedding trains on a TPU only, "
        "tf2_engine anywhere",
        way_out="do not compare the numbers of use_tpu=False with those of use_tpu=True; the "
        "bridge applies the device's rules on any machine",
        sparse_core=row.other(
            "the optimizer of a table: SGD, Adagrad, AdagradMomentum, Adam or FTRL; only tables "
            "with equal optimizers share a stack and, with it, a layout",
        ),
        reads={"EmbeddingConfigSpec.optimization_parameters": is_set},
        change=row.form(
            "TableConfig.optimizer",
            "Every table gets an optimizer with explicit settings, because defaults differ.",
        ),
        cause_name="optimizer substitution",
        cause="Side {side} runs with use_tpu=False: the model's own optimizer trains its "
        "tables, and `optimization_parameters` has no effect. The tables of the two sides "
        "agree only at the start.",
    ),
    "table_optimizer": row.plain(
        tpu="replaces the spec's optimizer for this table",
        tf2="the optimizer of the TableConfig",
        reads={"TableConfig.optimization_parameters": is_set},
    ),
    "optimizer_of_engine": row.plain(
        tpu="the device applies it",
        tf2="stock has no such optimizer, or refuses one of its settings; tf2_engine has it",
        change=row.ours("tf2_engine.{kind}", "{reason}.", setting="optimization_parameters"),
        sparse_core=row.raises(
            "ValueError, when the first gradients are applied",
            "use SGD, Adagrad, AdagradMomentum, Adam or FTRL, or the host driver",
        ),
    ),
    "hyperparameters": row.plain(
        tpu="the device's rule uses it",
        tf2=f"{row.OF_OPTIMIZER}, sometimes with a different default",
        reads={
            "*Parameters.learning_rate": None,
            **{
                f"{kind}.{setting}": None
                for kind, each in OPTIMIZERS.items()
                for setting in each.plain.split()
            },
        },
    ),
    "adam_without_correction": row.surprising(
        tpu="no bias correction, epsilon (1e-8) inside the square root, only rows of the batch "
        "are updated",
        tf2="the same rule, but its default epsilon is 1e-7; Keras's Adam corrects the bias",
        way_out="set every setting explicitly, as to_tf2 does",
        sparse_core=row.other(
            "the same rule, always only for rows of the batch; epsilon is 1e-7 by default",
            "set every setting explicitly",
        ),
        reads={"AdamParameters.epsilon": None},
        calls=("AdamParameters",),
        detect=in_optimizers(
            lambda it: it.settings["epsilon"] if it.kind == "AdamParameters" else None
        ),
        shown="epsilon={value}",
    ),
    "lazy_adam": row.fields(
        "AdamParameters: lazy_adam",
        "True: a step updates only the rows of its batch",
        row.OF_OPTIMIZER,
        cpu=row.NOT_ON_CPU,
    ),
    "adam_not_lazy": row.plain(
        tpu="False: every step updates all rows of a table, though only rows of the batch have a "
        "gradient",
        tf2=row.OF_OPTIMIZER,
        sparse_core=row.dropped(
            "ignored: only rows of the batch are updated",
            "expect different results, or use the host driver",
        ),
        reads={"AdamParameters.lazy_adam": is_off},
        finding="sparse_core",
    ),
    "ftrl_zero_accumulator": row.refused(
        tpu="accumulators may start at 0",
        tf2="stock's FTRL refuses an initial accumulator of 0",
        way_out="use tf2_engine.FTRL",
        sparse_core=row.raises(
            "FTRL refuses an initial accumulator of 0",
            "start at a small positive number, and convert the slots",
        ),
        reads={"FtrlParameters.initial_accumulator_value": is_zero},
    ),
    "optimizer_lost": row.refused(
        tpu="the device applies it",
        tf2="tf.tpu.experimental.embedding has no such class",
        way_out="use the class of tf2_engine",
        sparse_core=row.raises(
            "there is no such class, and the device has no rule for it",
            "change the optimizer, or stay with the host driver of tf2_engine",
        ),
        calls=LOST,
        detect=in_optimizers(
            lambda it: legacy_spec.SourceText(it.kind) if it.kind in LOST else None
        ),
    ),
    "no_gradient_accumulation": row.surprising(
        tpu="each core's gradient sum is applied separately, beginning with the core that owns "
        "the row, so the numbers depend on the number of cores",
        tf2="the same; SparseCores ignore it",
        way_out="keep the number of cores (TPUConfig.num_shards), or accumulate",
        sparse_core=row.dropped(
            "ignored: always one update of a row per global batch",
            "expect different results (with SGD only different rounding), or train with "
            "use_gradient_accumulation=True from the first step",
        ),
        reads={"*Parameters.use_gradient_accumulation": is_off},
    ),
    "learning_rate_zero": row.ignored(
        tpu=Ignored("0.0 counts as unset: the optimizer's rate is used", "0.0 counts as unset"),
        tf2="a rate of 0.0 is 0.0",
        way_out="leave it out, or freeze the table with a learning_rate_fn that returns 0",
        bridge="the same, with a warning",
        why="programs have been trained this way",
        reads={"TableConfig.learning_rate": is_zero},
        warnings={
            row.TRAINING: "{where}`learning_rate`={value} counts as unset, as in stock; the rate "
            "of the optimizer is used."
        },
        change=row.form("{rate}, the optimizer's", "Stock treats 0 as unset."),
    ),
    "table_learning_rate": row.plain(
        tpu="replaces the optimizer's rate for this table",
        tf2="only optimizers have rates",
        reads={"TableConfig.learning_rate": is_not_zero},
        change=row.form(
            "{kind}.learning_rate",
            "TensorFlow 2 has rates only in optimizers, so the table gets its own optimizer.",
        ),
    ),
    "learning_rate_fn": row.surprising(
        tpu="called with the global step, which may be read before or after its increment; if "
        "there are several functions, their numbering differs from run to run",
        tf2="a callable without arguments; the program counts the step",
        way_out="the bridge reads the step before its increment, and numbers functions in the "
        "order of first use",
        sparse_core=row.other(
            "a callable without arguments, called while the step is traced; tables share a stack "
            "only if they have the same callable",
            "create one callable per function",
        ),
        bridge="called with the step before its increment; functions are numbered in the order of "
        "first use",
        why="training should be repeatable, and the configuration the same in every process; "
        "the step that stock reads depends on a race, which cannot be reproduced",
        reads={"TableConfig.learning_rate_fn": is_set},
        change=row.by_hand(
            "{kind}.learning_rate, a callable without arguments",
            "TensorFlow 2 calls it without the step; the callable reads `step`, which you count.",
        ),
    ),
    "weight_decay_zero": row.ignored(
        tpu=Ignored(
            "0.0 counts as unset; `multiply_weight_decay_factor_by_learning_rate` is then ignored, "
            "too",
            "0.0 counts as unset",
        ),
        sparse_core=row.raises("NotImplementedError for any value, even 0.0", "leave it out"),
        tf2="0.0 is no decay",
        way_out="leave it out",
        bridge="the same, with a warning",
        why="programs have been trained this way",
        reads={"*Parameters.weight_decay_factor": is_zero},
        warnings={
            row.TRAINING: "{where}`{kind}`: `weight_decay_factor`={value} counts as unset, as in "
            "stock."
        },
        change=row.left_out("Stock treats 0 as unset."),
    ),
    "weight_decay_multiplied": row.plain(
        tpu="the decay is multiplied by the current rate; no effect without a decay",
        tf2=row.OF_OPTIMIZER,
        sparse_core=row.raises("NotImplementedError for any value, even False", "leave it out"),
        reads={"*Parameters.multiply_weight_decay_factor_by_learning_rate": None},
        detect=in_optimizers(multiplier_without_decay),
        shown="{setting}={value} without a decay",
        finding="weight_decay_zero",
        warnings={
            row.TRAINING: "{where}`{kind}`: `multiply_weight_decay_factor_by_learning_rate` has no "
            "effect without a `weight_decay_factor`."
        },
    ),
    "weight_decay": row.plain(
        tpu="decoupled decay of the rows of a batch",
        tf2=row.OF_OPTIMIZER,
        sparse_core=row.raises(
            "NotImplementedError", "train without decay, or with the host driver of tf2_engine"
        ),
        reads={"*Parameters.weight_decay_factor": is_not_zero},
        finding="sparse_core",
    ),
    "weight_limits": row.limits(
        "clip_weight",
        "limits each weight after its update",
        row.dropped(
            "ignored: the update does not limit weights",
            "leave the limits out and compare with `verify`, or use the host driver",
        ),
    ),
    "gradient_limits": row.limits(
        "clip_gradient",
        "limits each accumulated gradient",
        row.dropped(
            "ignored: the gradient sum of a row exists only inside the device's op",
            "clip the gradients of activations, which is not the same, or use the host driver",
        ),
    ),
}

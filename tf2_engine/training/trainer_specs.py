"""The arguments of a trainer: modes, the result of a model_fn, tables, and configurations."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names, preprocessing, specs
from tf2_engine.types import Function, Nest, Object, Op, Tensor, TensorLike


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ModelSpec(NamedTuple):
    """The result of a model_fn, with the fields of TPUEstimatorSpec in the same order.

    Attributes:
        predictions: a tensor or a dict of tensors [batch, ...]; required for prediction.
        loss: a scalar; required for training and evaluation.
        train_op: the op that trains.
        eval_metrics: a pair (function, arguments). The function returns a dict of metrics of
            `tf.compat.v1.metrics`. The arguments, a list or a dict, are tensors [batch, ...].
        export_outputs: maps the names of signatures to objects of `tf.compat.v1.estimator.export`.
        host_call: a pair (function, arguments) as in `eval_metrics`. The function runs on the host
            after each step in every mode, for example to write summaries.
        training_hooks, evaluation_hooks, prediction_hooks: see `Trainer.train`.
        eval_metric_ops: a dict of pairs (value, update) of `tf.compat.v1.metrics`, instead of
            `eval_metrics`.
        scaffold: a `Scaffold`, instead of `scaffold_fn`.
        training_chief_hooks: further training hooks.
    """

    mode: str
    predictions: Nest = None
    loss: Tensor | None = None
    train_op: Op = None
    eval_metrics: tuple[Function, Nest] | None = None
    export_outputs: dict[str, Object] | None = None
    scaffold_fn: Callable[[], Object] | None = None
    host_call: tuple[Function, Nest] | None = None
    training_hooks: Sequence[Object] | None = None
    evaluation_hooks: Sequence[Object] | None = None
    prediction_hooks: Sequence[Object] | None = None
    eval_metric_ops: Mapping[str, tuple[Tensor, Op]] | None = None
    scaffold: Object = None
    training_chief_hooks: Sequence[Object] | None = None

    @classmethod
    def of(cls, spec: Object) -> ModelSpec:
        if isinstance(spec, cls):
            return spec
        fields: list[Object] = [getattr(spec, name, None) for name in cls._fields]
        return cls._make(fields)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a trainer. The defaults are those of estimators.

    Attributes:
        tf_random_seed: the seed of initial values and random ops.
        save_summary_steps: the interval of summaries in steps. 0 or None writes none.
        save_checkpoints_steps, save_checkpoints_secs: the interval of checkpoints, by default 600
            seconds. The last step is always saved.
        keep_checkpoint_max: the number of checkpoints to keep. 0 or None keeps all.
        keep_checkpoint_every_n_hours: in addition, one checkpoint per interval of this many hours
            is never deleted.
        log_step_count_steps: the interval of log lines in steps. 0 or None disables them.
        cluster: the cluster resolver for a TPU. By default the strategy in scope is used.
        master: the address of a TPU, if there is no `cluster`.
        session_config, device_fn, protocol, tpu_config: accepted, but have no effect.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    cluster: Object = None
    master: str | None = None
    session_config: Object = None
    device_fn: Object = None
    protocol: str | None = None
    tpu_config: Object = None

    # This is the only process of the job.
    is_chief = True
    task_type = "worker"
    task_id = 0
    global_id_in_cluster = 0
    num_worker_replicas = 1
    num_ps_replicas = 0
    evaluation_master = ""

    def replace(self, **changes: Object) -> RunConfig:
        return dataclasses.replace(self, **changes)


class TrainSpec(NamedTuple):
    """Configures the training of `train_and_evaluate`, with arguments of `Trainer.train`."""

    input_fn: Function
    max_steps: int | None = None
    hooks: Sequence[Object] | None = None
    saving_listeners: Sequence[Object] | None = None


class EvalSpec(NamedTuple):
    """Configures the evaluation of `train_and_evaluate`, with arguments of `Trainer.evaluate`.

    Attributes:
        exporters: one or several objects, each with a `name` and a method `export(estimator,
            export_path, checkpoint_path, eval_result, is_the_final_export)`.
        start_delay_secs, throttle_secs: have no effect.
    """

    input_fn: Function
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Object] | None = None
    exporters: Object = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class WarmStartSettings(NamedTuple):
    """Selects the variables and tables to initialize from another model's checkpoint.

    Attributes:
        ckpt_to_initialize_from: an object-based checkpoint, or its directory.
        vars_to_warm_start: a regular expression, tried on tables and trainable variables; or a
            list of expressions, tried on tables and on all variables, trainable or not. An
            expression must match the start of a name.
        var_name_to_prev_var_name: maps names in this model to other names in the checkpoint.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def old_name(self, name: str, *, trainable: bool = True) -> str | None:
        wanted = self.vars_to_warm_start
        if isinstance(wanted, str):
            wanted = [wanted] if trainable else []
        if not any(re.match(each, name) for each in wanted):
            return None
        return (self.var_name_to_prev_var_name or {}).get(name, name)

    def old_name_of_table(self, table: str) -> str | None:
        names = checkpoint_names.in_legacy_programs(table)
        found = {name: old for name in names if (old := self.old_name(name)) is not None}
        renamed = [old for name, old in found.items() if old != name]
        return renamed[0] if renamed else table if found else None


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Tables and features, for the `embedding_config_spec` of a `Trainer`.

        training.Embedding({"word": tf.tpu.experimental.embedding.FeatureConfig(table)})

    Attributes:
        feature_config: a FeatureConfig per feature. Every table must have an optimizer.
        preprocessing_of_ids: converts features to ids, weights and lengths; by default, features
            are ids without weights.
        gradient_multiplier: returns a factor for the gradients of all activations.
    """

    feature_config: Mapping[str, Object]
    preprocessing_of_ids: preprocessing.Preprocessing = None  # type: ignore[assignment]
    gradient_multiplier: Callable[[], TensorLike] | None = None

    def __post_init__(self) -> None:
        if self.preprocessing_of_ids is None:
            columns: dict[str, preprocessing.Column] = {}
            for key, feature in self.feature_config.items():
                ids = preprocessing.Identity(key, feature.table.vocabulary_size)
                is_sequence = feature.max_sequence_length
                columns[key] = preprocessing.Sequence(ids) if is_sequence else ids
            of_columns = preprocessing.Preprocessing(columns)
            object.__setattr__(self, "preprocessing_of_ids", of_columns)

    @functools.cached_property
    def engine_spec(self) -> specs.EngineSpec:
        return specs.from_feature_config(dict(self.feature_config))

    def to_tf2(self, step: Object = None) -> Embedding:
        return self


class WithoutTables(tf.Module):
    """Stands in for the `Embedding` and the engine in a model without tables."""

    engine_spec: Object = types.SimpleNamespace(tables=(), features=(), structure={})
    gradient_multiplier = None
    tables: Mapping[str, Object] = types.MappingProxyType({})
    embedding_tables = tables

    def __init__(self) -> None:
        super().__init__()
        self.preprocessing_of_ids = preprocessing.Preprocessing({})

    def to_tf2(self, step: Object = None) -> WithoutTables:
        return self

    def differentiable_lookup(
        self, *batch: Nest, **options: Object
    ) -> tuple[dict[str, Object], Callable[[Nest], None]]:
        return {}, lambda gradients: None

    def load(self) -> None: ...

    def retrieve(self) -> None: ...

    def observe(self, observer: Object) -> None: ...

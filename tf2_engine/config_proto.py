"""Builds the `TPUEmbeddingConfiguration` of a device from a plan."""

from __future__ import annotations

from tf2_engine import errors, tf_compat
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.types import Message

_STRATEGY = {"div": "DIV_DEFAULT", "mod": "MOD"}


def config_proto(plan: Plan) -> Message:
    kind = tf_compat.TPUEmbeddingConfiguration
    config = kind()
    for table in plan.tables:
        descriptor = config.table_descriptor.add(
            name=table.name, vocabulary_size=table.rows, dimension=table.dim
        )
        descriptor.optimization_parameters.CopyFrom(optimizer_proto(table))
    for feature in plan.features:
        _add_feature(config.feature_descriptor.add(), feature)
    config.mode = kind.Mode.Value("TRAINING" if plan.training else "INFERENCE")
    config.num_hosts = plan.num_hosts
    config.num_tensor_cores = plan.num_cores
    config.sharding_strategy = kind.ShardingStrategy.Value(_STRATEGY[plan.partition_strategy])
    config.pipeline_execution_with_tensor_core = plan.pipeline_execution_with_tensor_core
    if plan.profile_data_directory:
        config.profile_data_directory = plan.profile_data_directory
    return config


def optimizer_proto(table: TablePlan) -> Message:
    parameters = tf_compat.OptimizationParameters()
    optimizer = table.optimizer
    if table.rate_tag is None:
        parameters.learning_rate.constant = optimizer.learning_rate
    else:
        parameters.learning_rate.dynamic.tag = table.rate_tag
    parameters.gradient_accumulation_status = tf_compat.GradientAccumulationStatus.Status.Value(
        "ENABLED" if optimizer.use_gradient_accumulation else "DISABLED"
    )
    _add_limits(
        parameters.gradient_clipping_limits,
        optimizer.clip_gradient_min,
        optimizer.clip_gradient_max,
    )
    _add_limits(parameters.clipping_limits, optimizer.clip_weight_min, optimizer.clip_weight_max)
    if optimizer.weight_decay_factor:
        parameters.weight_decay_factor = optimizer.weight_decay_factor
        if optimizer.multiply_weight_decay_factor_by_learning_rate:
            parameters.multiply_weight_decay_factor_by_learning_rate = True
    if table.hot_id_replication:
        hot = tf_compat.HotIdReplicationConfiguration
        parameters.hot_id_replication_configuration.status = hot.Status.Value("ENABLED")
    if optimizer.low_dimensional_packing_status:
        packing = tf_compat.LowDimensionalPackingStatus
        parameters.low_dimensional_packing_status = packing.Status.Value("ENABLED")
    if table.quantization is not None:
        quantization = parameters.simulated_quantization
        quantization.enabled = True
        quantization.num_buckets = table.quantization.num_buckets
        limits = table.quantization.lower, table.quantization.upper
        _add_limits(quantization.clipping_limits, *limits)
    settings = getattr(parameters, optimizer.proto_field)
    settings.SetInParent()
    for name, value in optimizer.proto_fields().items():
        setattr(settings, name, value)
    return parameters


def _add_limits(limits: Message, low: float | None, high: float | None) -> None:
    if low is not None:
        limits.lower.value = low
    if high is not None:
        limits.upper.value = high


def _add_feature(descriptor: Message, feature: FeaturePlan) -> None:
    if feature.cells is None:
        raise errors.InvalidSpec(
            f"{feature.where}: a TPU needs fixed sizes, but the output shape is "
            f"{feature.output_shape}. Give batches a fixed size (drop_remainder=True). The "
            "size of a sparse tensor is often unknown even then: pass shapes to `build`, or set "
            "the feature's `output_shape`."
        )
    if feature.send_name:
        descriptor.name = feature.name
    descriptor.table_id = feature.table.table_id
    descriptor.input_shape.extend(feature.output_shape)

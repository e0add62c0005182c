"""Replaces the creation of a TPUEstimator by code that creates a model and its tables."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import config_arguments, warm_start_line
from estimator_bridge.migrate.keras_form.call_sites.sites import ESTIMATOR, Site, followed
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    bound_in,
    call_text,
    is_none,
    nodes_in,
)

_SPEC_CLASS = "estimator.EmbeddingConfigSpec"
_CARRIED = ("embedding_config_spec", "export_to_tpu", "export_to_cpu", "eval_on_tpu", "name")

_LOST = "pipeline_execution_with_tensor_core experimental_gradient_multiplier_fn"
_SPEC = (
    f"feature_columns optimization_parameters clipping_limit {_LOST} feature_to_config_dict "
    "table_to_config_dict partition_strategy"
)
_LEFT_OUT_OF_SPEC = {
    "clipping_limit": "the estimator of TensorFlow 2.15 ignores it",
    "partition_strategy": "a Keras model stores each table in one piece",
}

_RESOLVER = "TPUClusterResolver"


class SiteWriter:
    """Writes the code that creates a model; for `target` see `migrate_to_keras`."""

    def __init__(self, source: Source, site: Site, target: str | None = None) -> None:
        self._source, self._site, self._target = source, site, target

    # The estimator.

    def write(self, arguments_of_model: Mapping[str, ast.expr]) -> None:
        """Replaces the statement that creates the estimator.

        `arguments_of_model` are the model's arguments, except the first one, the embedding.
        """
        source, site = self._source, self._site
        warm_start = warm_start_line.lines(source, site)
        config_arguments.check(source, site, {*ESTIMATOR.split(), *_CARRIED})
        strategy = self._strategy()
        statement = source.statement_of(site.call)
        embedding = self._embedding()

        def write() -> str:
            indent = statement.col_offset
            pad = " " * indent
            codes = {key: source.code(value) for key, value in arguments_of_model.items()}
            rest = [f"{key}={code}" if code != key else key for key, code in codes.items()]
            rest.sort(key=lambda each: "=" in each)
            inside = indent + 2 * bool(strategy)
            lines = config_arguments.seed_lines(source, site)
            first = ["embedding" if site.has_tables else "None"]
            construction = call_text(site.class_name, [*first, *rest], inside)
            statements = [f"{site.name} = {construction}"]
            if site.has_tables:
                statements.insert(0, f"embedding = {embedding(inside)}")
            if strategy:
                lines += [f"with {strategy}.scope():", *(f"  {each}" for each in statements)]
            else:
                lines += statements
            lines.append(config_arguments.checkpoints_line(source, site, site.name))
            lines += warm_start()
            if isinstance(statement, ast.Return):
                lines.append(f"return {site.name}")
            return f"\n{pad}".join(lines)

        source.replace(statement, write)

    # The strategy.

    def _strategy(self) -> str:
        source, site = self._source, self._site
        cluster, master = site.config.get("cluster"), site.config.get("master")
        use_tpu = site.arguments.get("use_tpu")
        if source.called(source.value_of(cluster)).endswith(_RESOLVER):
            cluster = followed(source, cluster)
        if isinstance(cluster, ast.Name):
            return self._strategy_of_variable(cluster)
        if use_tpu is None or (isinstance(use_tpu, ast.Constant) and not use_tpu.value):
            return ""
        if cluster is not None:
            resolver = source.code(cluster)
        else:
            address = "''" if master is None else source.code(master)
            resolver = f"{source.need(rules.TRAINING, _RESOLVER)}({address})"
        source.need(rules.KERAS, "tpu_strategy")
        statement = source.statement_of(site.call)
        pad = " " * statement.col_offset
        start, _ = source.lines(statement)
        assignment = f"strategy = tpu_strategy({resolver})\n"
        if isinstance(use_tpu, ast.Constant):
            source.insert(start, f"{pad}{assignment}")
            return "strategy"
        default = f"{pad}strategy = tf.distribute.get_strategy()\n"
        test = f"{pad}if {source.code(use_tpu)}:\n"
        source.insert(start, f"{default}{test}{pad}  {assignment}")
        return "strategy"

    def _strategy_of_variable(self, cluster: ast.Name) -> str:
        source = self._source
        for node in nodes_in(self._site.function, ast.Name):
            if node.id != cluster.id or node is cluster:
                continue
            statement = source.statement_of(node)
            if isinstance(statement, ast.Assign) and bound_in(statement) == [cluster.id]:
                source.replace(node, "strategy")
                value = statement.value
                if is_none(value):
                    source.replace(value, "tf.distribute.get_strategy()")
                elif source.called(value).endswith(_RESOLVER):
                    source.need(rules.KERAS, "tpu_strategy")
                    start, end = source.span(value)
                    source.replace_span(start, start, "tpu_strategy(")
                    source.replace_span(end, end, ")")
        return "strategy"

    # The tables.

    def _embedding(self) -> Callable[[int], str]:
        source = self._source
        if not self._site.has_tables:
            return lambda indent: ""
        value = self._site.arguments["embedding_config_spec"]
        spec = followed(source, value)
        if source.called(spec) != _SPEC_CLASS:
            source.problem(
                *(
                    self._site.call,
                    "keras-spec",
                    "it is not known how its EmbeddingConfigSpec is made",
                ),
                "Write EmbeddingConfigSpec(...) where the TPUEstimator is made",
            )
            return lambda indent: ""
        assert isinstance(spec, ast.Call)
        by_name = arguments_of_spec(source, spec)
        columns = by_name.get("feature_columns") or by_name.get("feature_to_config_dict")
        optimizer = by_name.get("optimization_parameters")
        layer = source.need(rules.KERAS, "ColumnEmbedding")
        if columns is None:
            return lambda indent: ""
        parts = [each for each in (columns, optimizer) if each is not None]
        return lambda indent: call_text(
            layer,
            [*(source.code(each) for each in parts), *self._of_target(), *of_dense_ids(source)],
            indent,
            "embedding = ",
        )

    def _of_target(self) -> list[str]:
        if self._target is None:
            return []
        batch_size = self._site.arguments.get("train_batch_size")
        of_batch = [] if batch_size is None else [f"batch_size={self._source.code(batch_size)}"]
        return [*of_batch, f"arithmetic={self._target!r}"]


_OF_IDS = ("categorical_column_with_identity", "FeatureConfig")


def of_dense_ids(source: Source) -> list[str]:
    return ["padding=0"] if any(each in source.text for each in _OF_IDS) else []


def arguments_of_spec(source: Source, spec: ast.Call) -> dict[str, ast.expr]:
    off = _off(spec)
    names = [each for each in _SPEC.split() if each not in off]
    by_name = rules.known_arguments(source, spec, names, unused=" ".join(off), lost=_LOST)
    for key in by_name.keys() & _LEFT_OUT_OF_SPEC.keys():
        config_arguments.leave_out(source, by_name[key])
        source.notes.append((spec.lineno, f"{key} is left out: {_LEFT_OUT_OF_SPEC[key]}"))
    return by_name


def _off(spec: ast.Call) -> list[str]:
    off = {each.arg for each in spec.keywords if is_none(each.value) or _is_false(each.value)}
    return [each for each in _LOST.split() if each in off]


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False

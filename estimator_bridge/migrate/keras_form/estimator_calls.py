"""The TPUEstimator of a program and its calls: a compiled model, `fit`, `evaluate` and others."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.source import (
    Source,
    arguments,
    bound_in,
    call_text,
    names_in,
)

Text = Callable[[], str]

_ESTIMATOR = (
    "model_fn model_dir config params use_tpu train_batch_size eval_batch_size predict_batch_size"
)
_CARRIED_CONFIG = {"model_dir", "tf_random_seed", "save_checkpoints_steps", "keep_checkpoint_max"}
_LEFT_OUT = {
    "tpu_config": "the strategy says what the TPU does",
    "log_step_count_steps": "fit logs as Keras does",
    "save_summary_steps": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes summaries",
    "keep_checkpoint_every_n_hours": "keep_checkpoints counts checkpoints",
    "save_checkpoints_secs": "keep_checkpoints counts steps",
    "session_config": "there are no sessions",
    "cluster": "",
    "master": "",
}
_TRAIN = ("input_fn", "hooks", "steps", "max_steps", "saving_listeners")
_METHODS = (
    *("train", "evaluate", "predict", "export_saved_model", "export_savedmodel", "eval_dir"),
    "latest_checkpoint",
)

STRATEGY = '''\
def tpu_strategy(resolver):
  """Connects to a TPU; returns its strategy."""
  tf.config.experimental_connect_to_cluster(resolver)
  tf.tpu.experimental.initialize_tpu_system(resolver)
  return tf.distribute.TPUStrategy(resolver)


'''

_RESOLVER = "TPUClusterResolver"


@dataclasses.dataclass
class Site:
    """Where a program makes its TPUEstimator.

    Attributes:
        call: of the class.
        arguments: its arguments by name.
        config: those of its RunConfig.
        function: in which it is.
    """

    call: ast.Call
    arguments: dict[str, ast.expr]
    config: dict[str, ast.expr]
    function: ast.AST


def find(source: Source) -> Site | None:
    """Returns where the TPUEstimator is made; adds a problem if that is not one place."""
    calls = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and source.called(node) == "estimator.TPUEstimator"
    ]
    if len(calls) != 1:
        node = calls[1] if calls else source.tree
        source.problem(
            *(node, "keras-estimators", f"the program makes {len(calls)} TPUEstimators"),
            "Make one, in one place, or migrate to the tf2 form",
        )
        return None
    call = calls[0]
    by_name = _all_arguments(source, call, _ESTIMATOR.split())
    config = _followed(source, by_name.get("config"))
    inner: dict[str, ast.expr] = {}
    replaced: dict[str, ast.expr] = {}
    while (before := _replaced_config(config)) is not None:
        assert isinstance(config, ast.Call)
        replaced = _all_arguments(source, config, []) | replaced
        config = _followed(source, before)
    if isinstance(config, ast.Call) and source.called(config).endswith("RunConfig"):
        inner = _all_arguments(source, config, ["model_dir"]) | replaced
    elif config is not None and not (isinstance(config, ast.Constant) and config.value is None):
        source.problem(
            *(config, "keras-config", "what the estimator's config says is not known here"),
            "Write RunConfig(...) where the TPUEstimator is made",
        )
    return Site(call, by_name, inner, source.function_of(call))


def _replaced_config(config: ast.expr | None) -> ast.expr | None:
    """Returns the config whose `replace` makes a config."""
    if isinstance(config, ast.Call) and isinstance(config.func, ast.Attribute):
        return config.func.value if config.func.attr == "replace" else None
    return None


def _all_arguments(source: Source, call: ast.Call, order: Sequence[str]) -> dict[str, ast.expr]:
    """Returns the arguments of a call by name; adds a problem for those without a name."""
    by_name, others = arguments(call, order)
    for each in others:
        if isinstance(each, ast.keyword) and each.arg is not None:
            by_name[each.arg] = each.value
        else:
            source.problem(
                *(call, "keras-argument", f"what {ast.unparse(each)} holds is not known here"),
                "Write the arguments by name",
            )
    return by_name


def _followed(source: Source, node: ast.expr | None, is_used: bool = True) -> ast.expr | None:
    """Returns the value that a name is assigned once in its function, or else in the module.

    The assignment is dropped.

    Args:
        is_used: whether the value is written elsewhere.
    """
    if not isinstance(node, ast.Name):
        return node
    for scope in dict.fromkeys([source.function_of(node), source.tree]):
        assignments = [
            each
            for each in ast.walk(scope)
            if isinstance(each, ast.Assign) and bound_in(each) == [node.id]
        ]
        if assignments and (scope is not source.tree or len(assignments) == 1):
            source.drop(assignments[0])
            if is_used:
                source.moved.add(assignments[0])
            return assignments[0].value
    return node


class SiteWriter:
    """Writes the model in place of the TPUEstimator, and its methods in place of the estimator's.

    Args:
        model_call: the code that makes the model, of the code of its embedding.
    """

    def __init__(self, source: Source, site: Site) -> None:
        self._source, self._site = source, site
        self._estimators = {*self._names()}
        self.strategy = False

    # The estimator.

    def write(self, arguments_of_model: Mapping[str, object]) -> None:
        """Replaces the statement that makes the estimator.

        Args:
            arguments_of_model: code of the arguments of `Model` behind the embedding, by name.
        """
        source, site = self._source, self._site
        self._check_arguments()
        strategy = self._strategy()
        statement = source.statement_of(site.call)
        embedding = self._embedding()
        name = "model"

        def write() -> str:
            indent = statement.col_offset
            pad = " " * indent
            rest = [
                f"{key}={value}" if str(value) != key else key
                for key, value in arguments_of_model.items()
            ]
            rest.sort(key=lambda each: "=" in each)
            inside = indent + 2 * bool(strategy)
            lines = self._seed()
            construction = call_text("Model", ["embedding", *rest], inside)
            statements = [f"embedding = {embedding(inside)}", f"{name} = {construction}"]
            if strategy:
                lines += [f"with {strategy}.scope():", *(f"  {each}" for each in statements)]
            else:
                lines += statements
            lines.append(self._checkpoints(name))
            if isinstance(statement, ast.Return):
                lines.append(f"return {name}")
            text = "\n".join(
                line if not number else pad + line for number, line in enumerate(lines)
            )
            return text

        source.replace(statement, write)

    def _check_arguments(self) -> None:
        """Refuses arguments that are not carried; notes those that are left out."""
        for key, value in self._site.arguments.items():
            self._check(key, value)
        for key, value in self._site.config.items():
            if _LEFT_OUT.get(key):
                self._leave_out(value)
                self._source.notes.append((value.lineno, f"{key} is left out: {_LEFT_OUT[key]}"))
            elif key not in _CARRIED_CONFIG and key not in _LEFT_OUT:
                self._refuse(value, key)

    def _seed(self) -> list[str]:
        seed = self._site.config.get("tf_random_seed")
        return [] if seed is None else [f"tf.keras.utils.set_random_seed({self._code(seed)})"]

    def _check(self, key: str, value: ast.expr) -> None:
        known = {*_ESTIMATOR.split(), "embedding_config_spec", "export_to_tpu", "export_to_cpu"}
        if key in ("eval_on_tpu", "name") or key in known:
            return
        self._refuse(value, key)

    def _refuse(self, node: ast.expr, key: str) -> None:
        self._source.problem(
            *(node, f"keras-{key.replace('_', '-')}", f"{key} has no counterpart"),
            f"Do without {key}, or migrate to the tf2 form",
        )

    def _code(self, node: ast.expr) -> str:
        return self._source.code(node)

    def _checkpoints(self, name: str) -> str:
        site = self._site
        folder = site.arguments.get("model_dir") or site.config.get("model_dir")
        parts = [self._code(folder) if folder is not None else "None"]
        if "save_checkpoints_steps" in site.config:
            parts.append(f"save_steps={self._code(site.config['save_checkpoints_steps'])}")
        if "keep_checkpoint_max" in site.config:
            parts.append(f"max_to_keep={self._code(site.config['keep_checkpoint_max'])}")
        return f"{name}.keep_checkpoints({', '.join(parts)})"

    def _leave_out(self, value: ast.expr) -> None:
        """Leaves out the value of an argument, and what only it was made of."""
        source = self._source
        source.done.update(ast.walk(value))
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and len(source.uses(node.id, source.tree)) == 1:
                left_out = _followed(source, node, is_used=False)
                source.done.update(ast.walk(left_out) if left_out is not None else ())

    # The strategy.

    def _strategy(self) -> str:
        """Returns the code of the strategy, "" for the default one."""
        source, site = self._source, self._site
        cluster, master = site.config.get("cluster"), site.config.get("master")
        use_tpu = site.arguments.get("use_tpu")
        if isinstance(cluster, ast.Name):
            value = source.value_of(cluster)
            if source.called(value or cluster).endswith(_RESOLVER):
                cluster = _followed(source, cluster)
        if isinstance(cluster, ast.Name):
            self.strategy = True
            return self._strategy_of_variable(cluster)
        if use_tpu is None or (isinstance(use_tpu, ast.Constant) and not use_tpu.value):
            return ""
        self.strategy = True
        resolver = (
            source.code(cluster)
            if cluster is not None
            else (
                f"tf.distribute.cluster_resolver.{_RESOLVER}("
                f"{source.code(master) if master is not None else repr('')})"
            )
        )
        statement = source.statement_of(site.call)
        pad = " " * statement.col_offset
        test = source.code(use_tpu)
        start, _ = source.lines(statement)
        source.replace_span(
            start,
            start,
            f"{pad}strategy = tf.distribute.get_strategy()\n{pad}if {test}:\n"
            f"{pad}  strategy = tpu_strategy({resolver})\n",
        )
        return "strategy"

    def _strategy_of_variable(self, cluster: ast.Name) -> str:
        """Has the variable of the cluster hold the strategy."""
        source = self._source
        for node in ast.walk(self._site.function):
            if not isinstance(node, ast.Name) or node.id != cluster.id or node is cluster:
                continue
            statement = source.statement_of(node)
            if isinstance(statement, ast.Assign) and bound_in(statement) == [cluster.id]:
                source.replace(node, "strategy")
                value = statement.value
                if isinstance(value, ast.Constant) and value.value is None:
                    source.replace(value, "tf.distribute.get_strategy()")
                elif source.called(value).endswith(_RESOLVER):
                    start, end = source.span(value)
                    source.replace_span(start, start, "tpu_strategy(")
                    source.replace_span(end, end, ")")
        return "strategy"

    # The tables.

    def _embedding(self) -> Callable[[int], str]:
        """Returns the code of the layer with the tables."""
        source = self._source
        spec = _followed(source, self._site.arguments.get("embedding_config_spec"))
        if source.called(spec or ast.Constant(None)) != "estimator.EmbeddingConfigSpec":
            source.problem(
                *(self._site.call, "keras-spec", "its EmbeddingConfigSpec is not written out"),
                "Write EmbeddingConfigSpec(...) where the TPUEstimator is made",
            )
            return lambda indent: ""
        assert isinstance(spec, ast.Call)
        order = (
            "feature_columns optimization_parameters clipping_limit "
            "pipeline_execution_with_tensor_core experimental_gradient_multiplier_fn "
            "feature_to_config_dict table_to_config_dict partition_strategy"
        )
        by_name, others = arguments(spec, order.split())
        carried = (
            "feature_columns optimization_parameters feature_to_config_dict table_to_config_dict "
            "partition_strategy"
        )
        rules.refuse_others(source, spec, by_name, carried, others)
        if "partition_strategy" in by_name:
            source.notes.append(
                (spec.lineno, "partition_strategy is left out: tables are in objects, not in parts")
            )
        columns = by_name.get("feature_columns") or by_name.get("feature_to_config_dict")
        optimizer = by_name.get("optimization_parameters")
        layer = source.need(rules.KERAS, "ColumnEmbedding")
        if columns is None:
            return lambda indent: ""
        parts = [each for each in (columns, optimizer) if each is not None]
        return lambda indent: call_text(
            layer, [source.code(each) for each in parts], indent, "embedding = "
        )

    # Calls.

    def _names(self) -> Iterator[str]:
        """Yields names of variables that hold the estimator."""
        source, site = self._source, self._site
        statement = source.statement_of(site.call)
        makers = {"": site.function}
        if isinstance(statement, ast.Assign):
            yield from bound_in(statement)
        elif isinstance(statement, ast.Return) and isinstance(site.function, ast.FunctionDef):
            makers[site.function.name] = site.function
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Name) and function.id in makers:
                    yield from bound_in(node)

    def write_calls(self) -> None:
        """Replaces the calls of the estimator's methods."""
        source = self._source
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Name) or node.id not in self._estimators:
                continue
            source.replace(node, "model")
            if isinstance(node.ctx, ast.Store):
                continue
            parent = source.parent(node)
            call = source.parent(parent) if parent is not None else None
            if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call):
                self._method(call, parent.attr)
            elif not self._is_of_train_and_evaluate(node):
                source.problem(
                    *(node, "keras-estimator", "the estimator is passed around"),
                    "Call its methods where it is made, or migrate to the tf2 form",
                )
        for node in ast.walk(source.tree):
            if source.called(node) == "estimator.train_and_evaluate":
                assert isinstance(node, ast.Call)
                self._train_and_evaluate(node)

    def _method(self, call: ast.Call, name: str) -> None:
        statement = self._source.statement_of(call)
        if name == "eval_dir" and isinstance(statement, ast.Expr):
            self._source.drop(statement, "nothing is written into eval_dir()")
            return
        writers: dict[str, Callable[[ast.Call], None]] = {
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._predict,
            "export_saved_model": self._export,
            "export_savedmodel": self._export,
            "latest_checkpoint": lambda call: None,
        }
        if name not in writers:
            self._source.problem(
                *(call, f"keras-{name.replace('_', '-')}", f"{name} has no counterpart"),
                "Do without it, or migrate to the tf2 form",
            )
            return
        writers[name](call)

    def _train(self, call: ast.Call) -> None:
        by_name, others = arguments(call, _TRAIN)
        rules.refuse_others(self._source, call, by_name, "input_fn steps max_steps", others)
        self._write(call, "fit", by_name, "train_batch_size", ("steps", "max_steps"))

    def _evaluate(self, call: ast.Call) -> None:
        by_name, others = arguments(call, ["input_fn", "steps", "hooks", "checkpoint_path", "name"])
        rules.refuse_others(self._source, call, by_name, "input_fn steps name", others)
        self._write(call, "evaluate", by_name, "eval_batch_size", ("steps",))

    def _predict(self, call: ast.Call) -> None:
        by_name, others = arguments(call, ["input_fn", "predict_keys", "hooks"])
        rules.refuse_others(self._source, call, by_name, "input_fn", others)
        self._write(call, "predictions", by_name, "predict_batch_size", ())

    def _write(
        self,
        call: ast.Call,
        method: str,
        by_name: Mapping[str, ast.expr],
        size: str,
        keys: tuple[str, ...],
    ) -> None:
        source = self._source
        dataset = self._dataset(by_name["input_fn"], size)
        start, _ = source.span(call)
        prefix = source.text[source.text.rfind("\n", 0, start) + 1 : start].lstrip()

        def write() -> str:
            named = (f"{key}={source.code(by_name[key])}" for key in keys if key in by_name)
            return call_text(f"model.{method}", [dataset(), *named], self._column(call), prefix)

        source.replace(call, write)

    def _column(self, node: ast.AST) -> int:
        return int(self._source.statement_of(node).col_offset)

    def _dataset(self, input_fn: ast.expr, size: str) -> Text:
        """Returns the code of a dataset of an input function, which takes the batch size."""
        source = self._source
        batch = self._site.arguments.get(size) or self._site.arguments.get("train_batch_size")
        function = self._input_function(input_fn)
        if function is not None and not function.args.args:
            return lambda: f"{source.code(input_fn)}()"
        if function is None or not self._takes_batch_size(function):
            source.problem(
                *(input_fn, "keras-input-fn", "its params are used for more than the batch size"),
                "Let the input_fn use params['batch_size'] alone, and return a tf.data.Dataset",
            )
        if batch is None or (
            self._site.function is not source.function_of(input_fn)
            and any(
                name not in source.aliases and name != "FLAGS" and not name.isupper()
                for name in (names_in(batch) if batch is not None else ())
            )
        ):
            source.problem(
                *(input_fn, "keras-batch-size", f"{size} is not known where the dataset is made"),
                "Let it be a flag, a constant, or make the estimator in the same function",
            )
            return lambda: ""
        return lambda: f"{source.code(input_fn)}({source.code(batch)})"

    def _input_function(self, node: ast.expr) -> ast.FunctionDef | None:
        name = node.func if isinstance(node, ast.Call) else node
        function = self._source.function(name.id) if isinstance(name, ast.Name) else None
        if function is None or not isinstance(node, ast.Call):
            return function
        last = function.body[-1]
        returned = last.value if isinstance(last, ast.Return) else None
        inner = returned.id if isinstance(returned, ast.Name) else ""
        return self._source.function(inner, function)

    def _takes_batch_size(self, function: ast.FunctionDef) -> bool:
        """Has an input function take the batch size in place of params."""
        source, (parameter, *others) = self._source, function.args.args
        uses = source.uses(parameter.arg, function)
        for use in uses:
            up = source.parent(use)
            if not isinstance(up, ast.Subscript) or ast.unparse(up.slice) != "'batch_size'":
                return False
            source.replace(up, "batch_size")
        source.replace(parameter, "batch_size")
        return not others

    def _is_of_train_and_evaluate(self, node: ast.AST) -> bool:
        parent = self._source.parent(node)
        return self._source.called(parent or node) in (
            "estimator.train_and_evaluate",
            "estimator.experimental.stop_if_no_decrease_hook",
            "estimator.stop_if_no_decrease_hook",
        )

    def _train_and_evaluate(self, call: ast.Call) -> None:
        """Writes `fit` with `validation_data`, and the evaluation that the program looks at."""
        source = self._source
        by_name = rules.known_arguments(source, call, "estimator train_spec eval_spec")
        specs = [_followed(source, by_name.get(key)) for key in ("train_spec", "eval_spec")]
        if any(not isinstance(each, ast.Call) for each in specs):
            source.problem(
                *(call, "keras-train-spec", "its specs are not written out"),
                "Write TrainSpec(...) and EvalSpec(...) in the call",
            )
            return
        train, evaluation = (
            rules.known_arguments(source, spec, names, "input_fn", "start_delay_secs throttle_secs")  # type: ignore[arg-type]
            for spec, names in zip(
                specs,
                ("input_fn max_steps hooks", "input_fn steps name hooks exporters"),
                strict=True,
            )
        )
        for key in ("exporters", "hooks"):
            if key in evaluation:
                self._refuse(evaluation[key], key)
        data = self._dataset(train["input_fn"], "train_batch_size")
        test = self._dataset(evaluation["input_fn"], "eval_batch_size")
        hooks = train.get("hooks")
        if hooks is not None and not isinstance(hooks, (ast.List, ast.Tuple)):
            self._refuse(hooks, "hooks")
        stops = list(getattr(hooks, "elts", []))
        stops = [stop for stop in stops if self._early_stopping(stop)]
        statement = source.statement_of(call)
        pad = " " * statement.col_offset
        steps = evaluation.get("steps")
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        result = target.elts[0] if isinstance(target, ast.Tuple) else target

        def write() -> str:
            limit = f"steps={source.code(steps)}" if steps is not None else ""
            parts = [data(), f"max_steps={source.code(train['max_steps'])}"]
            parts.append(f"validation_data={test()}")
            parts += [f"validation_{limit}"] if limit else []
            if stops:
                parts.append(f"callbacks=[{', '.join(map(source.code, stops))}]")
            inner = f",\n{pad}    ".join(parts)
            text = f"model.fit(\n{pad}    {inner})"
            if result is not None:
                text += f"\n{pad}{source.code(result)} = model.latest_evaluation"
            return text

        source.replace(statement, write)

    def _early_stopping(self, node: ast.expr) -> bool:
        """Writes a hook that stops a training as a callback; returns whether it is one."""
        source = self._source
        value: ast.expr | None = node
        if isinstance(node, ast.Name):
            for each in ast.walk(source.function_of(node)):
                if isinstance(each, ast.Assign) and bound_in(each) == [node.id]:
                    value = each.value
        name = source.called(value or node).rpartition(".")[2]
        modes = {"stop_if_no_decrease_hook": "min", "stop_if_no_increase_hook": "max"}
        period = self._site.config.get("save_checkpoints_steps")
        if not isinstance(value, ast.Call) or name not in modes or period is None:
            source.problem(
                *(node, "keras-hook", "Keras has no such hook"),
                "Leave it out, or use a callback of Keras",
            )
            return False
        most_steps = f"max_steps_without_{name.split('_')[3]}"
        by_name = rules.known_arguments(
            *(source, value, f"estimator metric_name {most_steps}"),
            required=f"metric_name {most_steps}",
            unused="run_every_secs run_every_steps",
        )
        metric, most = by_name["metric_name"], by_name[most_steps]
        source.done.update((value, value.func))
        source.replace(
            value,
            lambda: (
                "tf.keras.callbacks.EarlyStopping(\n"
                f"{' ' * (self._column(value) + 4)}'val_{getattr(metric, 'value', 'loss')}', "
                f"mode={modes[name]!r},\n{' ' * (self._column(value) + 4)}"
                f"patience=({source.code(most)}) // {source.code(period)})"
            ),
        )
        return True

    # Exports.

    def _export(self, call: ast.Call) -> None:
        source = self._source
        order = "export_dir_base serving_input_receiver_fn assets_extra as_text checkpoint_path"
        by_name, others = arguments(call, order.split())
        rules.refuse_others(
            source, call, by_name, "export_dir_base serving_input_receiver_fn", others
        )
        receiver = by_name["serving_input_receiver_fn"]
        function = self._input_function(receiver)
        if function is None or not write_receiver(source, function):
            source.problem(
                *(call, "keras-receiver", "its receiver is not a function of placeholders"),
                "Make placeholders, and return ServingInputReceiver(features, receiver_tensors)",
            )
        source.replace(
            call,
            lambda: (
                f"model.export_saved_model(\n{' ' * (self._column(call) + 4)}"
                f"{source.code(by_name['export_dir_base'])}, *{source.code(receiver)}())"
            ),
        )


def write_receiver(source: Source, function: ast.FunctionDef) -> bool:
    """Has a receiver function return TensorSpecs, and the function from tensors to features."""
    last = function.body[-1]
    call = last.value if isinstance(last, ast.Return) else None
    if not isinstance(call, ast.Call) or not source.called(call).endswith("ServingInputReceiver"):
        return False
    by_name = rules.known_arguments(source, call, "features receiver_tensors")
    features, received = by_name.get("features"), by_name.get("receiver_tensors")
    if features is None or received is None:
        return False
    source.done.update((call, call.func))
    if isinstance(received, ast.Name):
        name = received.id
        if isinstance(features, ast.Call) and _is_of(features, name):
            function_of = features.func
            source.replace(call, lambda: f"{name}, {source.code(function_of)}")
        else:
            source.replace(call, lambda: f"{name}, lambda {name}: {source.code(features)}")
        return True
    if isinstance(received, ast.Dict):
        return _write_several(source, function, received, features, call)
    return False


def _is_of(call: ast.Call, name: str) -> bool:
    """Returns whether a call has a name as its only argument."""
    by_name = [ast.unparse(each) for each in call.args]
    return by_name == [name] and not call.keywords and name not in names_in(call.func)


def _write_several(
    source: Source,
    function: ast.FunctionDef,
    received: ast.Dict,
    features: ast.expr,
    call: ast.Call,
) -> bool:
    """Does so for a receiver function whose placeholders have names of their own."""
    names = [each.id for each in received.values if isinstance(each, ast.Name)]
    keys = [each.value for each in received.keys if isinstance(each, ast.Constant)]
    if len(names) != len(received.values) or len(keys) != len(names):
        return False
    later = [
        each
        for each in function.body[:-1]
        if not isinstance(each, ast.Expr) and names_in(each) & {*names}
    ]
    pad = " " * (function.col_offset + 2)
    for each in later:
        source.done.add(each)
    texts = [functools.partial(source.block, each, len(pad) + 2) for each in later]
    taken = "".join(
        f"{pad}  {name} = received[{key!r}]\n" for name, key in zip(names, keys, strict=True)
    )
    last = function.body[-1]

    def write() -> str:
        body = "".join(text() for text in texts)
        return (
            f"\n{pad}def to_features(received):\n{taken}{body}{pad}  return "
            f"{source.code(features)}\n\n{pad}return {source.code(received)}, to_features\n"
        )

    first = source.lines(later[0])[0] if later else source.lines(last)[0]
    source.replace_span(first, source.lines(last)[1], write)
    return True

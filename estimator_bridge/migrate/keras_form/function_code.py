"""Rewrites a model_fn that stays a function: what it makes is made by `tf2_engine.keras`.

The functions of `tf2_engine.keras.in_model` make layers, variables and optimizers where the
model_fn makes them, so loops, scopes, helpers and computed names stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites import estimator_calls, training_hooks
from estimator_bridge.migrate.keras_form.model_class import layers, optimizer_code
from estimator_bridge.migrate.keras_form.optimizer_counterparts import OF_TRAIN
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    arguments,
    bound_in,
    call_text,
    is_none,
    method_of,
    names_in,
    nodes_in,
    parameters_of,
)

_SPECS = ("estimator.TPUEstimatorSpec", "estimator.EstimatorSpec")
_CARRIED = "mode predictions loss train_op eval_metrics eval_metric_ops"
_LEFT_OUT = {
    "host_call": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes the metrics",
    "scaffold_fn": "keep_checkpoints says how many checkpoints are kept",
    "scaffold": "keep_checkpoints says how many checkpoints are kept",
    "export_outputs": "exports have the signature serving_default, of the predictions",
}
_WITHOUT_STATE = (
    *("Add", "Average", "AveragePooling1D", "AveragePooling2D", "Concatenate", "Dot", "Lambda"),
    *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalMaxPooling1D", "Maximum"),
    *("GlobalMaxPooling2D", "MaxPooling1D", "MaxPooling2D", "Minimum", "Multiply", "Permute"),
    *("RepeatVector", "Reshape", "Softmax", "Subtract", "ReLU", "LeakyReLU"),
)
_LAYERS = frozenset(
    (
        *_WITHOUT_STATE,
        *("Dense", "Dropout", "BatchNormalization", "LayerNormalization", "Activation"),
        *("Flatten", "Conv1D", "Conv2D", "Embedding"),
    )
)
_MODELS = ("keras.Sequential", "keras.Model")
_OF_SETTINGS = {
    "TableConfig": (
        "vocabulary_size dimension initializer combiner hot_id_replication learning_rate "
        "learning_rate_fn optimization_parameters",
        "vocabulary_size dimension",
    ),
    "FeatureConfig": ("table_id max_sequence_length weight_key", "table_id"),
}
_OF_OPTIMIZERS = {
    "minimize": "loss global_step var_list",
    "compute_gradients": "loss var_list",
    "apply_gradients": "grads_and_vars global_step",
}
_OF_COLUMNS = {
    "keras.layers.DenseFeatures": "DenseFeatures",
    "keras.experimental.SequenceFeatures": "SequenceFeatures",
}


class FunctionCode:
    """Rewrites all code of a program outside of classes of layers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._gone: list[ast.expr] = []
        self._inside = {
            node
            for kind in nodes_in(source.tree, ast.ClassDef)
            if any("keras." in source.short(base) for base in kind.bases)
            for node in ast.walk(kind)
        }
        self._own_layers = {
            kind.name: kind for kind in nodes_in(source.tree, ast.ClassDef) if kind in self._inside
        }
        specs = [each for each in self._calls() if source.called(each) in _SPECS]
        keywords = {each.arg for call in specs for each in call.keywords}
        self._defers = "eval_metric_ops" in keywords
        tables = [e for e in self._calls() if source.called(e) == "tpu_embedding.TableConfig"]
        self._has_rates = any("learning_rate" in str(k.arg) for e in tables for k in e.keywords)

    def write(self) -> None:
        nodes = [node for node in ast.walk(self._source.tree) if node not in self._inside]
        for node in nodes:
            if isinstance(node, (ast.Attribute, ast.Name)):
                self._class_of_optimizer(node)
            elif isinstance(node, ast.stmt) and _wraps_itself(self._source, node):
                self._drop(node)
            elif isinstance(node, ast.Call) and (writer := self._writer(node)) is not None:
                self._source.done.update((node, *ast.walk(node.func)))
                self._source.replace(node, writer)
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                self._names_of_variables(node)
                self._check_losses(node)
        self._drop_unused()
        self._check_trains()

    def _check_trains(self) -> None:
        source = self._source
        methods = {call: method_of(call) for call in self._calls() if not source.called(call)}
        for call, name in methods.items():
            if name in _OF_OPTIMIZERS:
                names, unused = _OF_OPTIMIZERS[name], optimizer_code.UNUSED
                rules.known_arguments(source, call, names, unused=unused)
        if not {"minimize", "apply_gradients"} & {*methods.values()}:
            source.problem(
                *(source.tree, "keras-no-training", "no optimizer that is known minimizes a loss"),
                "Call `minimize` of an optimizer of tf.train in the model_fn",
            )

    def _check_losses(self, function: ast.FunctionDef) -> None:
        """Refuses several losses, of which tables know one, and trainings under a condition."""
        source = self._source
        calls = [*nodes_in(function, ast.Call)]
        losses = [(each, optimizer_code.loss_of(source, each)) for each in calls]
        known = [(call, ast.unparse(loss)) for call, loss in losses if loss is not None]
        if len({code for _, code in known}) > 1:
            source.problem(
                *(known[-1][0], "keras-no-training", "the model_fn trains by several losses"),
                "Train by their sum, because one loss updates the tables in each step",
            )
        for call, _ in known:
            if any(isinstance(up, ast.Lambda) for up in source.above(call)) or self._is_chosen(
                call
            ):
                source.problem(
                    *(call, "keras-no-training", "it trains in a function that an op may call"),
                    "Train in each step, and let the rate depend on the condition",
                )

    def _is_chosen(self, call: ast.Call) -> bool:
        """Whether a call is in a function that is passed on, as to tf.cond."""
        function = self._source.function_of(call)
        if not isinstance(function, ast.FunctionDef):
            return False
        uses = self._source.uses(function.name, self._source.tree)
        is_nested = isinstance(self._source.function_of(function), ast.FunctionDef)
        ups = [self._source.parent(each) for each in uses]
        return is_nested and any(
            isinstance(up, (ast.Call, ast.keyword)) and getattr(up, "func", None) not in uses
            for up in ups
        )

    def _drop_unused(self) -> None:
        """Drops statements whose values only what is left out reads."""
        gone: list[ast.AST] = [*self._gone]
        for each in gone:  # grows in the loop
            inside = {node for one in gone for node in ast.walk(one)}
            for name in names_in(each):
                makers = [*self._makers(name, self._source.function_of(each))]
                uses = [
                    use for use in self._source.uses(name, self._source.tree) if use not in inside
                ]
                if makers and not any(self._reads(use, makers) for use in uses):
                    for maker in makers:
                        if maker not in gone:
                            gone.append(maker)
                            self._drop(maker)

    def _makers(self, name: str, around: ast.AST) -> Iterator[ast.stmt]:
        """Yields the assignments of a name in a function, or the function of that name."""
        for node in ast.walk(around):
            if isinstance(node, ast.Assign) and bound_in(node) == [name]:
                yield node
        function = self._source.function(name)
        if function is not None:
            yield function

    def _reads(self, use: ast.Name, makers: list[ast.stmt]) -> bool:
        """Whether a use of a name may read what one of the makers binds."""
        source = self._source
        if any(isinstance(each, ast.FunctionDef) for each in makers):
            return not {*makers} & {*source.above(use)}
        return any(source.function_of(each) is source.function_of(use) for each in makers)

    def _drop(self, statement: ast.stmt) -> None:
        source = self._source
        source.done.update(ast.walk(statement))
        block = getattr(source.parent(statement), "body", [])
        if (len(block) > 1 and statement in block) or source.parent(statement) is source.tree:
            source.drop(statement)
        else:
            source.replace(statement, "pass")

    def _calls(self) -> Iterator[ast.Call]:
        return (each for each in nodes_in(self._source.tree, ast.Call) if each not in self._inside)

    def _need(self, name: str) -> str:
        return self._source.need(rules.KERAS, name)

    def _in_model(self) -> None:
        self._need("in_model")

    def _writer(self, call: ast.Call) -> Callable[[], str] | None:
        source, called = self._source, self._source.called(call)
        if called in self._writers:
            return self._writers[called](call)
        if optimizer_code.is_optimizer(source, call):
            return self._optimizer(call)
        if optimizer_code.wraps_for_tpu(source, call):
            return lambda: source.code(call.args[0])
        if called.startswith("metrics."):
            return self._metric(call, called)
        if called.startswith("summary."):
            return self._summary(call)
        if source.full(call.func) == "tf_slim.layers.layer_norm":
            return self._layer_norm(call)
        return self._layer(call, called)

    @property
    def _writers(self) -> Mapping[str, Callable[[ast.Call], Callable[[], str] | None]]:
        return {
            "estimator.TPUEstimatorSpec": self._spec,
            "estimator.EstimatorSpec": self._spec,
            "estimator.EmbeddingConfigSpec": self._tables,
            "tpu_embedding.TableConfig": self._settings,
            "tpu_embedding.FeatureConfig": self._settings,
            "train.get_global_step": self._step,
            "train.get_or_create_global_step": self._step,
            "variable_scope": self._scope,
            "name_scope": self._name_scope,
            "trainable_variables": self._variables,
            "losses.get_regularization_losses": self._losses,
            "losses.get_regularization_loss": self._loss,
            "get_collection": self._collection,
            "gradients": self._gradients,
            "get_variable": self._variable,
            "layers.dropout": self._dropout,
        }

    # Layers and variables.

    def _layer(self, call: ast.Call, called: str) -> Callable[[], str] | None:
        if called.startswith("layers.") or called in (
            "nn.dynamic_rnn",
            "feature_column.input_layer",
        ):
            # Layers of one name are one layer, as with reuse.
            call.keywords = [each for each in call.keywords if each.arg != "reuse"]
            reading = layers.read(self._source, call)
            return self._of_class(call, called) if reading is None else self._of_reading(reading)
        kind = self._kind(call, called)
        if not kind or self._is_in_layer(call):
            return None
        self._in_model()
        return lambda: f"in_model.layer({', '.join(filter(None, [kind, self._rest(call)]))})"

    def _of_class(self, call: ast.Call, called: str) -> Callable[[], str] | None:
        """Writes a layer of a class of `tf.layers`, which its scope names."""
        short = called.rpartition(".")[2]
        keywords = {str(each.arg) for each in call.keywords}
        if short not in _LAYERS or any(each.startswith("_") for each in keywords):
            return None
        self._in_model()
        default = f"default={layers.rule_kind(short)!r}"
        parts = [f"tf.keras.layers.{short}", self._rest(call), default]
        return lambda: f"in_model.layer({', '.join(filter(None, parts))})"

    def _kind(self, call: ast.Call, called: str) -> str:
        """Returns the class of a layer of Keras or of the program; "" for other calls."""
        source, short = self._source, called.rpartition(".")[2]
        own = self._own_layers.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if own is not None:
            if not _takes_name(own):
                source.problem(
                    *(call, "keras-layer-argument", f"{own.name} takes no name"),
                    "Let its __init__ take **kwargs, and pass them on",
                )
            return own.name
        if called in _OF_COLUMNS:
            return self._need(_OF_COLUMNS[called])
        if called.startswith("keras.layers.") and short in _LAYERS:
            return f"tf.keras.layers.{short}"
        is_other = called.startswith(("keras.layers.", "keras.models.", "keras.applications."))
        if (is_other or called in _MODELS) and short not in ("Input", "InputLayer"):
            if not self._is_in_layer(call):
                source.problem(
                    *(call, "keras-layer", "its variables would have other names, or numbers"),
                    "Call layers such as Dense one after another",
                )
        return ""

    def _is_in_layer(self, call: ast.Call) -> bool:
        """Whether a layer is an argument of another one, which makes its variables."""
        ups = (each for each in self._source.above(call) if isinstance(each, ast.Call))
        return any(self._source.called(each).startswith("keras.") for each in ups)

    def _rest(self, call: ast.Call) -> str:
        return rules.args_of(self._source, call)

    def _of_reading(self, reading: layers.LayerCall) -> Callable[[], str]:
        self._in_model()
        new, config = reading.construction
        inputs = dict(reading.inputs)
        extra = reading.extra
        if reading.kind == "batch_normalization" and "training" not in inputs:
            extra = "training=False"  # Keras would take it from the model.
        if reading.kind == "batch_normalization" and "UPDATE_OPS" not in self._source.text:
            self._source.problem(
                *(reading.call, "keras-layer", "nothing runs the updates of its averages"),
                "Run tf.get_collection(tf.GraphKeys.UPDATE_OPS) in the train_op",
            )

        def write() -> str:
            code = self._source.code
            parts = [new, *(f"{key}={code(v)}" if key else code(v) for key, v in config)]
            parts += [reading.options] if reading.options else []
            named = None if reading.name is None else code(reading.name)
            default = repr(reading.kind)
            if named is None:
                parts.append(f"default={default}")
            elif isinstance(reading.name, ast.Constant):
                parts.append(f"name={named}")
            else:
                parts.append(f"name={named}, default={default}")
            passed = [f"{key}={code(v)}" if key else code(v) for key, v in reading.inputs]
            passed += [extra] if extra else []
            return f"in_model.layer({', '.join(parts)})({', '.join(passed)})"

        return write

    def _dropout(self, call: ast.Call) -> Callable[[], str]:
        self._in_model()
        return lambda: f"in_model.dropout({self._rest(call)})"

    def _layer_norm(self, call: ast.Call) -> Callable[[], str] | None:
        """Writes a layer of contrib, if it norms the last axis alone."""
        source = self._source
        by_name, others = arguments(call, ["inputs"])
        options = {str(each.arg): each.value for each in call.keywords if each.arg != "inputs"}
        axes = [
            ast.unparse(options.pop(f"begin_{each}_axis", ast.Constant(1)))
            for each in ("norm", "params")
        ]
        name = options.pop("scope", None)
        if (
            len(others) > len(call.keywords)
            or axes != ["-1", "-1"]
            or options
            or "inputs" not in by_name
        ):
            return None
        self._in_model()
        options_of_name = "default='LayerNorm'"
        if not is_none(name):
            options_of_name = f"name={source.code(name)}, {options_of_name}"  # type: ignore[arg-type]
        kind = "tf.keras.layers.LayerNormalization, epsilon=1e-12"
        return lambda: (
            f"in_model.layer({kind}, {options_of_name})({source.code(by_name['inputs'])})"
        )

    def _variable(self, call: ast.Call) -> Callable[[], str]:
        order = "name shape dtype initializer regularizer trainable"
        unused = "collections use_resource caching_device partitioner validate_shape"
        by_name = rules.known_arguments(self._source, call, order, "name", unused)
        new = "name= shape= dtype initializer regularizer trainable"
        self._in_model()
        return lambda: f"in_model.variable({', '.join(self._source.keywords(by_name, new))})"

    def _scope(self, call: ast.Call) -> Callable[[], str]:
        names = "name_or_scope default_name"
        by_name = rules.known_arguments(
            self._source,
            call,
            f"{names} values",
            unused="values reuse use_resource auxiliary_name_scope",
        )
        self._in_model()
        new = "name_or_scope= default_name="
        return lambda: f"in_model.scope({', '.join(self._source.keywords(by_name, new))})"

    def _name_scope(self, call: ast.Call) -> Callable[[], str]:
        by_name, _ = arguments(call, ["name", "default_name", "values"])
        first = by_name.get("default_name") or by_name.get("name")
        return lambda: f"tf.name_scope({'' if first is None else self._source.code(first)})"

    def _variables(self, call: ast.Call) -> Callable[[], str]:
        self._by_place(call)
        rules.known_arguments(self._source, call, "scope")
        self._in_model()
        return lambda: f"in_model.trainable_variables({self._rest(call)})"

    def _by_place(self, call: ast.Call) -> None:
        if not call.args and not call.keywords and rules.is_numbered(self._source, call):
            self._source.problem(
                *(call, "keras-variables-by-place", "variables are taken from it by their place"),
                "Take them by their names: of an estimator the list begins with a variable for "
                "each table, which a Keras model has not",
            )

    def _losses(self, call: ast.Call) -> Callable[[], str]:
        rules.known_arguments(self._source, call, "")
        self._in_model()
        return lambda: "in_model.regularization_losses()"

    def _loss(self, call: ast.Call) -> Callable[[], str]:
        write = self._losses(call)
        return lambda: f"tf.add_n({write()})"

    def _collection(self, call: ast.Call) -> Callable[[], str] | None:
        key = self._source.short(call.args[0]) if call.args else ""
        if key == "GraphKeys.REGULARIZATION_LOSSES" and len(call.args) == 1:
            self._in_model()
            return lambda: "in_model.regularization_losses()"
        if key == "GraphKeys.UPDATE_OPS":
            return lambda: "[]"
        if key == "GraphKeys.TRAINABLE_VARIABLES":
            self._in_model()
            rest = call.args[1:] or [each.value for each in call.keywords if each.arg == "scope"]
            self._by_place(call)
            return lambda: (
                f"in_model.trainable_variables({', '.join(map(self._source.code, rest))})"
            )
        return None

    def _names_of_variables(self, function: ast.FunctionDef) -> None:
        """Rewrites `v.name` where a function lists variables, because Keras has other names."""
        source = self._source
        calls = [*nodes_in(function, ast.Call)]
        lists = ("trainable_variables", "get_collection")
        if not any(
            source.called(each) in lists or optimizer_code.is_of_gradients(each) for each in calls
        ):
            return
        for node in nodes_in(function, ast.Attribute):
            value, ending = node.value, ""
            if isinstance(value, ast.Attribute) and value.attr == "op":
                value, ending = value.value, ".partition(':')[0]"
            if node.attr == "name" and isinstance(value, ast.Name) and not source.full(value):
                source.done.update(ast.walk(node))
                self._in_model()
                source.replace(node, f"in_model.variable_name({value.id}){ending}")

    def _tables(self, call: ast.Call) -> Callable[[], str] | None:
        """Writes what makes the tables: a function, to be called where the strategy is known."""
        by_name = estimator_calls.arguments_of_spec(self._source, call)
        columns, features = by_name.get("feature_columns"), by_name.get("feature_to_config_dict")
        optimizer, tables = (
            by_name.get("optimization_parameters"),
            by_name.get("table_to_config_dict"),
        )
        if columns is None and (features is None or tables is None):
            return None
        new = self._need("ColumnEmbedding")
        self._source.need("functools", "partial")
        if columns is None:
            self._need("columns_of")

        def write() -> str:
            code = self._source.code
            rule = [] if optimizer is None else [code(optimizer)]
            if columns is not None:
                made = code(columns)
            else:
                assert tables is not None
                assert features is not None
                parts = [code(tables), code(features), *(rule if self._has_rates else [])]
                made = f"columns_of({', '.join(parts)})"
            column = self._source.statement_of(call).col_offset
            parts = [new, made, *rule, *estimator_calls.of_dense_ids(self._source)]
            return call_text("partial", parts, column, "return ")

        return write

    def _settings(self, call: ast.Call) -> Callable[[], str]:
        name = self._source.called(call).rpartition(".")[2]
        names, required = _OF_SETTINGS[name]
        rules.known_arguments(self._source, call, names, required, "", "hot_id_replication")
        new = self._need(name.replace("Config", "Settings"))
        return lambda: f"{new}({self._rest(call)})"

    # Training.

    def _step(self, call: ast.Call) -> Callable[[], str]:
        self._in_model()
        return lambda: "in_model.step()"

    def _optimizer(self, call: ast.Call) -> Callable[[], str]:
        source, row = self._source, OF_TRAIN[self._source.called(call)]
        self._in_model()
        by_name, _ = arguments(call, row.names)
        rate = by_name.get("learning_rate")
        optimizer_code.written(source, call, "rate")  # reports problems, adds imports

        def write() -> str:
            made = " ".join(optimizer_code.written(source, call, "rate").split())
            code = row.rate if rate is None else source.code(rate)
            return f"in_model.optimizer(lambda rate: {made}, {code})"

        return write

    def _class_of_optimizer(self, node: ast.Attribute | ast.Name) -> None:
        """Rewrites an optimizer class that is not called where it is named, as in a dict."""
        source, short = self._source, self._source.short(node)
        up = source.parent(node)
        if short not in OF_TRAIN or (isinstance(up, ast.Call) and up.func is node):
            return
        row = OF_TRAIN[short]
        self._in_model()
        source.done.update(ast.walk(node))
        default = f"={row.rate}" if row.rate else ""
        made = row.written(source, row.parts(source, {}, "rate"))
        new = f"in_model.optimizer(lambda rate: {made}, learning_rate)"
        source.replace(node, f"(lambda learning_rate{default}: {new})")

    def _gradients(self, call: ast.Call) -> Callable[[], str] | None:
        by_name = rules.known_arguments(self._source, call, "ys xs", "ys xs")
        if self._source.called(self._source.value_of(by_name["xs"])) != "trainable_variables":
            return None
        self._in_model()
        return lambda: f"in_model.gradients({self._rest(call)})"

    def _spec(self, call: ast.Call) -> Callable[[], str]:
        source = self._source
        order = ["mode", "predictions", "loss", "train_op"]
        by_name, others = arguments(
            call, [*order, "eval_metrics"][: 4 + ("TPU" in source.called(call))]
        )
        keywords = [each for each in others if isinstance(each, ast.keyword)]
        by_name |= {str(each.arg): each.value for each in keywords if each.arg is not None}
        if len(keywords) < len(others) or any(each.arg is None for each in keywords):
            source.problem(
                *(call, "keras-spec", "what it is made of is not written out"),
                "Write its arguments by name",
            )
        for key in [each for each in by_name if each not in _CARRIED.split()]:
            self._leave_out(key, by_name.pop(key))
        self._in_model()
        positional = [key for key in order if key in by_name and by_name[key] in call.args]
        names = " ".join(f"{key}=" if key in positional else key for key in by_name)
        column = source.statement_of(call).col_offset

        def write() -> str:
            return call_text("in_model.Step", source.keywords(by_name, names), column, "return ")

        return write

    def _leave_out(self, key: str, value: ast.expr) -> None:
        self._source.done.update(ast.walk(value))
        if is_none(value):
            return
        if key.endswith("_hooks") and training_hooks.only_log(self._source, value):
            self._source.notes.append((value.lineno, f"{key} are left out: they only log"))
            self._gone.append(value)
            return
        if key in _LEFT_OUT:
            self._source.notes.append((value.lineno, f"{key} is left out: {_LEFT_OUT[key]}"))
            self._gone.append(value)
            return
        self._source.problem(
            *(value, "keras-spec-argument", f"{key} has no counterpart"),
            f"Leave {key} out of the spec",
        )

    def _metric(self, call: ast.Call, called: str) -> Callable[[], str] | None:
        above = [*self._source.above(call)]
        of_model = "mode" in parameters_of(self._source.function_of(call))
        of_model = of_model and not any(isinstance(each, ast.Lambda) for each in above)
        if of_model and not self._defers:
            return None  # It is refused.
        if not self._defers:
            return lambda: f"tf.compat.v1.{called}({self._rest(call)})"
        self._in_model()
        return lambda: f"in_model.metric(tf.compat.v1.{called}, {self._rest(call)})"

    def _summary(self, call: ast.Call) -> Callable[[], str] | None:
        statement = self._source.statement_of(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call:
            return None
        why = "summaries are left out: fit(callbacks=[tf.keras.callbacks.TensorBoard(...)])"
        self._source.notes.append((call.lineno, f"{why} writes the metrics"))
        self._source.done.update(ast.walk(call))
        return lambda: "pass"


def _takes_name(kind: ast.ClassDef) -> bool:
    """Whether a class of a layer has no constructor, or one that takes a name."""
    makers = [
        each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    return all(each.args.kwarg is not None or "name" in parameters_of(each) for each in makers)


def _wraps_itself(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement only wraps an optimizer for a TPU, perhaps under a condition."""
    if isinstance(statement, ast.If) and not statement.orelse:
        return all(_wraps_itself(source, each) for each in statement.body)
    value = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(value, ast.Call) or not optimizer_code.wraps_for_tpu(source, value):
        return False
    wrapped = value.args[0]
    return isinstance(wrapped, ast.Name) and bound_in(statement) == [wrapped.id]

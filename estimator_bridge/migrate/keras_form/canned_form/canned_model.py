"""Writes the `keras.Model` that replaces a canned estimator."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.call_sites.sites import Site
from estimator_bridge.migrate.keras_form.canned_estimators import CLIP_NORM
from estimator_bridge.migrate.keras_form.canned_form import canned_heads, canned_recurrent
from estimator_bridge.migrate.keras_form.canned_form.canned_optimizers import CannedOptimizer
from estimator_bridge.migrate.keras_form.canned_form.canned_recurrent import RecurrentWriter
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    Text,
    bound_in,
    call_text,
    is_none,
    names_in,
    parameters_of,
)

_COLUMNS = (
    *("linear_feature_columns", "dnn_feature_columns"),
    *("sequence_feature_columns", "context_feature_columns"),
)

CARRIED = (
    *_COLUMNS,
    *("dnn_hidden_units", "dnn_activation_fn", "dnn_dropout", "batch_norm", "dnn_optimizer"),
    *("linear_optimizer", "linear_sparse_combiner", "baseline_optimizer", "rnn_optimizer"),
    *canned_recurrent.ARGUMENTS,
    *("model_dir", "config", "input_layer_partitioner", "partitioner"),
)
"""Arguments that are carried over, or that make no difference. Arguments of heads are not
listed.
"""

_LAYERS = {
    "dnn": "DenseFeatures",
    "linear": "LinearFeatures",
    "baseline": "Baseline",
    "rnn": "SequenceFeatures",
}
"""The layer of each part: it has the part's variables, or makes the inputs of the network."""


class CannedModelWriter:
    """Writes the model of a canned estimator."""

    def __init__(
        self,
        source: Source,
        site: Site,
        head: canned_heads.AnyHeadWriter,
        starts_warm: bool,
        exports: bool,
    ) -> None:
        assert site.canned is not None
        self._source, self._site, self._canned = source, site, site.canned
        self._head, self._exports = head, exports
        self._locals = set().union(*map(_names_of, source.above(site.call)))
        self.parameters: dict[str, ast.expr | None] = {}
        self._linear = self._columns("linear_feature_columns")
        self._deep = self._columns("dnn_feature_columns")
        self._sequences = self._columns("sequence_feature_columns")
        self._context = self._columns("context_feature_columns")
        is_recurrent = "rnn" in site.canned.parts
        self._recurrent = RecurrentWriter(source, site) if is_recurrent else None
        lacking = {"linear": self._linear is None, "dnn": self._deep is None}
        self._optimizers = {
            part: CannedOptimizer(
                *(source, site.canned, part, site.arguments.get(f"{part}_optimizer")),
                by_rows=self._starts_by_rows(part, starts_warm),
            )
            for part in site.canned.parts
            if not lacking.get(part)
        }
        self._check()
        layers = [_LAYERS[part] for part in self._optimizers]
        for layer in ("TableModel", *layers, *(["DenseFeatures"] if self._context else [])):
            source.need(rules.KERAS, layer)
        for node in self._nodes():
            self._pass_names(node)

    # Reading the estimator.

    def _columns(self, name: str) -> Text | None:
        node = self._site.arguments.get(name)
        if node is None or is_none(node):
            return None
        if isinstance(node, ast.Name) or not names_in(node) & self._locals:
            self._pass_names(node)
            return lambda: self._source.code_at(node, 4)
        self.parameters[name] = node
        return lambda: name

    def _pass_names(self, node: ast.AST) -> None:
        for name in sorted(names_in(node) & self._locals):
            self.parameters.setdefault(name, None)

    def _nodes(self) -> Iterator[ast.expr]:
        left_out = {*_COLUMNS, "model_dir", "config", "input_layer_partitioner", "partitioner"}
        left_out.update(canned_recurrent.ARGUMENTS)
        for key, node in self._site.arguments.items():
            if key not in left_out and not key.endswith("_optimizer"):
                yield node
        yield from self._head.nodes
        yield from [] if self._recurrent is None else self._recurrent.nodes
        for each in self._optimizers.values():
            if each.node is not None:
                yield each.node

    def _check(self) -> None:
        arguments, problem = self._site.arguments, self._source.problem
        if not self._optimizers:
            why = "the source does not show which columns its model has"
            way_out = "Give the columns of the linear model or of the network by name"
            problem(self._site.call, "keras-argument", why, way_out)
        for key in ("input_layer_partitioner", "partitioner"):
            if key in arguments:
                line = arguments[key].lineno
                self._source.notes.append(
                    (line, f"{key} is left out: a Keras model does not partition variables")
                )
                self._source.done.update(ast.walk(arguments[key]))
        batch_norm = arguments.get("batch_norm")
        self._source.need_constant(batch_norm, "keras-argument", "batch_norm", "truth value")
        kinds = [each.kind for each in self._optimizers.values()]
        if self._canned.is_v1 and kinds == ["Adam", "Adam"]:
            problem(
                *(self._site.call, "keras-optimizer"),
                "two Adam optimizers store separate beta powers in checkpoints",
                "Use another optimizer for one of the parts",
            )

    def _starts_by_rows(self, part: str, starts_warm: bool) -> bool:
        """Whether rows of a part of the model may have initial values that are not zero.

        If so, Ftrl must not update rows that occur in no batch: it would set them to zero.
        """
        if part in ("dnn", "rnn"):
            return self._source.calls("feature_column.embedding_column")
        return starts_warm

    def _constant(self, key: str, default: object = None) -> object:
        node = self._site.arguments.get(key)
        return node.value if isinstance(node, ast.Constant) else default

    def _code(self, key: str, default: str = "") -> str:
        node = self._site.arguments.get(key)
        return default if node is None else self._source.code_at(node, 4)

    # Writing the model.

    def construction(self, column: int) -> str:
        parts = [
            name if node is None else f"{name}={self._source.code_at(node, column + 4)}"
            for name, node in sorted(self.parameters.items(), key=lambda each: each[1] is not None)
        ]
        return call_text("Model", parts, column, "model = ")

    def text(self) -> str:
        names = sorted(self.parameters, key=lambda name: self.parameters[name] is not None)
        lines = [
            "class Model(TableModel):",
            '  """The model: its layers, and what a step of each kind computes."""',
            "",
            f"  def __init__({', '.join(['self', *names])}):",
            *self._init(),
            "",
            *self._call(),
            "",
            *self._train_step(),
            "",
            *self._test_step(),
            "",
            "  def predict_step(self, features):",
            f"    return self.head.predictions({self._star}self(features, training=False))",
        ]
        if self._exports:
            lines += ["", "  def signatures(self, predictions):"]
            lines += ["    return self.head.signatures(predictions)"]
        return "\n".join(lines) + "\n"

    def _init(self) -> Iterator[str]:
        slot_names = f"slot_names='{self._slot_names}'" if self._slot_names else ""
        names = [*self._names()]
        if names:
            yield "    super().__init__(names={"
            yield from (f"        {each}," for each in names)
            yield f"    }}, {slot_names})" if slot_names else "    })"
        else:
            yield f"    super().__init__({slot_names})"
        if self._deep is not None:
            yield f"    self.input_layer = DenseFeatures({self._deep()}, name='input_layer')"
            yield from self._hidden_layers()
            yield f"    self.logits = tf.keras.layers.Dense({self._head.units}, name='logits')"
        if self._linear is not None:
            parts = [self._linear(), *self._linear_options(), "name='linear_model'"]
            yield f"    self.linear = {call_text('LinearFeatures', parts, 4, 'self.linear = ')}"
        if self._recurrent is not None:
            yield from self._recurrent_layers(self._recurrent)
        if "baseline" in self._optimizers:
            units = "" if self._head.units == "1" else f"{self._head.units}, "
            yield f"    self.baseline = Baseline({units}name='baseline')"
        yield f"    self.head = {self._head.text(4, 'self.head = ')}"
        yield "    self.mean_loss = tf.keras.metrics.Mean(name='loss')"
        if len(self._optimizers) == 1:
            (only,) = self._optimizers.values()
            yield f"    self.compile(optimizer={only.text()})"
            return
        for part, optimizer in self._optimizers.items():
            yield f"    self.{part}_optimizer = {optimizer.text()}"
        yield "    self.compile(optimizer=self.dnn_optimizer)"

    @property
    def _slot_names(self) -> str:
        if not self._canned.is_v1:
            return f"{self._head.scope}/{{optimizer}}/{{variable}}/{{keras_slot}}"
        if self._canned.is_combined or "baseline" in self._canned.parts:
            return ""
        # What remains of "part_0" in the slot names of a partitioned variable.
        return f"{{variable}}/{'t_0' if self._deep is not None else 'part_0'}/{{slot}}"

    def _names(self) -> Iterator[str]:
        if self._deep is not None:
            yield "'input_layer': 'dnn/input_from_feature_columns/input_layer'"
            yield from self._names_of_hidden()
            yield "'logits': 'dnn/logits'"
        if self._linear is not None:
            yield "'linear_model': 'linear/linear_model'"
        if self._recurrent is not None:
            yield from (
                f"'{name}': 'rnn_model/{name}'" for name in (self._recurrent.name, "logits")
            )
        if self._canned.is_v1 and "Adam" in {each.kind for each in self._optimizers.values()}:
            scope = "head" if not self._slot_names else f"{next(iter(self._optimizers))}/head"
            yield from (f"'{name}': '{scope}/{name}'" for name in ("beta1_power", "beta2_power"))

    def _names_of_hidden(self) -> Iterator[str]:
        hidden = self._site.arguments.get("dnn_hidden_units")
        kinds = ["", "_batchnorm_{i}"] if self._constant("batch_norm", False) else [""]
        for kind in kinds:
            path = kind.replace("_batchnorm", "/batchnorm")
            if isinstance(hidden, (ast.List, ast.Tuple)):
                for i in range(len(hidden.elts)):
                    name, scope = f"hiddenlayer_{i}{kind}", f"dnn/hiddenlayer_{i}{path}"
                    yield f"'{name}': '{scope}'".replace("{i}", str(i))
            else:
                pair = f"f'hiddenlayer_{{i}}{kind}': f'dnn/hiddenlayer_{{i}}{path}'"
                yield f"**{{{pair} for i in range(len({self._code('dnn_hidden_units')}))}}"

    def _hidden_layers(self) -> Iterator[str]:
        units = self._code("dnn_hidden_units")
        activation = self._code("dnn_activation_fn", "tf.nn.relu")
        options = "" if activation == "None" else f", {activation}"
        yield (
            "    self.hidden = [\n"
            f"        tf.keras.layers.Dense(units{options}, name=f'hiddenlayer_{{i}}')\n"
            f"        for i, units in enumerate({units})]"
        )
        if self._drops:
            dropout = self._code("dnn_dropout")
            yield f"    self.dropouts = [tf.keras.layers.Dropout({dropout}) for _ in self.hidden]"
        if self._constant("batch_norm", False):
            yield (
                "    self.norms = [\n"
                "        tf.keras.layers.BatchNormalization(\n"
                "            momentum=0.999, name=f'hiddenlayer_{i}_batchnorm_{i}')\n"
                "        for i in range(len(self.hidden))]"
            )

    def _recurrent_layers(self, recurrent: RecurrentWriter) -> Iterator[str]:
        for name, columns in (("sequence", self._sequences), ("dense", self._context)):
            if columns is not None:
                parts = [columns(), f"name='{name}_features'"]
                call = call_text(f"{name.title()}Features", parts, 4, f"self.{name}_features = ")
                yield f"    self.{name}_features = {call}"
        yield f"    self.rnn = {recurrent.text()}"
        yield f"    self.logits = tf.keras.layers.Dense({self._head.units}, name='logits')"

    @property
    def _drops(self) -> bool:
        return not is_none(self._site.arguments.get("dnn_dropout"))

    def _linear_options(self) -> Iterator[str]:
        if self._head.units != "1":
            yield f"units={self._head.units}"
        if "linear_sparse_combiner" in self._site.arguments:
            yield f"sparse_combiner={self._code('linear_sparse_combiner')}"

    def _call(self) -> Iterator[str]:
        yield "  def call(self, features, training=False):"
        if self._recurrent is not None:
            yield from self._call_recurrent()
            return
        if self._deep is None:
            layer = "baseline" if "baseline" in self._optimizers else "linear"
            yield f"    return self.{layer}(features)"
            return
        yield "    net = self.input_layer(features)"
        variables, lists, net = ["layer"], ["self.hidden"], "layer(net)"
        if self._drops:
            variables, lists = [*variables, "dropout"], [*lists, "self.dropouts"]
            net = f"dropout({net}, training=training)"
        if self._constant("batch_norm", False):
            variables, lists = [*variables, "norm"], [*lists, "self.norms"]
            net = f"norm({net}, training=training)"
        source = lists[0] if len(lists) == 1 else f"zip({', '.join(lists)})"
        yield f"    for {', '.join(variables)} in {source}:"
        yield f"      net = {net}"
        both = "" if self._linear is None else " + self.linear(features)"
        yield f"    return self.logits(net){both}"

    def _call_recurrent(self) -> Iterator[str]:
        yield "    net, lengths = self.sequence_features(features)"
        if self._context is not None:
            yield "    context = self.dense_features(features)[:, tf.newaxis]"
            yield "    net = tf.concat([net, tf.tile(context, [1, tf.shape(net)[1], 1])], -1)"
        yield "    mask = tf.sequence_mask(lengths, tf.shape(net)[1])"
        mask = ", mask" if self._has_steps else ""
        yield f"    return self.logits(self.rnn(net, mask=mask, training=training)){mask}"

    @property
    def _has_steps(self) -> bool:
        return self._recurrent is not None and self._recurrent.returns_sequences

    @property
    def _star(self) -> str:
        return "*" if self._has_steps else ""

    @property
    def _outputs(self) -> str:
        return "logits, mask" if self._has_steps else "logits"

    @property
    def _passed(self) -> str:
        return f"labels, {self._outputs}" + (", features" if self._head.needs_features else "")

    def _train_step(self) -> Iterator[str]:
        yield "  def train_step(self, batch):"
        yield "    features, labels = batch"
        yield "    with tf.GradientTape() as tape:"
        yield f"      {self._outputs} = self(features, training=True)"
        yield f"      loss = self.head.loss({self._passed})"
        if self._clips:
            yield "    gradients, variables = self.gradients(loss, tape)"
            yield f"    clipped = [tf.clip_by_norm(each, {CLIP_NORM}) for each in gradients]"
            yield "    self.apply_gradients(zip(clipped, variables))"
        elif len(self._optimizers) == 1:
            yield "    self.minimize(loss, tape)"
        else:
            for part in self._optimizers:
                below = f"self.variables_below('{part}/')"
                yield f"    self.minimize(loss, tape, {below}, self.{part}_optimizer)"
        yield "    return {'loss': loss}"

    @property
    def _clips(self) -> bool:
        return self._recurrent is not None and self._optimizers["rnn"].is_named

    def _test_step(self) -> Iterator[str]:
        yield "  def test_step(self, batch):"
        yield "    features, labels = batch"
        yield f"    {self._outputs} = self(features, training=False)"
        yield f"    self.mean_loss.update_state(self.head.loss({self._passed}))"
        yield f"    self.head.update_metrics({self._passed})"
        yield "    return {'loss': self.mean_loss.result(), **self.head.results()}"


def _names_of(function: ast.AST) -> set[str]:
    if not isinstance(function, ast.FunctionDef):
        return set()
    return {*bound_in(function), *parameters_of(function)} - {function.name}

"""Traces a model_fn once, and copies its computation for every other emulated core.

Variables and other state belong to core 0. Only core 0 assigns to variables and runs UPDATE_OPS,
because checkpoints from a TPU also have core 0's values.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.runtime.input.feeding import CoreLayout
from estimator_bridge.runtime.program_types import InputBatch
from estimator_bridge.runtime.step.activation_proxy import placeholder
from tf2_engine import tf_compat
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import Message, Nest, Object, Op, Tensor, TensorLike

_DEVICE_FIELDS = ("job", "replica", "task", "device_type", "device_index")
# These ops create handles for one step. All other handles refer to variables, tables or queues.
_MAKE_HANDLES_OF_A_STEP = ("Stack", "StackV2", "TemporaryVariable")


@dataclasses.dataclass(frozen=True)
class _Sum:
    terms: list[Tensor]
    totals: list[Tensor]
    groups: list[list[int]]


class CoreTracer:
    """Traces the model on core 0, copies its ops for each other core, and joins their sums."""

    def __init__(self, cores: CoreLayout, batches: Sequence[InputBatch]) -> None:
        self._cores = cores
        self._graph = tf.get_default_graph()
        self._structure, inputs = batches[0], [_leaves(batch) for batch in batches]
        self._inputs = inputs if cores.count > 1 else []
        self.sums: list[_Sum] = []

    @contextlib.contextmanager
    def trace(self) -> Iterator[InputBatch]:
        batch: InputBatch = self._structure
        number: TensorLike = 0
        with self._cores.on(0):
            if self._inputs:
                # Copied ops would still read the tensors that a ragged tensor has cached. New
                # ragged tensors have cached none.
                batch = tf.nest.pack_sequence_as(batch, self._inputs[0], expand_composites=True)
                self._numbers = [tf.constant(core) for core in range(self._cores.count)]
                number = self._numbers[0]
                self._device = tf.DeviceSpec.from_string(number.op.device)
            num_before = len(self._graph.get_operations())
            with tf_compat.tpu_computation(self._cores.count, self._cross_replica_sum, number):
                yield batch
        self._traced = {op.name: op for op in self._graph.get_operations()[num_before:]}
        updates = self._graph.get_collection(tf.GraphKeys.UPDATE_OPS)
        self._updates = {getattr(update, "op", update).name for update in updates}

    def copy(self, core: int, results: Nest) -> Nest:
        pairs = zip(self._inputs[0], self._inputs[core], strict=True)
        replaced = {ours.name: theirs for ours, theirs in pairs if isinstance(ours, tf.Tensor)}
        replaced[self._numbers[0].name] = self._numbers[core]
        leaves = tf.nest.flatten(results, expand_composites=True)
        with self._cores.on(core):
            for each in self.sums:
                each.totals.append(_total_of(each.terms[0]))
                replaced[each.totals[0].name] = each.totals[core]
            tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
            terms = [each.terms[0] for each in self.sums]
            copies = self._copies(core, replaced, [*terms, *tensors])
        for each in self.sums:
            each.terms.append(copies[each.terms[0].name])
        leaves = [copies[leaf.name] if isinstance(leaf, tf.Tensor) else leaf for leaf in leaves]
        return tf.nest.pack_sequence_as(results, leaves, expand_composites=True)

    def join(self) -> None:
        for each in self.sums:
            for group in each.groups:
                total = sum_in_order([each.terms[core] for core in group])
                for core in group:
                    tf_compat.rewire(each.totals[core], total)

    def _cross_replica_sum(
        self, input: TensorLike, group_assignment: TensorLike, name: str | None = None
    ) -> Tensor:
        term = tf.identity(tf.convert_to_tensor(input), name=name)
        if self._cores.count == 1:
            return term
        if term.graph is not self._graph:
            raise errors.InvalidInput(
                f"A sum over {self._cores.count} cores is inside a tf.function or TensorFlow 2's "
                "control flow, for instance a CrossShardOptimizer in a branch of tf.cond. Move the "
                "sum outside, or call tf.compat.v1.disable_control_flow_v2() first."
            )
        groups = tf.get_static_value(tf.convert_to_tensor(group_assignment))
        total = _total_of(term)
        self.sums.append(_Sum([term], [total], groups.tolist()))
        return total

    def _copies(
        self, core: int, replaced: Mapping[str, Tensor], wanted: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Copies all ops on which `wanted` depend; returns the copied tensors, keyed by name.

        `replaced` maps the names of core 0's tensors to the tensors that replace them in the copy.
        """
        replaced_ops = {name.split(":")[0]: tensor.op for name, tensor in replaced.items()}
        ops: dict[str, Op] = {}
        pending = [tensor.op for tensor in wanted]
        while pending:
            op = pending.pop()
            if op.name in ops or op.name in replaced_ops or not self._is_of_core(op):
                continue
            ops[op.name] = op
            pending += [tensor.op for tensor in op.inputs]
            pending += [before for before in op.control_inputs if not self._is_update(before)]

        graph_def = tf.GraphDef(versions=self._graph.graph_def_versions)
        graph_def.node.extend(self._node(op, core, ops) for op in ops.values())
        read = {tensor.name: tensor for op in ops.values() for tensor in op.inputs}
        around = {
            name: replaced.get(name, tensor)
            for name, tensor in read.items()
            if tensor.op.name not in ops
        }
        copied = tf.import_graph_def(graph_def, around, list(ops), name=f"core_{core}")
        copies = dict(zip(ops, copied, strict=True))
        for name, op in ops.items():
            for before in op.control_inputs:
                # A branch or a loop cannot wait for an op of another core.
                if before.name not in ops and not tf_compat.is_in_control_flow(before):
                    tf_compat.run_after(copies[name], replaced_ops.get(before.name, before))

        def copy_of(tensor: Tensor) -> Tensor:
            op = copies.get(tensor.op.name)
            return (
                replaced.get(tensor.name, tensor) if op is None else op.outputs[tensor.value_index]
            )

        return {tensor.name: copy_of(tensor) for tensor in wanted}

    def _is_of_core(self, op: Op) -> bool:
        if op.name not in self._traced:
            return False
        if any(_is_handle(tensor) for tensor in op.outputs) and not op.inputs:
            return op.type in _MAKE_HANDLES_OF_A_STEP
        return tf_compat.is_in_control_flow(op) or not _assigns(op)

    def _is_update(self, op: Op) -> bool:
        return op.name in self._updates or _assigns(op)

    def _node(self, op: Op, core: int, ops: Mapping[str, Op]) -> Message:
        node = op.node_def
        inputs = [name for name in node.input if name[0] != "^" or name[1:] in ops]
        node.ClearField("input")
        node.input.extend(inputs)
        if "_class" in node.attr:
            places = node.attr["_class"].list.s
            places[:] = [place for place in places if place.decode().removeprefix("loc:@") in ops]
        if "frame_name" in node.attr:
            node.attr["frame_name"].s += f"/core_{core}".encode()
        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed2"].i += core * tf_compat.SEEDS_PER_CORE
        device = tf.DeviceSpec.from_string(node.device)
        of_core_0 = [
            field
            for field in _DEVICE_FIELDS
            if getattr(device, field) == getattr(self._device, field)
        ]
        node.device = device.replace(**dict.fromkeys(of_core_0)).to_string()
        return node


def _leaves(batch: InputBatch) -> list[Object]:
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return [None if leaf is None else tf.convert_to_tensor(leaf) for leaf in leaves]


def _total_of(term: Tensor) -> Tensor:
    return placeholder(term.shape, term.dtype, "cross_replica_sum")


def _is_handle(tensor: Tensor) -> bool:
    return tensor.dtype == tf.resource or _is_reference(tensor)


def _is_reference(tensor: Tensor) -> bool:
    return bool(tensor.dtype != tensor.dtype.base_dtype)


def _assigns(op: Op) -> bool:
    is_flow = op.type.startswith("Ref")  # RefSwitch and the like pass a variable on.
    changes = any(_is_handle(tensor) for tensor in op.inputs)
    return changes and not is_flow and all(_is_reference(tensor) for tensor in op.outputs)


def sum_in_order(terms: Sequence[Tensor]) -> Tensor:
    """Computes ((t0 + t1) + t2) + ... so that rounding does not depend on the terms' devices.

    The barriers keep TensorFlow from replacing the chain by an `AddN`, which adds in any order.
    """
    total = optimization_barrier(terms[0])
    for term in terms[1:]:
        total = optimization_barrier(total + term)
    return total

"""The effects of legacy settings in a PyTorch program that uses nn.EmbeddingBag or TorchRec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TorchEffect(NamedTuple):
    """What happens in PyTorch instead of a setting's effect, and the advice to users."""

    effect: str
    way_out: str = ""


_HASHING = TorchEffect(
    "PyTorch has no feature columns, and no FarmHash, with which TensorFlow hashes strings",
    "compute ids in the input pipeline: with TensorFlow, as to_tf2().preprocessing does, or store "
    "them in the data",
)
_DECAY = TorchEffect(
    "torch.optim adds weight_decay to the gradient, and AdamW lets all rows decay; FBGEMM ignores "
    "it silently for EXACT_SGD and EXACT_ADAGRAD",
    "decay the rows of the batch before the update, as in docs/torch.md",
)

EFFECTS: Mapping[str, TorchEffect] = {
    "clipping_limit": TorchEffect(
        "stock ignores it, so a port that limits weights computes other results", "leave it out"
    ),
    "learning_rate_zero": TorchEffect(
        "a rate of 0.0 is 0.0; in stock it counts as unset", "set the rate of the optimizer"
    ),
    "table_learning_rate": TorchEffect(
        "a rate belongs to an optimizer", "give the table its own parameter group or optimizer"
    ),
    "learning_rate_fn": TorchEffect(
        "use a scheduler, or call set_learning_rate of FBGEMM before each step",
        "call learning_rate_fn with the step before the update, which is 0 first",
    ),
    "no_gradient_accumulation": TorchEffect(
        "all libraries sum the gradients of a row before the update", "expect other results"
    ),
    "weight_decay": _DECAY,
    "weight_limits": TorchEffect(
        "no library limits weights", "limit the rows of the batch after the step"
    ),
    "gradient_limits": TorchEffect(
        "max_gradient of FBGEMM limits the gradients of activations before they are added",
        "limit the coalesced sparse gradient before the step",
    ),
    "table_size": TorchEffect(
        "nn.EmbeddingBag draws initial values from a normal distribution, TorchRec from a uniform "
        "distribution; FBGEMM needs a dimension that is a multiple of 4",
        "load a converted checkpoint; otherwise, draw from the same distribution",
    ),
    "combiner": TorchEffect(
        "the default is the mean in nn.EmbeddingBag, and the sum in TorchRec; both lack sqrtn, and "
        "nn.EmbeddingBag takes weights only with a sum",
        "use the sum, with weights that are divided by their sum (mean) or by the root of the sum "
        "of their squares (sqrtn)",
    ),
    "combiner_none": TorchEffect(
        "on a TPU None means the sum; the default of nn.EmbeddingBag is the mean", "use the sum"
    ),
    "mod_partitioning": TorchEffect(
        "a checkpoint has whole tables, which TorchRec shards",
        "use `convert --to torch`, which puts rows in order; the stored tensors have another order",
    ),
    "gradient_multiplier": TorchEffect(
        "no such setting", "multiply the gradient of the activations in a hook, not the loss"
    ),
    "pipelining": TorchEffect(
        "TorchRec's pipelines fetch inputs early, but each step includes the previous update",
        "expect other results",
    ),
    "column_transforms_on_cpu_only": _HASHING,
    "feature_columns": _HASHING,
    "weighted_feature": TorchEffect(
        "use per_sample_weights of nn.EmbeddingBag, or weights of a KeyedJaggedTensor. For mean "
        "and sqrtn a TPU divides by the weights, but FBGEMM's mean divides by the number of ids",
        "use the sum, and divide the weights first",
    ),
    "dense_ids": TorchEffect(
        "every id is looked up; stock skips id 0 of a dense tensor",
        "drop the padding before the lookup",
    ),
    "sequence": TorchEffect(
        "EmbeddingCollection returns all positions and their lengths, without cutting sequences",
        "cut at max_sequence_length and pad with zero rows",
    ),
    "ids_out_of_range": TorchEffect(
        "nn.EmbeddingBag raises an error; FBGEMM looks up row 0 instead and warns "
        "(BoundsCheckMode.WARNING)",
        "check the ids of the input pipeline, and use BoundsCheckMode.FATAL",
    ),
}
"""Maps the names of rows of the catalogue to effects. Other rows have no effect in PyTorch."""

"""The effects of legacy settings in a PyTorch program that uses nn.EmbeddingBag or TorchRec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TorchEffect(NamedTuple):
    """The effect that PyTorch has instead, and the advice to users."""

    effect: str
    way_out: str = ""


_HASHING = TorchEffect(
    "PyTorch has no feature columns, and no FarmHash, by which TensorFlow hashes strings",
    "compute ids in the input pipeline: with TensorFlow, as to_tf2().preprocessing does, or store "
    "them in the data",
)
_DECAY = TorchEffect(
    "torch.optim adds weight_decay to the gradient, and AdamW lets all rows decay; FBGEMM ignores "
    "it for EXACT_SGD and EXACT_ADAGRAD without a word",
    "decay the rows of the batch before the update, as in docs/torch.md",
)

EFFECTS: Mapping[str, TorchEffect] = {
    "clipping_limit": TorchEffect(
        "stock ignores it, so a port that limits weights changes the numbers", "leave it out"
    ),
    "learning_rate_zero": TorchEffect(
        "a rate of 0.0 is 0.0, and here it counted as unset", "give the rate of the optimizer"
    ),
    "table_learning_rate": TorchEffect(
        "rates belong to optimizers", "give the table a parameter group or an optimizer of its own"
    ),
    "learning_rate_fn": TorchEffect(
        "a scheduler, or set_learning_rate of FBGEMM before each step",
        "call it with the step before the update, 0 first",
    ),
    "no_gradient_accumulation": TorchEffect(
        "all libraries add the gradients of a row first", "expect other numbers"
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
        "nn.EmbeddingBag starts with a normal distribution, TorchRec with a uniform one; FBGEMM "
        "wants a dimension that is a multiple of 4",
        "load a converted checkpoint; otherwise, draw from the same distribution",
    ),
    "combiner": TorchEffect(
        "the default of nn.EmbeddingBag is the mean, and of TorchRec the sum; neither has sqrtn, "
        "and nn.EmbeddingBag takes weights only with a sum",
        "use the sum, with weights that are divided by their sum (mean) or by the root of the sum "
        "of their squares (sqrtn)",
    ),
    "combiner_none": TorchEffect(
        "on a TPU it is the sum, and the default of nn.EmbeddingBag is the mean", "use the sum"
    ),
    "mod_partitioning": TorchEffect(
        "tables are whole, and TorchRec shards them",
        "`convert --to torch` puts rows in order; reading the tensors as they are does not",
    ),
    "gradient_multiplier": TorchEffect(
        "no such setting", "multiply the gradient of the activations in a hook, not the loss"
    ),
    "pipelining": TorchEffect(
        "TorchRec's pipelines fetch inputs early, but a step sees the update of the last one",
        "expect other numbers",
    ),
    "column_transforms_on_cpu_only": _HASHING,
    "feature_columns": _HASHING,
    "weighted_feature": TorchEffect(
        "per_sample_weights of nn.EmbeddingBag, or weights of a KeyedJaggedTensor; a TPU divides "
        "by the weights for mean and sqrtn, FBGEMM's mean by the number of ids",
        "use the sum, and divide the weights first",
    ),
    "dense_ids": TorchEffect(
        "every id is looked up, and here id 0 of a dense tensor was skipped",
        "drop the padding before the lookup",
    ),
    "sequence": TorchEffect(
        "EmbeddingCollection returns all positions and their lengths, and nothing is cut",
        "cut at max_sequence_length and pad with zero rows",
    ),
    "ids_out_of_range": TorchEffect(
        "nn.EmbeddingBag raises an error; FBGEMM looks up row 0 instead and warns "
        "(BoundsCheckMode.WARNING)",
        "check the ids of the input pipeline, and use BoundsCheckMode.FATAL",
    ),
}
"""Effects by the name of a row of the catalogue. PyTorch programs need no other rows."""

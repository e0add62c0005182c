"""Writes summaries of tables for TensorBoard: statistics, and data for the embedding projector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.summaries.projector import write_projector

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.summaries.projector": ["write_projector"],
    },
)

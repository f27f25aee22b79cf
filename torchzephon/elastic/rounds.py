"""Rounds: the unit of training, one list of microbatches a round."""

from __future__ import annotations

from typing import Any

import torch
from torchdata.nodes import BaseNode

from torchzephon.curriculum.checks import check_int
from torchzephon.elastic.lanes import Lanes
from torchzephon.nodes.boundaries import BOUNDS, bounds_of

Batch = dict[str, torch.Tensor]


class Rounds(BaseNode[list[Any]]):
    """Yields one item a round: this rank's share of it, as a list of microbatches.

    A training loop is the same at every world size::

        for micro_batches in loader:
            for batch in micro_batches:
                ...  # backward
            ...  # step

    All ranks yield lists of equal length (unless ``uneven="allow"``), and together they hold the same rows in the
    same order, whatever the number of ranks. The state is that of ``lanes``, after whole rounds.

    Args:
        lanes: a :class:`~torchzephon.Lanes` whose batches are dicts of tensors with rows along the first dimension.
        micro_batch_size: rows of a microbatch; rows of neighbouring lanes are joined, or a lane's batch is cut. It
            must divide this rank's rows of a round. ``cu_seqlens`` and ``max_seqlen`` are made anew from ``positions``.
            None: the lanes' batches as they are.

    Raises:
        ValueError: when ``micro_batch_size`` does not divide the rows of a round.
        TypeError: when ``micro_batch_size`` is no int, or batches cannot be joined by rows.
    """

    def __init__(self, lanes: Lanes, micro_batch_size: int | None = None) -> None:
        super().__init__()
        if not isinstance(lanes, Lanes):
            raise TypeError(f"Rounds needs a Lanes, got {type(lanes).__name__}")
        if micro_batch_size is not None:
            check_int("micro_batch_size", micro_batch_size, at_least=1)
        self.source = lanes
        self.micro_batch_size = micro_batch_size

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See :meth:`Lanes.reset <torchzephon.Lanes.reset>`."""
        super().reset(initial_state)
        self.source.reset(initial_state)

    def next(self) -> list[Any]:
        """The next round."""
        return self.source.next_round(self._split)

    def get_state(self) -> dict[str, Any]:
        """The state of the lanes, after the last round."""
        return self.source.get_state()

    def _split(self, batches: list[Any]) -> list[Any]:
        size = self.micro_batch_size
        if size is None:
            return batches
        has_bounds = all(isinstance(batch, dict) and {"positions", *BOUNDS} <= batch.keys() for batch in batches)
        parts = [_without_bounds(batch) for batch in batches] if has_bounds else batches
        rows = [_count_rows(part) for part in parts]
        if all(count == size for count in rows):
            return batches
        total = sum(rows)
        if total % size:
            raise ValueError(
                f"micro_batch_size={size} does not divide this rank's {total} rows of a round "
                f"({len(batches)} lanes' batches of {rows[0]}); choose a divisor of {rows[0]}, which suits "
                "any number of ranks"
            )
        cut = _cut(parts, size, total)
        return [batch | bounds_of(batch["positions"].numpy()) for batch in cut] if has_bounds else cut


def _without_bounds(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name not in BOUNDS}


def _count_rows(batch: Any) -> int:
    kind = type(batch).__name__
    if (
        not isinstance(batch, dict)
        or not batch
        or not all(isinstance(v, torch.Tensor) and v.dim() for v in batch.values())
    ):
        raise TypeError(
            "micro_batch_size joins the lanes' batches by rows: they must be dicts of tensors, got "
            f"{kind if batch else f'an empty {kind}'}; use micro_batch_size=None, or end the graph with TrainingBatcher"
        )
    counts = {name: len(value) for name, value in batch.items()}
    if len(set(counts.values())) != 1:
        raise TypeError(
            f"micro_batch_size joins the lanes' batches by rows, and a batch has tensors of unequal ones: {counts}; "
            "use micro_batch_size=None and the wanted batch_size in TrainingBatcher"
        )
    return next(iter(counts.values()))


def _cut(batches: list[Batch], size: int, total: int) -> list[Batch]:
    """Rows of all batches, in order, in batches of ``size``; a lane's batch that need not be joined is not copied."""
    joined = batches[0] if len(batches) == 1 else {name: torch.cat([b[name] for b in batches]) for name in batches[0]}
    return [{name: rows[start : start + size] for name, rows in joined.items()} for start in range(0, total, size)]

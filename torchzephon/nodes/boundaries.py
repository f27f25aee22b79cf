"""Where the documents of a batch start, told from positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BOUNDS = ("cu_seqlens", "max_seqlen")
"""The entries of a batch that are of all its rows together."""


def bounds_of(positions: NDArray[np.int64]) -> dict[str, Any]:
    """The entries :data:`BOUNDS` of the batch with these positions: see :class:`~torchzephon.TrainingBatcher`."""
    bounds = document_bounds(positions)
    return dict(zip(BOUNDS, (torch.from_numpy(bounds), int(np.diff(bounds).max())), strict=True))


def document_bounds(positions: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where documents start in the flattened batch, and its end: ``cu_seqlens`` for flash-attention's varlen functions.

    A document starts with every row, and wherever a position is not the one before plus one. (A position 0 would not
    do: a row may start in the middle of a document, and so may a piece of one.)

    Args:
        positions: int64 ``[batch, seq_len]``, as :class:`~torchzephon.TrainingBatcher` makes them.

    Returns:
        int32 ``[documents + 1]``, from 0 to ``batch * seq_len``.
    """
    starts = np.ones(positions.shape, np.bool_)
    starts[:, 1:] = ~continued(positions)
    return np.append(np.flatnonzero(starts), positions.size).astype(np.int32)


def continued(positions: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which tokens go on with the document of the token before: bool ``[batch, length - 1]``, from the second on."""
    same: NDArray[np.bool_] = positions[:, 1:] == positions[:, :-1] + 1
    return same

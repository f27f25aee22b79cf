"""From documents to the pieces that fit into a sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchzephon.packing.base import Oversize


def usable(lengths: NDArray[np.int64], capacity: int, oversize: Oversize) -> NDArray[np.int64]:
    """How many tokens of each document are packed: int64 ``[n]``."""
    if oversize == "truncate":
        return np.minimum(lengths, capacity)
    if oversize == "drop":
        return np.where(lengths > capacity, 0, lengths)
    return lengths


def cut(
    lengths: NDArray[np.int64], capacity: int, oversize: Oversize
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cuts documents that lie one after another into pieces of at most ``capacity`` tokens.

    Args:
        lengths: int64 ``[n]``, tokens of each document.
        capacity: tokens that a sequence holds.
        oversize: what becomes of longer documents; full pieces and a rest where it is not ``"truncate"`` or ``"drop"``.

    Returns:
        For each piece, in order: the document that it is of, and where it starts and ends in the flat array of all
        documents. Three int64 arrays ``[m]``. Documents without tokens have no piece.
    """
    kept = usable(lengths, capacity, oversize)
    counts = -(-kept // capacity)
    owners = np.repeat(np.arange(len(lengths)), counts)
    ordinals = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.cumsum(lengths) - lengths
    starts = begins[owners] + ordinals * capacity
    return owners, starts, np.minimum(starts + capacity, (begins + kept)[owners])

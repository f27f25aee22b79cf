"""Best-fit decreasing: the longest piece first, each into the fullest sequence that still has room."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

_BITS = 32  # a sequence is one integer, its room above and its number below, so that a sorted list finds the best fit


def best_fit(lengths: NDArray[np.int64], capacity: int, waited: int = 0) -> NDArray[np.int64]:
    """Packs pieces by best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").

    Ties go to the earlier piece and to the sequence that was opened first.

    Args:
        lengths: int64 ``[n]``, each in ``1..capacity``.
        capacity: tokens that a sequence holds.
        waited: so many pieces, from the first on, are placed before the others, so that the others fill up after them.

    Returns:
        int64 ``[n]``, the sequence that each piece goes into, numbered from 0 without gaps.
    """
    sequences = np.zeros(len(lengths), np.int64)
    order = np.lexsort((-lengths, np.arange(len(lengths)) >= waited))
    chosen: list[int] = []
    rooms: list[int] = []
    opened = 0
    for length in lengths[order].tolist():
        at = bisect_left(rooms, length << _BITS)
        if at < len(rooms):
            best = rooms.pop(at)
        else:
            best = capacity << _BITS | opened
            opened += 1
        chosen.append(best & ((1 << _BITS) - 1))
        best -= length << _BITS
        if best >> _BITS:
            insort(rooms, best)
    sequences[order] = chosen
    return sequences

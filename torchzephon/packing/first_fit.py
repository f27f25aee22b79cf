"""First-fit: each piece, in order of arrival, into the first sequence that has room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def first_fit(lengths: NDArray[np.int64], capacity: int, waited: int = 0) -> NDArray[np.int64]:  # noqa: ARG001
    """Packs pieces by first-fit in order of arrival (Johnson 1973, "Near-Optimal Bin Packing Algorithms").

    It packs less densely than :func:`~torchzephon.packing.best_fit.best_fit`, but does not sort: documents that came
    together mostly stay together. (First-fit *decreasing* would pack like best-fit decreasing.)

    Args:
        lengths: int64 ``[n]``, each in ``1..capacity``.
        capacity: tokens that a sequence holds.
        waited: without effect, for the pieces that waited are the first to have arrived.

    Returns:
        int64 ``[n]``, the sequence that each piece goes into, numbered from 0 without gaps.
    """
    # Of any two sequences, the later holds something that did not fit into the earlier: they hold more than one
    # capacity together. That bounds the sequences, and the leaves of the tree that finds the first with room.
    bound = 2 * int(lengths.sum()) // capacity + 1
    leaves = 1 << max(bound - 1, 0).bit_length()
    room = [capacity] * (2 * leaves)  # a node's room is the most of any sequence below it
    chosen: list[int] = []
    for length in lengths.tolist():
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        chosen.append(node - leaves)
        left = room[node] - length
        room[node] = left
        while node > 1:
            other = room[node ^ 1]
            node //= 2
            if other > left:
                left = other
            if room[node] == left:
                break
            room[node] = left
    return np.asarray(chosen, np.int64)

"""Documents that are too long: cutting flat id buffers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.ragged import Ragged


def truncate(ids: Ragged, length: int, suffix: int) -> Ragged:
    """Shortens rows to ``length`` tokens, of which the last ``suffix`` stay the row's last.

    Returns:
        A copy, or ``ids`` itself when no row is longer.
    """
    lengths = np.minimum(ids.lengths, length)
    if (lengths == ids.lengths).all():
        return ids
    offsets = np.zeros(len(ids.offsets), np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = ids.values[np.arange(offsets[-1]) + np.repeat(ids.offsets[:-1] - offsets[:-1], lengths)]
    cut = np.flatnonzero(lengths < ids.lengths) + 1
    for place in range(1, suffix + 1):
        values[offsets[cut] - place] = ids.values[ids.offsets[cut] - place]
    return Ragged(values, offsets)


def split(ids: Ragged, length: int) -> tuple[Ragged, NDArray[np.intp]]:
    """Cuts every row into pieces of ``length`` tokens, the last one shorter; an empty row stays one empty piece.

    Returns:
        The pieces, which share the values of ``ids``; and of each piece, intp ``[pieces]``, the row it is of.
    """
    pieces = np.maximum(-(-ids.lengths // length), 1)
    rows = np.repeat(np.arange(len(ids)), pieces)
    ordinals = np.arange(len(rows)) - (np.cumsum(pieces) - pieces)[rows]
    starts = ids.offsets[:-1][rows] + ordinals * length
    return Ragged(ids.values, np.append(starts, ids.offsets[-1])), rows

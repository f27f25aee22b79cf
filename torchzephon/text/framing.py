"""Control tokens around documents, and documents that are too long: on flat id buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.ragged import Ragged

_LONG_ROWS = 500  # mean length from which copying row by row is faster than one boolean mask


def surround(ids: Ragged, prefix: Sequence[int], suffix: Sequence[int]) -> Ragged:
    """Puts the same tokens before and after every row. A new Ragged, or ``ids`` when there is nothing to put."""
    if not len(prefix) + len(suffix):
        return ids
    flat, offsets = ids.flat, ids.offsets - ids.offsets[0]
    grown = offsets + np.arange(len(offsets)) * (len(prefix) + len(suffix))
    begins, ends = grown[:-1] + len(prefix), grown[1:] - len(suffix)
    frame = [(grown[:-1] + index, token) for index, token in enumerate(prefix)]
    frame += [(ends + index, token) for index, token in enumerate(suffix)]
    values = np.empty(grown[-1], flat.dtype)
    if len(flat) > _LONG_ROWS * len(ids):
        rows = zip(begins.tolist(), ends.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        for begin, end, start, stop in rows:
            values[begin:end] = flat[start:stop]
    else:
        body = np.ones(len(values), np.bool_)
        for places, _ in frame:
            body[places] = False
        values[body] = flat
    for places, token in frame:
        values[places] = token
    return Ragged(values, grown)


def truncate(ids: Ragged, length: int) -> Ragged:
    """The first ``length`` tokens of every row: a copy, or ``ids`` when no row is longer."""
    lengths = ids.lengths
    if not (lengths > length).any():
        return ids
    return Ragged.from_rows([row[:length] for row in ids], ids.values.dtype)


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

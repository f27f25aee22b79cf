"""The position of every token in its document."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_LONG = 512  # tokens: to copy so many takes less than to count them
_KEPT = 1 << 16  # tokens


@functools.lru_cache(maxsize=1)
def _ramp(size: int) -> NDArray[np.int32]:
    ramp = np.arange(size, dtype=np.int32)
    ramp.flags.writeable = False
    return ramp


def ramp(size: int) -> NDArray[np.int32]:
    """``0, 1, ... size - 1``: int32 ``[size]``, a read-only view of a shared array."""
    return _ramp(max(_KEPT, 1 << (size - 1).bit_length()))[:size]


def document_positions(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Positions of the tokens of consecutive documents, each counting from 0.

    Args:
        lengths: int64 ``[n]``, tokens of each document; zeros are fine.

    Returns:
        int32 ``[lengths.sum()]``.
    """
    lengths = lengths[lengths > 0]
    count = int(lengths.sum())
    if len(lengths) and count >= _LONG * len(lengths):
        kept = ramp(_KEPT)
        return np.concatenate([kept[:n] if n <= _KEPT else np.arange(n, dtype=np.int32) for n in lengths.tolist()])
    steps = np.ones(count, np.int32)
    steps[:1] = 0
    steps[np.cumsum(lengths[:-1])] = 1 - lengths[:-1]
    return np.cumsum(steps, out=steps, dtype=np.int32)

"""The watch: a few documents are encoded by the reference too, for as long as the job runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.ragged import Ragged

_ONE_IN = 4096
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)


def watched_rows(ids: Ragged) -> NDArray[np.intp]:
    """Which documents to check: one in 4096, by a hash of their length and three of their tokens.

    So the choice depends on the document alone, not on the block that it came in.
    """
    lengths = ids.lengths
    rows = np.flatnonzero(lengths)
    starts, lengths = ids.offsets[:-1][rows], lengths[rows]
    mixed = lengths.astype(np.uint64) * _MIX[0]
    for factor, places in zip(_MIX[1:], (starts, starts + lengths // 2, starts + lengths - 1), strict=True):
        mixed ^= (ids.values[places].astype(np.uint64) + np.uint64(1)) * factor
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX[0]
    chosen: NDArray[np.bool_] = (mixed >> np.uint64(32)) % np.uint64(_ONE_IN) == 0
    return rows[chosen]


def first_difference(got: NDArray[np.int32], expected: NDArray[np.int32]) -> int | None:
    """The index of the first token in which two documents differ, None for equal ones."""
    if np.array_equal(got, expected):
        return None
    common = min(len(got), len(expected))
    unequal = np.flatnonzero(got[:common] != expected[:common])
    return int(unequal[0]) if len(unequal) else common

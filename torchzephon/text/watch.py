"""The watch: a few documents are encoded by the reference too, for as long as the job runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.ragged import Ragged

_ONE_IN = 4096
_FACTORS = np.array([0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x56E8FEB86659FD93])  # odd, irregular


def watched_rows(ids: Ragged) -> NDArray[np.intp]:
    """Which documents to check: one in 4096, by a hash of their length and their first and last token.

    So the choice depends on the document alone, not on the block that it came in. Empty ones are never chosen.
    """
    begins, ends = ids.offsets[:-1], ids.offsets[1:]
    lengths = ends - begins
    if not len(ids.values):
        return lengths.nonzero()[0]
    mixed = lengths * _FACTORS[0]  # int64, which wraps around
    mixed += ids.values.take(begins, mode="clip") * _FACTORS[1]
    mixed += ids.values.take(ends - 1, mode="clip") * _FACTORS[2]
    mixed ^= mixed >> 32
    mixed *= _FACTORS[3]
    mixed >>= 32
    mixed &= _ONE_IN - 1
    mixed[lengths == 0] = -1
    rows: NDArray[np.intp] = (mixed == 0).nonzero()[0]
    return rows


def first_difference(got: NDArray[np.int32], expected: NDArray[np.int32]) -> int | None:
    """The index of the first token in which two documents differ, None for equal ones."""
    if np.array_equal(got, expected):
        return None
    common = min(len(got), len(expected))
    unequal = np.flatnonzero(got[:common] != expected[:common])
    return int(unequal[0]) if len(unequal) else common

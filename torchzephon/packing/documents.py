"""Documents: consecutive documents as flat columns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchzephon.packing.base import Columns


@dataclass(frozen=True)
class Documents:
    """Consecutive documents: document ``i`` has the entries ``offsets[i]:offsets[i + 1]`` of every column.

    Attributes:
        columns: parallel flat arrays ``[offsets[-1]]``.
        offsets: int64 ``[n + 1]``, from 0.
    """

    columns: Columns
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Columns, lengths: NDArray[np.int64]) -> Documents:
        """From the number of tokens of each."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(columns, offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, int64 ``[n]``."""
        return np.diff(self.offsets)

    @functools.cached_property
    def bounds(self) -> list[int]:
        """``offsets`` as a list: to look up one number in it takes a fraction of what numpy needs."""
        offsets: list[int] = self.offsets.tolist()
        return offsets

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents together."""
        return len(self.columns[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Documents:
        """Some of them, in order: views."""
        start, stop, _ = rows.indices(len(self))
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return Documents([column[first:last] for column in self.columns], self.offsets[start : stop + 1] - first)

"""Work: a small array of sample pointers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Work:
    """Pointers to ``n`` samples, in the order in which they are to be read.

    Attributes:
        dataset: int32 ``[n]``, index into the work source's ``datasets``.
        epoch: int64 ``[n]``, the pass over the dataset, from 0.
        shard: int32 ``[n]``, index into the dataset's shards.
        row: int64 ``[n]``, row within the shard.
    """

    dataset: NDArray[np.int32]
    epoch: NDArray[np.int64]
    shard: NDArray[np.int32]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: slice | NDArray[np.intp]) -> Work:
        return Work(self.dataset[index], self.epoch[index], self.shard[index], self.row[index])

    @staticmethod
    def concatenate(parts: Sequence[Work]) -> Work:
        """Joins works, in order. ``parts`` must not be empty."""
        return Work(
            np.concatenate([part.dataset for part in parts]),
            np.concatenate([part.epoch for part in parts]),
            np.concatenate([part.shard for part in parts]),
            np.concatenate([part.row for part in parts]),
        )

"""Work: a small array of sample pointers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def by_shard(self) -> Iterator[InShard]:
        """The pointers of each shard by themselves."""
        if not len(self):
            return
        keys = (self.dataset.astype(np.int64) << 32) | self.shard
        if (keys == keys[0]).all():
            yield InShard(int(self.dataset[0]), int(self.shard[0]), self.row, np.arange(len(keys)))
            return
        order = np.argsort(keys, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            yield InShard(int(self.dataset[at[0]]), int(self.shard[at[0]]), self.row[at], at)

    @staticmethod
    def concatenate(parts: Sequence[Work]) -> Work:
        """Joins works, in order. ``parts`` must not be empty."""
        return Work(
            np.concatenate([part.dataset for part in parts]),
            np.concatenate([part.epoch for part in parts]),
            np.concatenate([part.shard for part in parts]),
            np.concatenate([part.row for part in parts]),
        )


@dataclass(frozen=True)
class InShard:
    """The pointers of a Work that lie in one shard.

    Attributes:
        dataset: index into the datasets.
        shard: index into its shards.
        rows: int64 ``[n]``.
        at: intp ``[n]``, where they stand in the Work, ascending.
    """

    dataset: int
    shard: int
    rows: NDArray[np.int64]
    at: NDArray[np.intp]

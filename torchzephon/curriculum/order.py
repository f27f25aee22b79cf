"""The order within each dataset: from the number of a sample to its epoch, shard and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchzephon.curriculum.keys import derive, mix, shuffled
from torchzephon.curriculum.permutation import permute
from torchzephon.curriculum.work import Work

BlockSize: TypeAlias = "int | Literal['auto', 'global'] | None"

_AUTO_SHARDS = 8


@dataclass(frozen=True)
class Shuffling:
    """How a dataset is shuffled.

    Attributes:
        shards: the shards come in another order each epoch.
        within_shard: so do the rows of a shard.
        block_size: consecutive stretches of this many samples of that order are shuffled in themselves, across
            shards. ``"auto"``: 8 times the largest shard of all datasets. ``"global"``, or anything that is not smaller
            than the dataset: one permutation of the whole dataset.
    """

    shards: bool = True
    within_shard: bool = False
    block_size: BlockSize = None


class _Keys(NamedTuple):
    """The keys of all datasets in one cycle, uint64 ``[K]`` each."""

    shards: NDArray[np.uint64]
    blocks: NDArray[np.uint64]
    rows: NDArray[np.uint64]


class _Traversal(NamedTuple):
    """The shards of one dataset in the order of one epoch, int64 ``[shards]`` each."""

    shard: NDArray[np.int64]
    end: NDArray[np.int64]


class Orders:
    """The orders of all datasets of a mixture: any position of any epoch in O(log shards).

    Nothing is kept but the shard sizes and, for a few epochs, the order of the shards.

    Args:
        names: of the ``K`` datasets: the keys of a dataset come from its name, so other datasets do not change it.
        shard_sizes: for each dataset int64 ``[shards]``, samples in each shard; 0 is allowed, no samples at all is not.
        seed: any integer.
        shuffling: options for all datasets.
        reshuffle: for each dataset, whether its epochs differ.

    Raises:
        ValueError: a dataset without samples.
    """

    def __init__(
        self,
        names: Sequence[str],
        shard_sizes: Sequence[NDArray[np.int64]],
        seed: int,
        shuffling: Shuffling,
        reshuffle: Sequence[bool],
    ) -> None:
        self._arguments = (names, shard_sizes, seed, shuffling, reshuffle)
        self._names = tuple(names)
        self._seed = seed
        self.sizes = np.array([int(sizes.sum()) for sizes in shard_sizes], np.int64)
        for name, size in zip(names, self.sizes.tolist(), strict=True):
            if not size:
                raise ValueError(f"dataset {name!r} has no samples; leave it out, or check its path and format")
        self._reshuffle = np.array(reshuffle, np.int64)
        self._block = self._block_sizes(shard_sizes, shuffling.block_size)
        whole = self._block == self.sizes
        shards = np.array([len(sizes) for sizes in shard_sizes], np.int64)
        # A permutation of the whole dataset has nothing left to shuffle before it.
        self._shuffle_shards = (shards > 1) & ~whole & shuffling.shards
        self._shuffle_rows = ~whole & shuffling.within_shard
        # All shards of all datasets in one row; a dataset's part starts at _first_shard, its samples at _first_sample.
        self._counts = np.concatenate(shard_sizes).astype(np.int64)
        self._ends = np.cumsum(self._counts)
        self._first_shard = np.cumsum(shards) - shards
        self._first_sample = np.cumsum(self.sizes) - self.sizes
        self._keys = lru_cache(maxsize=4)(self._make_keys)
        self._traversal = lru_cache(maxsize=16 + 4 * len(shards))(self._make_traversal)

    def __reduce__(self) -> tuple[Any, ...]:
        return Orders, self._arguments

    def locate(self, dataset: NDArray[np.int32], n: NDArray[np.int64], cycle: int) -> Work:
        """The pointers of samples, numbered through all epochs of their datasets.

        Args:
            dataset: int32 ``[m]``.
            n: int64 ``[m]``.
            cycle: every cycle has another order.
        """
        keys = self._keys(cycle)
        size = self.sizes[dataset]
        epoch = n // size
        position = n - epoch * size
        version = epoch * self._reshuffle[dataset]
        position = self._shuffle_blocks(dataset, version, position, keys.blocks)
        shard, row = self._find(dataset, version, position, cycle)
        if self._shuffle_rows.any():
            chosen = np.flatnonzero(self._shuffle_rows[dataset])
            where = dataset[chosen]
            key = mix(mix(keys.rows[where], version[chosen]), shard[chosen])
            row[chosen] = permute(row[chosen], self._counts[self._first_shard[where] + shard[chosen]], key)
        return Work(dataset, epoch, shard.astype(np.int32), row)

    def _shuffle_blocks(
        self, dataset: NDArray[np.int32], version: NDArray[np.int64], position: NDArray[np.int64], keys: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Positions of an epoch -> positions of its traversal of the shards."""
        if not self._block.any():
            return position
        block_size = self._block[dataset]
        block = position // block_size
        start = block * block_size
        key = mix(mix(keys[dataset], version), block)
        return start + permute(position - start, np.minimum(block_size, self.sizes[dataset] - start), key)

    def _find(
        self, dataset: NDArray[np.int32], version: NDArray[np.int64], position: NDArray[np.int64], cycle: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the traversal -> shard and row, int64 ``[m]`` each."""
        shard, row = np.empty_like(position), np.empty_like(position)
        moved = self._shuffle_shards[dataset]
        chosen = np.flatnonzero(~moved)
        if len(chosen):
            number = position[chosen] + self._first_sample[dataset[chosen]]
            place = np.searchsorted(self._ends, number, side="right")
            shard[chosen] = place - self._first_shard[dataset[chosen]]
            row[chosen] = number - self._ends[place] + self._counts[place]
        # Each epoch of each dataset has an order of its own, to be searched alone.
        turn = np.where(moved, version * len(self._names) + dataset, -1)
        for group in sorted(set(turn[moved].tolist())):  # np.unique would import numpy.ma: 50 ms
            chosen = np.flatnonzero(turn == group)
            which = group % len(self._names)
            traversal = self._traversal(cycle, which, group // len(self._names))
            place = np.searchsorted(traversal.end, position[chosen], side="right")
            shard[chosen] = traversal.shard[place]
            row[chosen] = (
                position[chosen] - traversal.end[place] + self._counts[self._first_shard[which] + shard[chosen]]
            )
        return shard, row

    def _make_traversal(self, cycle: int, dataset: int, version: int) -> _Traversal:
        first = self._first_shard[dataset]
        stop = self._first_shard[dataset + 1] if dataset + 1 < len(self._names) else len(self._counts)
        shard = shuffled(int(stop - first), derive(int(self._keys(cycle).shards[dataset]), version))
        return _Traversal(shard, np.cumsum(self._counts[first + shard]))

    def _make_keys(self, cycle: int) -> _Keys:
        made = [
            np.array([derive(self._seed, cycle, kind, name) for name in self._names], np.uint64)
            for kind in _Keys._fields
        ]
        return _Keys(*made)

    def _block_sizes(self, shard_sizes: Sequence[NDArray[np.int64]], block_size: BlockSize) -> NDArray[np.int64]:
        if block_size is None or block_size == 1:
            return np.zeros_like(self.sizes)
        if block_size == "global":
            return self.sizes
        if block_size == "auto":
            block_size = _AUTO_SHARDS * max(int(sizes.max()) for sizes in shard_sizes)
        return np.minimum(self.sizes, block_size)

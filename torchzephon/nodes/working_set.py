"""The working set: what the lanes of a process hold decoded at once, and a warning where memory is too small for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np

from torchzephon.data.formats.base import DecodesParts
from torchzephon.data.pool import Pool
from torchzephon.data.sizes import format_bytes
from torchzephon.data.storage.store import Store
from torchzephon.nodes.work_source import WorkSource

logger = logging.getLogger(__name__)

_MOST_LANES = 256
_BEGINNING = 4  # lanes; thousands of them must not keep the first batch waiting


class DecodesAhead(Protocol):
    """Reads a lane's samples."""

    def decode_ahead(self) -> None:
        """Has what is read next decoded in the background."""
        ...


class WorkingSet:
    """The lanes that read through one pool, and whether it is large enough for them.

    Args:
        memory_bytes: the pool's bound.

    Attributes:
        decodes_ahead: whether lanes hold decoded parts, and there is room for the next ones besides.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lanes: set[int] = set()
        self._beginning: dict[int, ref[DecodesAhead]] = {}  # by id, in the order of their turns
        self._checked = False
        self.decodes_ahead = False

    def join(self, lane: int, reader: DecodesAhead) -> None:
        """Says that a lane of this process is about to begin, at the beginning or where a state was taken."""
        self._lanes.add(lane)
        self._beginning[id(reader)] = ref(reader)

    def begin(self, reader: DecodesAhead, source: WorkSource, stores: Sequence[Store], pool: Pool) -> None:
        """To be called whenever a reader reads: has decoded what the next ones that are to begin read first.

        Else each would wait for its own when its turn comes, with one core busy.
        """
        if not self._beginning:
            return
        self._check(source, stores, pool)
        self._beginning.pop(id(reader), None)
        left = _BEGINNING
        for key in list(self._beginning):
            found = self._beginning.pop(key, None)  # several threads may be here
            other = None if found is None else found()
            if other is None:  # it is gone
                continue
            if self.decodes_ahead:
                other.decode_ahead()
            left -= 1
            if not left:
                break

    def _check(self, source: WorkSource, stores: Sequence[Store], pool: Pool) -> None:
        """Warns, once, when the shards that the lanes begin in do not fit into memory decoded.

        Lanes stay close to each other, so where they begin is what they hold later too, but for its edges.
        """
        if self._checked:
            return
        self._checked = True
        shards = _first_shards(source, sorted(self._lanes))
        sizes = [_decoded_bytes(source, stores, pool, dataset, which) for dataset, which in shards.items()]
        total = sum(sizes)
        self.decodes_ahead = 0 < 2 * total <= self._memory_bytes
        if total > self._memory_bytes:
            logger.warning(
                "%d lanes read from %d shards at once, about %s decoded, but Reader(memory=...) is %s: row groups will "
                "be decoded again and again. Give it about %s; or make the work source's chunk_size or "
                "shuffle_block_size smaller; or write the data with smaller row groups",
                len(self._lanes),
                sum(map(len, shards.values())),
                format_bytes(total),
                format_bytes(self._memory_bytes),
                format_bytes(total * 5 // 4),
            )


_SETS: WeakKeyDictionary[Pool, WorkingSet] = WeakKeyDictionary()


def working_set_of(pool: Pool) -> WorkingSet:
    """The working set of the lanes that share a pool."""
    return _SETS.setdefault(pool, WorkingSet(pool.memory_bytes))


def _first_shards(source: WorkSource, lanes: Sequence[int]) -> dict[int, list[int]]:
    """Dataset -> its shards that the first blocks of lanes lie in."""
    found: set[tuple[int, int]] = set()
    num_lanes = source.num_lanes or 1
    lanes = [lane for lane in lanes if lane < num_lanes]  # the others are of other loaders
    for lane in lanes[:: 1 + len(lanes) // _MOST_LANES]:
        work = source.pointers(lane, num_lanes, source.cycle, 0, source.block_size)
        found.update(zip(work.dataset.tolist(), work.shard.tolist(), strict=True))
    return {
        dataset: [shard for of, shard in sorted(found) if of == dataset] for dataset in sorted({of for of, _ in found})
    }


def _decoded_bytes(source: WorkSource, stores: Sequence[Store], pool: Pool, index: int, which: Sequence[int]) -> int:
    """About how many bytes shards take decoded, judged by one of them: there may be thousands, far away."""
    dataset = source.datasets[index]
    if not isinstance(dataset.format, DecodesParts):
        return 0
    shards = [dataset.shards[shard] for shard in which]
    decoded = dataset.format.decoded_bytes(shards[0], dataset.columns, stores[index], pool)
    sizes = np.array([shard.num_bytes for shard in shards]) * (decoded / max(1, shards[0].num_bytes))
    return int((sizes + np.minimum(sizes, dataset.format.decoding_bytes)).sum())

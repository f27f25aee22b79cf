"""The deal: which picks of the curriculum each lane gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchzephon.curriculum.keys import derive, mix
from torchzephon.curriculum.permutation import permute

_LARGEST_CHUNK = 1024
_GROUPS_PER_PASS = 8


def default_chunk_size(picks_per_pass: int, num_lanes: int) -> int:
    """A chunk size with which a pass over the data takes at least eight groups, as far as there is data for it.

    Small data must reach every lane, and the lanes must be in the same epoch; but large chunks read better.
    """
    return min(_LARGEST_CHUNK, max(1, picks_per_pass // (_GROUPS_PER_PASS * num_lanes)))


class Windows(NamedTuple):
    """Stretches of picks: int64 ``[W]`` each, starts ascending."""

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Deal:
    """How the picks are dealt to the lanes: in groups of one chunk for each lane.

    Which lane gets which chunk of a group is a keyed permutation, so that the mixture's rhythm cannot line up with
    the lanes. What is left at the end of a finite curriculum is a group of smaller chunks, as equal as can be: in the
    end no two lanes differ by more than one sample.

    Attributes:
        total: picks of all lanes, None if there is no end.
        num_lanes: lanes.
        chunk_size: picks in a chunk.
        seed: any integer.
        cycle: every cycle has other permutations.
    """

    total: int | None
    num_lanes: int
    chunk_size: int
    seed: int
    cycle: int

    @property
    def full_groups(self) -> int | None:
        """Groups in which every lane gets ``chunk_size`` picks, None if there is no end of them."""
        return None if self.total is None else self.total // (self.num_lanes * self.chunk_size)

    def samples(self, lane: int) -> int | None:
        """How many picks a lane gets in the whole curriculum, None if there is no end."""
        full = self.full_groups
        return None if full is None else full * self.chunk_size + int(self._chunks(lane, full, full + 1).counts[0])

    def windows(self, lane: int, start: int, stop: int) -> Windows:
        """The picks of a lane's samples ``[start, stop)``, fewer at the end of a finite curriculum."""
        first, last = start // self.chunk_size, -(-stop // self.chunk_size)
        full = self.full_groups
        chunks = self._chunks(lane, first, last if full is None else min(last, full + 1))
        # The samples of the lane that are in each chunk, and what lies inside [start, stop) of them.
        number: NDArray[np.int64] = np.arange(first, first + len(chunks.starts), dtype=np.int64) * self.chunk_size
        begin: NDArray[np.int64] = np.maximum(number, start)
        end = np.minimum(number + chunks.counts, stop)
        counts = np.maximum(0, end - begin)
        return Windows(chunks.starts + (begin - number), counts)

    def _chunks(self, lane: int, first: int, last: int) -> Windows:
        """The chunks of a lane in the groups ``[first, last)``, at most one of them beyond the full groups."""
        group = np.arange(first, max(first, last), dtype=np.int64)
        key = np.full(len(group), derive(self.seed, self.cycle, "deal"), np.uint64)
        place = permute(np.full_like(group, lane), np.full_like(group, self.num_lanes), mix(key, group))
        size = self.num_lanes * self.chunk_size
        starts = group * size + place * self.chunk_size
        counts = np.full_like(group, self.chunk_size)
        full = self.full_groups
        if self.total is not None and full is not None and last > full >= first:
            rest = self.total - full * size
            begin, end = (i * rest // self.num_lanes for i in (int(place[-1]), int(place[-1]) + 1))
            starts[-1] = full * size + begin
            counts[-1] = end - begin
        return Windows(starts, counts)

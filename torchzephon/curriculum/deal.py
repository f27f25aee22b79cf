"""The deal: which picks of the curriculum each lane gets."""

from __future__ import annotations

from dataclasses import dataclass

from torchzephon.curriculum.keys import derive, shuffled_cached

_LARGEST_CHUNK = 1024
_GROUPS_PER_PASS = 8


def default_chunk_size(picks_per_pass: int, num_lanes: int) -> int:
    """A chunk size with which a pass over the data takes at least eight groups, as far as there is data for it.

    Small data must reach every lane, and lanes must be in the same epoch; large chunks read better.
    """
    return min(_LARGEST_CHUNK, max(1, picks_per_pass // (_GROUPS_PER_PASS * num_lanes)))


@dataclass(frozen=True)
class Deal:
    """How the picks are dealt to the lanes, in groups of one chunk for each lane.

    Which lane gets which chunk of a group is a keyed permutation, so that the mixture's rhythm cannot line up with
    the lanes. The last, incomplete group of a finite curriculum is cut into equal chunks: no two lanes differ by
    more than one sample in the end.

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

    def chunk(self, lane: int, group: int) -> range:
        """The picks that a lane gets in a group; empty after the end."""
        place = int(shuffled_cached(self.num_lanes, derive(self.seed, self.cycle, "deal", group))[lane])
        start = group * self.num_lanes * self.chunk_size
        full = self.full_groups
        if full is None or self.total is None or group < full:
            return range(start + place * self.chunk_size, start + (place + 1) * self.chunk_size)
        rest = self.total - start if group == full else 0
        return range(start + place * rest // self.num_lanes, start + (place + 1) * rest // self.num_lanes)

    def samples(self, lane: int) -> int | None:
        """How many picks a lane gets in the whole curriculum, None if there is no end."""
        full = self.full_groups
        return None if full is None else full * self.chunk_size + len(self.chunk(lane, full))

    def spans(self, lane: int, start: int, stop: int) -> list[range]:
        """The picks of a lane's samples ``[start, stop)``, fewer at the end of a finite curriculum."""
        end = self.samples(lane)
        if end is not None:
            stop = min(stop, end)
        spans = []
        while start < stop:
            group, offset = divmod(start, self.chunk_size)
            chunk = self.chunk(lane, group)
            spans.append(chunk[offset : offset + stop - start])
            start += len(spans[-1])
        return spans

"""A curriculum of one's own: one pure function says which samples a lane reads."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

import torchzephon as tz

from show.corpus import small_data


class OneAfterAnother(tz.WorkSource):
    """All of the first dataset, then all of the next: sample by sample to the lanes in turn."""

    def __init__(self, datasets: Sequence[tz.Dataset]) -> None:
        super().__init__(datasets)
        shards = [(d, s, shard.num_samples) for d, data in enumerate(datasets) for s, shard in enumerate(data.shards)]
        self.dataset, self.shard, self.size = np.array(shards).T
        self.end = self.size.cumsum()
        self.total = int(self.end[-1])

    def pointers(self, lane: int, num_lanes: int, cycle: int, start: int, stop: int) -> tz.Work:
        """The samples ``[start, stop)`` of a lane."""
        number = np.arange(start, stop) * num_lanes + lane  # of the samples in the whole curriculum
        number = number[number < self.total]
        at = np.searchsorted(self.end, number, side="right")  # which shard of all
        row = number - (self.end[at] - self.size[at])
        epoch = np.full(len(row), cycle)
        return tz.Work(self.dataset[at].astype(np.int32), epoch, self.shard[at].astype(np.int32), row)


corpus, _ = small_data()
datasets = [tz.Dataset(name, f"{corpus}/{name}") for name in ("web", "code")]


def read(rank: int, ranks: int) -> list[str]:
    """The beginnings of all samples of a rank's lanes."""
    lanes = tz.Lanes(tz.Reader(OneAfterAnother(datasets)), num_lanes=4, dp=(rank, ranks), end="ragged")
    return [sample["text"][:40] for block in lanes for sample in block]


alone = read(0, 1)
together = [text for rank in range(4) for text in read(rank, 4)]
assert sorted(alone) == sorted(together)
print(len(alone), "samples, the same on 1 rank and on 4; lane 0 begins with")
for sample in islice(tz.Reader(OneAfterAnother(datasets)), 1):
    for text in islice(sample, 3):
        print("   ", repr(text["text"][:60]))

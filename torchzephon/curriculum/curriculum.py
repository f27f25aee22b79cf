"""The curriculum: a pure function from a lane and a position to sample pointers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.curriculum.deal import Deal, default_chunk_size
from torchzephon.curriculum.mixture import Mixture, integer_weights
from torchzephon.curriculum.order import Orders, Shuffling
from torchzephon.curriculum.stopping import Stopping
from torchzephon.curriculum.work import Work


class Curriculum:
    """What to train on, for all lanes. Immutable but for bounded caches: shared by lanes and threads.

    Args:
        names: of the ``K`` datasets.
        shard_sizes: for each dataset int64 ``[shards]``, samples in each shard.
        weights: for each dataset, finite and > 0; None: in proportion to the numbers of samples.
        seed: any integer.
        shuffling: how each dataset is shuffled.
        reshuffle: for each dataset, whether its epochs differ.
        stopping: when it ends.

    Attributes:
        mixture: which dataset gives which pick.
        sizes: samples of each dataset.
        total: picks until the end, None if there is none.
        picks_per_pass: picks until every dataset was read once, or until the end if that comes first.
    """

    def __init__(
        self,
        names: Sequence[str],
        shard_sizes: Sequence[NDArray[np.int64]],
        weights: Sequence[float] | None,
        seed: int,
        shuffling: Shuffling,
        reshuffle: Sequence[bool],
        stopping: Stopping,
    ) -> None:
        self._arguments = (names, shard_sizes, weights, seed, shuffling, reshuffle, stopping)
        self._seed = seed
        self._orders = Orders(names, shard_sizes, seed, shuffling, reshuffle)
        self.names = tuple(names)
        self.sizes: list[int] = self._orders.sizes.tolist()
        self.mixture = Mixture.of(integer_weights(self.sizes if weights is None else weights))
        self.total = stopping.total(self.mixture, self.sizes)
        one_pass = Stopping(1, (None,) * len(self.sizes)).total(self.mixture, self.sizes)
        self.picks_per_pass = min(picks for picks in (one_pass, self.total) if picks is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Curriculum:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Curriculum, self._arguments

    def deal(self, num_lanes: int, chunk_size: int | None, cycle: int) -> Deal:
        """How the picks are dealt to the lanes in a cycle; ``chunk_size=None`` chooses one from the sizes."""
        if chunk_size is None:
            chunk_size = default_chunk_size(self.picks_per_pass, num_lanes)
        return Deal(self.total, num_lanes, chunk_size, self._seed, cycle)

    def work(self, deal: Deal, lane: int, start: int, stop: int) -> Work:
        """The pointers of a lane's samples ``[start, stop)``, fewer at the end of a finite curriculum."""
        windows = deal.windows(lane, start, stop)
        picks = self.mixture.picks(windows.starts, windows.counts)
        return self._orders.locate(picks.dataset, picks.number, deal.cycle)

    def samples_per_dataset(self) -> list[int] | None:
        """How many samples each dataset gives until the end, None if there is none."""
        return None if self.total is None else self.mixture.counts(self.total)

    def planned_epochs(self) -> list[float]:
        """How often each dataset is read until the end, ``inf`` if there is none."""
        samples = self.samples_per_dataset()
        if samples is None:
            return [math.inf] * len(self.sizes)
        return [count / size for count, size in zip(samples, self.sizes, strict=True)]

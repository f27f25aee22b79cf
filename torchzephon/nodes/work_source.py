"""WorkSource: the lane-aware leaf of a graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torchdata.nodes import BaseNode

from torchzephon.curriculum.checks import check_int
from torchzephon.curriculum.work import Work
from torchzephon.data.dataset import Dataset
from torchzephon.errors import StateError
from torchzephon.nodes.graph import Estimate

logger = logging.getLogger(__name__)

_FIRST_WARNING = 1_000_000
_FIRST_SIZE = 16
_FEWEST, _MOST = 16, 256  # samples in a block where nothing else is asked for
_MOST_HELD = 8192  # samples in one block of every lane


class WorkSource(BaseNode[Work]):
    """Base class for curricula: a leaf that yields the :class:`Work` of one lane, pointers without any I/O.

    A curriculum of one's own is one pure function, :meth:`pointers`: the samples ``[start, stop)`` of a lane. All
    else (the state, cycles, block sizes, errors) is done here. A curriculum that reads one dataset front to back,
    sample by sample to the lanes in turn::

        class InTurn(WorkSource):
            def __init__(self, dataset, **options):
                super().__init__([dataset], **options)
                self.total = dataset.num_samples
                self.ends = np.cumsum([shard.num_samples for shard in dataset.shards])

            def pointers(self, lane, num_lanes, cycle, start, stop):
                number = np.arange(start, stop) * num_lanes + lane
                number = number[number < self.total]
                shard = np.searchsorted(self.ends, number, side="right")
                row = number - np.where(shard > 0, self.ends[shard - 1], 0)
                zeros = np.zeros(len(row), np.int64)
                return Work(zeros.astype(np.int32), zeros, shard.astype(np.int32), row)

    A source that was not bound to a lane is lane 0 of 1. Its state is the cycle and the position, two integers.

    Args:
        datasets: what ``Work.dataset`` points into; names must differ.
        block_size: most pointers in a Work, and so most samples in a block; it never changes the data. None: as
            many as take a quarter of ``block_bytes``, 256 at most, fewer with very many lanes, 16 at least.
        block_bytes: the reader cuts a block that grows beyond this many bytes.

    Attributes:
        datasets: as given.
        block_size: most pointers in a Work.
        block_bytes: as given.
        total: samples of all lanes in one cycle; None (the default) if there is no end, or it is not known.
        is_finite: whether a cycle ends. True unless a subclass says otherwise.
        lane: the lane that this source is bound to, None before :meth:`bind_lane`.
        num_lanes: of how many, None before :meth:`bind_lane`.
        cycle: the run through the curriculum that it is in, from 0; each may have another order.
        position: samples that this lane has handed out in this cycle.
        last: the Work handed out last, None at the beginning: for messages.
    """

    CYCLE_KEY = "cycle"
    POSITION_KEY = "position"

    total: int | None = None
    is_finite: bool = True

    def __init__(
        self, datasets: Sequence[Dataset], *, block_size: int | None = None, block_bytes: int = 4 * 2**20
    ) -> None:
        super().__init__()
        self.datasets = _checked_datasets(datasets)
        if block_size is not None:
            check_int("block_size", block_size, at_least=1)
        check_int("block_bytes", block_bytes, at_least=1)
        self._block_size = block_size
        self.block_bytes = block_bytes
        self.lane: int | None = None
        self.num_lanes: int | None = None
        self.cycle = 0
        self.position = 0
        self.last: Work | None = None
        self._undelivered = 0
        self._warn_at = _FIRST_WARNING
        self._next_size = _FIRST_SIZE  # of the next Work

    def pointers(self, lane: int, num_lanes: int, cycle: int, start: int, stop: int) -> Work:
        """The samples ``[start, stop)`` of a lane in a cycle, fewer (or none) at the end of the curriculum.

        It must depend on nothing but its arguments and what the source was made with, and the Works of all lanes
        must not overlap. ``stop - start`` is at most ``block_size``.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement pointers()")

    @property
    def block_size(self) -> int:
        """Most pointers in a Work. Large samples come in small blocks, and very many lanes share what they hold."""
        if self._block_size is not None:
            return self._block_size
        fitting = self.block_bytes // (4 * max(1, self._sample_bytes))
        return max(_FEWEST, min(_MOST, fitting, _MOST_HELD // (self.num_lanes or 1)))

    @functools.cached_property
    def _sample_bytes(self) -> int:
        """Mean bytes of a sample on storage."""
        samples = sum(dataset.num_samples for dataset in self.datasets)
        return sum(dataset.num_bytes for dataset in self.datasets) // max(1, samples)

    def begin_small(self) -> None:
        """After this reset, lets the Works grow from few pointers to ``block_size``: what is first is wanted at once.

        To be called by a node that does not care how samples are cut into blocks, if none before it does.
        """
        self._next_size = min(_FIRST_SIZE, self.block_size)

    def upcoming(self) -> Work:
        """What :meth:`next` will give, without going there; empty at the end."""
        start, stop = self.position, self.position + self._next_size
        return self.pointers(self.lane or 0, self.num_lanes or 1, self.cycle, start, stop)

    def bind_lane(self, lane: int, num_lanes: int) -> None:
        """Makes this source that of one lane; called once for each lane, before it is iterated.

        Raises:
            ValueError: there is no such lane, or the source was iterated already.
        """
        check_int("num_lanes", num_lanes, at_least=1)
        check_int("lane", lane, at_least=0)
        if lane >= num_lanes:
            raise ValueError(f"lane must be below num_lanes={num_lanes}, got {lane}")
        if self.last is not None:
            raise ValueError(
                "this graph was iterated already, its nodes may hold samples; build a fresh graph for the lanes"
            )
        self.lane, self.num_lanes = lane, num_lanes

    def start_cycle(self, cycle: int) -> None:
        """Chooses the cycle that the next ``reset(None)`` begins."""
        check_int("cycle", cycle, at_least=0)
        self.cycle = cycle

    def note_delivery(self) -> None:
        """Says that the lane has yielded something: a source that goes on without is worth a warning."""
        self._undelivered = 0
        self._warn_at = _FIRST_WARNING

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the beginning of the cycle, or to the cycle and position of a state.

        Raises:
            StateError: the state is not one of a work source.
        """
        super().reset(initial_state)
        self.position = 0
        self.last = None
        self._next_size = self.block_size
        self.note_delivery()
        if initial_state is not None:
            self.cycle, self.position = self._checked_state(initial_state)

    def next(self) -> Work:
        """The next pointers, 1 to ``block_size``."""
        work = self.upcoming()
        if not len(work):
            raise StopIteration
        self.position += len(work)
        self._next_size = min(2 * self._next_size, self.block_size)
        self.last = work
        self._undelivered += len(work)
        if self._undelivered >= self._warn_at:
            self._warn_at *= 2
            logger.warning(
                "lane %d has read %d samples and yielded nothing: are all of them filtered out, empty or skipped? "
                "Last read: %s",
                self.lane or 0,
                self._undelivered,
                self.describe_work(work),
            )
        return work

    def get_state(self) -> dict[str, Any]:
        """The cycle and the position."""
        return {self.CYCLE_KEY: self.cycle, self.POSITION_KEY: self.position}

    def describe(self) -> Mapping[str, Any]:
        """The datasets: names, numbers of shards and samples, digests. A subclass adds its own arguments."""
        return {"datasets": [_describe_dataset(dataset) for dataset in self.datasets]}

    def describe_work(self, work: Work) -> str:
        """Where the samples of a Work lie, for messages: the first and the last one."""
        if not len(work):
            return "nothing"
        (*first, first_row), (*last, last_row) = (
            (int(work.dataset[i]), int(work.shard[i]), int(work.row[i])) for i in (0, -1)
        )
        place = self.datasets[first[0]].locate(first[1], first_row)
        if first != last:
            return f"{place} to {self.datasets[last[0]].locate(last[1], last_row)}"
        return place if len(work) == 1 else f"{place} to row {last_row}"

    def estimate(self, source: Estimate | None) -> Estimate | None:  # noqa: ARG002
        """What all lanes yield in one cycle, None if it has no end or the end is not known."""
        if self.total is None:
            return None
        mean = sum(dataset.num_bytes for dataset in self.datasets) / sum(d.num_samples for d in self.datasets)
        return Estimate(self.total / self.block_size, self.total, self.total * mean, 0)

    def _checked_state(self, state: Any) -> tuple[int, int]:
        if not isinstance(state, Mapping) or set(state) != {self.CYCLE_KEY, self.POSITION_KEY}:
            raise StateError(
                f"the state of {type(self).__name__} must have the keys {self.CYCLE_KEY!r} and {self.POSITION_KEY!r}"
                f" and no others, got {state!r:.200}; was it saved by another graph?"
            )
        values = state[self.CYCLE_KEY], state[self.POSITION_KEY]
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise StateError(f"the state of {type(self).__name__} must hold integers >= 0, got {state!r:.200}")
        return values


def _checked_datasets(datasets: Sequence[Dataset]) -> tuple[Dataset, ...]:
    if isinstance(datasets, Dataset):
        raise TypeError(f"datasets must be a list; write [{datasets.name}] for one dataset")
    checked = tuple(datasets)
    if not checked:
        raise ValueError("datasets is empty; give at least one Dataset")
    for dataset in checked:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"datasets must be a list of Dataset, got {type(dataset).__name__} in it")
    names = [dataset.name for dataset in checked]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"dataset names must differ, weights and states go by them; repeated: {repeated}")
    return checked


def _describe_dataset(dataset: Dataset) -> dict[str, Any]:
    description = {
        "name": dataset.name,
        "shards": len(dataset.shards),
        "samples": dataset.num_samples,
        "digest": dataset.digest,
    }
    return description if dataset.columns is None else {**description, "columns": dataset.columns}

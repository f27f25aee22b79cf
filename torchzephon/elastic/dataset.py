"""Lanes as an IterableDataset, for a plain StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchzephon.elastic.lanes import Lanes
from torchzephon.elastic.state import parse_state
from torchzephon.elastic.template import refuse_processes
from torchzephon.elastic.wrappers import find_state


class LanesDataset(IterableDataset[Any]):
    """What :func:`as_dataset` gives."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self.lanes = lanes
        # Workers come and go with each iteration, and none knows of the others: of each, the cycles it has completed.
        self._completed = torch.zeros(lanes.num_lanes, dtype=torch.int64).share_memory_()

    def __iter__(self) -> LanesIterator:
        worker = get_worker_info()
        if worker is None:
            return LanesIterator(self.lanes)
        refuse_processes(self.lanes.template)
        check_workers(worker.num_workers, self.lanes.places)
        # A loop that was left early is replayed, by all workers alike.
        cycle = int(self._completed[: min(worker.num_workers, len(self.lanes.owned))].min())
        lanes = self.lanes.share(worker.id, worker.num_workers, cycle)
        return LanesIterator(lanes, self._completed[worker.id : worker.id + 1])


class LanesIterator(Iterator[Any]):
    """The stateful iterator that a StatefulDataLoader asks for its state.

    Args:
        lanes: the lanes of this process.
        completed: in a worker, where it writes down how many cycles it has completed.
    """

    def __init__(self, lanes: Lanes, completed: torch.Tensor | None = None) -> None:
        self._lanes = lanes
        self._completed = completed
        lanes.reset(None)

    def __next__(self) -> Any:
        try:
            return next(self._lanes)
        except StopIteration:
            self._note(self._lanes.cycle + 1)
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state of the lanes of this process."""
        return self._lanes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where ``state`` says."""
        self._lanes.reset(dict(find_state(state)))
        now = parse_state(self._lanes.state_dict())
        self._note(self._lanes.cycle + all(now.lane(lane).dry for lane in now.lanes))

    def _note(self, completed: int) -> None:
        if self._completed is not None:
            self._completed.fill_(completed)


def check_workers(num_workers: int, places: int) -> None:
    """Checks that a StatefulDataLoader keeps the order of a rank's lanes.

    Args:
        num_workers: of the loader.
        places: batches that the rank yields in a round.

    Raises:
        ValueError: when it does not, with the way out.
    """
    if num_workers and places % num_workers:
        raise ValueError(
            f"a StatefulDataLoader takes one batch of each of its num_workers={num_workers} workers in turn, which "
            f"mixes up the order of this rank's {places} lanes: use a number of workers that divides {places}, or "
            "ElasticDataLoader, which takes any"
        )


def as_dataset(lanes: Lanes) -> IterableDataset[Any]:
    """Makes an ``IterableDataset`` of lanes, for ``StatefulDataLoader(as_dataset(lanes), batch_size=None)``.

    The batches and their order are those of ``Lanes``. With workers, each takes every n-th lane, so ``num_workers``
    must divide the lanes of a rank. The states of all ranks merge with ``merge_states``; ``fit_state`` writes the
    merged state in the form that a StatefulDataLoader with a given number of workers loads. Where finite data must
    end on several ranks together, use ``ElasticDataLoader``: workers cannot agree on it. Nor can they on blank
    batches at the end: each of them stops when its own lanes are dry.

    Args:
        lanes: a :class:`~torchzephon.Lanes`.

    Raises:
        TypeError: when ``lanes`` is something else.
        ValueError: from the loader, when ``num_workers`` does not divide the lanes of the rank, or with several
            workers where finite data ends with ``end="drop"``.
    """
    if not isinstance(lanes, Lanes):
        raise TypeError(f"as_dataset needs a Lanes, got {type(lanes).__name__}")
    return LanesDataset(lanes)

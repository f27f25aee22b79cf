"""Lanes as an IterableDataset, for a plain StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from torchzephon.elastic.lanes import Lanes
from torchzephon.elastic.template import refuse_processes
from torchzephon.elastic.wrappers import find_state


class LanesDataset(IterableDataset[Any]):
    """What :func:`as_dataset` gives."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self.lanes = lanes

    def __iter__(self) -> LanesIterator:
        worker = get_worker_info()
        if worker is None:
            return LanesIterator(self.lanes)
        refuse_processes(self.lanes.template)
        places = self.lanes.assignment.most_owned if self.lanes.pads else len(self.lanes.owned)
        if places % worker.num_workers:
            raise ValueError(
                f"a StatefulDataLoader takes one batch of each of its num_workers={worker.num_workers} workers in "
                f"turn, which mixes up the order of this rank's {places} lanes: use a number of workers that divides "
                f"{places}, or ElasticDataLoader, which takes any"
            )
        return LanesIterator(self.lanes.share(worker.id, worker.num_workers))


class LanesIterator(Iterator[Any]):
    """The stateful iterator that a StatefulDataLoader asks for its state."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        lanes.reset(None)

    def __next__(self) -> Any:
        return next(self._lanes)

    def state_dict(self) -> dict[str, Any]:
        """The state of the lanes of this process."""
        return self._lanes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where ``state`` says."""
        self._lanes.reset(dict(find_state(state)))


def as_dataset(lanes: Lanes) -> IterableDataset[Any]:
    """Makes an ``IterableDataset`` of lanes, for ``StatefulDataLoader(as_dataset(lanes), batch_size=None)``.

    The batches and their order are those of ``Lanes``. With workers, each takes every n-th lane, so ``num_workers``
    must divide the lanes of a rank. The states of all ranks merge with ``merge_states``; ``fit_state`` writes the
    merged state in the form that a StatefulDataLoader with a given number of workers loads. Where finite data must
    end on several ranks together, use ``ElasticDataLoader``: workers cannot agree on it.

    Args:
        lanes: a :class:`~torchzephon.Lanes`.

    Raises:
        TypeError: when ``lanes`` is something else.
        ValueError: from the loader, when ``num_workers`` does not divide the lanes of the rank.
    """
    if not isinstance(lanes, Lanes):
        raise TypeError(f"as_dataset needs a Lanes, got {type(lanes).__name__}")
    return LanesDataset(lanes)

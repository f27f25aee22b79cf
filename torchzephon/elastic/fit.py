"""Writing a merged state in the form that a plain StatefulDataLoader loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchzephon.elastic.assignment import DataParallel, assign_lanes
from torchzephon.elastic.state import parse_state
from torchzephon.elastic.wrappers import find_state


def fit_state(state: Mapping[str, Any], *, num_workers: int, dp: DataParallel = None) -> dict[str, Any]:
    """Writes a merged state for ``StatefulDataLoader(as_dataset(lanes), batch_size=None, num_workers=num_workers)``.

    A StatefulDataLoader refuses a state of another number of workers; this makes one of the right form.

    Args:
        state: from :func:`~torchzephon.merge_states`, holding at least the lanes of this rank.
        num_workers: of the loader that will load it.
        dp: this data-parallel rank, as for :class:`~torchzephon.Lanes`.

    Raises:
        StateError: when ``state`` is not a state.
        ValueError: when ``num_workers`` is negative, or there are more ranks than lanes.
    """
    if num_workers < 0:
        raise ValueError(f"num_workers must be at least 0, got {num_workers}")
    inner = dict(find_state(state))
    parsed = parse_state(inner)
    fetcher = {"dataset_iter_state": inner, "fetcher_ended": False}
    counters = {
        "_index_sampler_state": None,
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": 0,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
    }
    if num_workers == 0:
        return {
            **counters,
            "_num_yielded": 0,
            "fetcher_state": fetcher,
            "dataset_state": None,
            "_iterator_finished": False,
        }
    owned = assign_lanes(parsed.num_lanes, dp).owned
    given = {lane: parsed.lane(lane).given for lane in owned if lane in parsed.lanes}
    turn = sum(count > parsed.round for count in given.values())  # places of the current round that have had theirs
    workers = {
        f"worker_{worker}": {"worker_id": worker, "fetcher_state": fetcher, "dataset_state": None}
        for worker in range(num_workers)
    }
    return {
        "_snapshot": {
            "_snapshot_step": 0,
            "_last_yielded_worker_id": (turn - 1) % num_workers,
            "_main_snapshot": {**counters, "_num_workers": num_workers, "_base_seed": 0},
            "_worker_snapshots": workers,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": False,
    }

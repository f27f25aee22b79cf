"""Writing a merged state in the form that a plain StatefulDataLoader loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torchzephon.elastic.assignment import DataParallel, assign_lanes
from torchzephon.elastic.dataset import check_workers
from torchzephon.elastic.state import State, parse_state
from torchzephon.elastic.wrappers import find_state
from torchzephon.errors import StateError


def fit_state(
    state: Mapping[str, Any],
    *,
    num_workers: int,
    dp: DataParallel = None,
    uneven: Literal["pad", "allow", "error"] = "pad",
) -> dict[str, Any]:
    """Writes a merged state for ``StatefulDataLoader(as_dataset(lanes), batch_size=None, num_workers=num_workers)``.

    A StatefulDataLoader refuses a state of another number of workers; this makes one of the right form.

    Args:
        state: from :func:`~torchzephon.merge_states`, holding at least the lanes of this rank.
        num_workers: of the loader that will load it; it must divide the batches that the rank yields in a round.
        dp: this data-parallel rank, as for :class:`~torchzephon.Lanes`.
        uneven: as for :class:`~torchzephon.Lanes`.

    Raises:
        StateError: when ``state`` is not a state, lacks lanes of this rank, or was saved in the middle of a round in
            which workers taking turns would not keep the order of the lanes.
        ValueError: when ``num_workers`` is negative or does not divide the lanes, or there are more ranks than lanes.
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int):
        raise TypeError(f"num_workers must be an int, got {num_workers!r}")
    if num_workers < 0:
        raise ValueError(f"num_workers must be at least 0, got {num_workers}")
    inner = dict(find_state(state))
    parsed = parse_state(inner)
    assignment = assign_lanes(parsed.num_lanes, dp)
    pads = uneven == "pad" and assignment.size > 1
    check_workers(num_workers, assignment.most_owned if pads else len(assignment.owned))
    if missing := [lane for lane in assignment.owned if lane not in parsed.lanes]:
        raise StateError(f"the state lacks lanes {missing} of this rank: merge all ranks' states first")
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
    # A rank that pads begins the round anew, with blank batches in the places that have had theirs.
    turn = 0 if pads else _find_turn(parsed, assignment.owned)
    if turn is None and num_workers > 1:
        raise StateError(
            "the state was saved in the middle of a round, with lanes ahead that are not the first ones: workers "
            "taking turns would not keep the order. Save between rounds, or use ElasticDataLoader or one worker"
        )
    workers = {
        f"worker_{worker}": {"worker_id": worker, "fetcher_state": fetcher, "dataset_state": None}
        for worker in range(num_workers)
    }
    return {
        "_snapshot": {
            "_snapshot_step": 0,
            "_last_yielded_worker_id": ((turn or 0) - 1) % num_workers,
            "_main_snapshot": {**counters, "_num_workers": num_workers, "_base_seed": 0},
            "_worker_snapshots": workers,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": False,
    }


def _find_turn(state: State, owned: range) -> int | None:
    """How many of the lanes have had their batch of the current round; None unless those are the first ones."""
    ahead = [state.lane(lane).given - state.round for lane in owned]
    turn = sum(ahead)
    return turn if ahead == [1] * turn + [0] * (len(owned) - turn) else None

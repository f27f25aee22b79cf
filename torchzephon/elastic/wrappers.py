"""Our states inside the states of what is wrapped around Lanes: Loader, stock nodes, StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchzephon.elastic.state import is_state
from torchzephon.errors import StateError

# Counters of wrappers that stand for items beyond the snapshot, which nobody could give back after a merge.
_COUNTERS = {
    "steps_since_snapshot": "a Prefetcher, PinMemory or ParallelMapper with snapshot_frequency other than 1",
    "_steps_since_snapshot": "a StatefulDataLoader with snapshot_every_n_steps other than 1",
    "batch_idx": "an Unbatcher above Lanes",
}
_DATALOADER_KEYS = {"_snapshot", "fetcher_state"}


def find_states(value: Any) -> list[Mapping[str, Any]]:
    """Our state dicts in ``value``: itself, or inside what wraps it.

    Raises:
        StateError: when a wrapper counts items of its own, which cannot be merged.
    """
    if is_state(value):
        return [value]
    if isinstance(value, Mapping):
        for key, who in _COUNTERS.items():
            if value.get(key):
                raise StateError(
                    f"the state was saved {value[key]} items after its snapshot ({key}, by {who}); "
                    "such a counter cannot be merged or moved to other ranks: take it out, or use ElasticDataLoader"
                )
        return [state for part in value.values() for state in find_states(part)]
    return []


def find_state(value: Any) -> Mapping[str, Any]:
    """The one state dict of ours in ``value``.

    Raises:
        StateError: when there is none, or several.
    """
    states = find_states(value)
    if len(states) != 1:
        found, way_out = (
            (f"the states of {len(states)} workers", "merge_states() joins them")
            if states
            else ("no state of torchzephon", "pass what state_dict() gave, or a dict that holds it")
        )
        keys = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise StateError(f"expected one state of torchzephon, found {found} (keys: {keys}): {way_out}")
    return states[0]


def find_rewrap(value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """How a merged state is put into the wrapper that the saved one had, so that it loads where that came from.

    Loader's and stock nodes' wrappers are kept. A StatefulDataLoader's is not, since its form depends on the number
    of workers: ``fit_state`` writes it.
    """
    if is_state(value) or _is_dataloader(value):
        return lambda state: state
    for key, part in value.items():
        if find_states(part):
            inner = find_rewrap(part)
            return lambda state: {**value, key: inner(state)}
    return lambda state: state


def _is_dataloader(value: Mapping[str, Any]) -> bool:
    return bool(_DATALOADER_KEYS & set(value))

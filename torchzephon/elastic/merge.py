"""Joining the states of several ranks into one that loads anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import torch.distributed as dist

from torchzephon.elastic.description import check_accept, refuse_other_graph
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.state import Graph, State, parse_state
from torchzephon.elastic.wrappers import find_rewrap, find_states
from torchzephon.errors import StateError


class HasState(Protocol):
    """A loader or node with a ``state_dict``."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state."""
        ...


def merge_states(
    states: Iterable[Mapping[str, Any]],
    *,
    accept: Collection[str] = (),
    allow_skew: bool = False,
    partial: bool = False,
) -> dict[str, Any]:
    """Joins the states of all ranks (or workers) into one that can be loaded on any number of them.

    Args:
        states: state dicts of ``Loader``, ``StatefulDataLoader``, ``ElasticDataLoader`` or ``Lanes``, in any order.
            Equal duplicates, as tensor-parallel peers save them, are fine.
        accept: names of graph arguments (such as ``{"tokenizer", "seq_len"}``) that may differ when the merged state
            is loaded; the difference is recorded in the state's history then. Arguments of the curriculum, such as
            ``seed`` or ``weights``, cannot be accepted: positions would mean other samples.
        allow_skew: accept lanes that are more than one round apart (ranks that saved at different steps).
        partial: accept that lanes are missing.

    Returns:
        The merged state, in the wrapper of the first one (``Loader``'s, for example).

    Raises:
        StateError: when the states do not belong together or lanes are missing, naming lanes and differences.
        ValueError: when ``accept`` names no argument of the graph.
        TypeError: when ``accept`` is a single string, or ``states`` a single state.
    """
    if isinstance(accept, str):
        raise TypeError(f"accept must be a collection of argument names, got the string {accept!r}: use {{{accept!r}}}")
    if isinstance(states, Mapping):
        raise TypeError("merge_states needs a list of states, got one: write merge_states([state])")
    states = list(states)
    parsed = [parse_state(inner) for state in states for inner in _inner_states(state)]
    if not parsed:
        raise StateError("there are no states to merge")
    first = parsed[0]
    check_accept(accept, first.graph.nodes)
    lanes: dict[int, str] = {}
    for state in parsed:
        if state.num_lanes != first.num_lanes:
            raise StateError(
                f"the states have {first.num_lanes} and {state.num_lanes} lanes: they are of different runs"
            )
        refuse_other_graph(first.graph.nodes, state.graph.nodes)
        for lane, text in state.lanes.items():
            if lanes.setdefault(lane, text) != text:
                here, there = LaneState.from_json(lanes[lane], lane), state.lane(lane)
                raise StateError(
                    f"lane {lane} is at two positions: cycle {here.cycle} batch {here.given}, and cycle {there.cycle} "
                    f"batch {there.given}; the states were saved at different steps or by different runs"
                )
    merged = State(
        Graph(first.graph.nodes, sorted({*first.graph.accept, *accept}), first.graph.history),
        _check_lanes(lanes, first.num_lanes, allow_skew=allow_skew, partial=partial),
        first.num_lanes,
        lanes,
    )
    return find_rewrap(states[0])(merged.to_dict())


def gather_state(loader: HasState, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """The merged state of all ranks, on every rank, through torch.distributed: save it on one of them.

    Args:
        loader: each rank's loader or node; all ranks must call this at the same step.
        group: the ranks to ask; None: all.

    Raises:
        StateError: see :func:`merge_states`.
    """
    state = loader.state_dict()
    if not (dist.is_available() and dist.is_initialized()):
        return merge_states([state])
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, state, group=group)
    return merge_states(states)


def _inner_states(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inner = find_states(state)
    return inner or [state]  # parse_state says what is wrong with it


def _check_lanes(lanes: dict[int, str], num_lanes: int, *, allow_skew: bool, partial: bool) -> int:
    """Raises when the lanes do not make a whole; returns the rounds that all of them have given."""
    if len(lanes) < num_lanes and not partial:
        missing = list(itertools.islice((lane for lane in range(num_lanes) if lane not in lanes), 20))
        raise StateError(
            f"{num_lanes - len(lanes)} of {num_lanes} lanes are missing ({', '.join(map(str, missing))}"
            f"{', ...' if num_lanes - len(lanes) > len(missing) else ''}): the states of some ranks are not there. "
            "Merge all ranks' states, or pass partial=True to join what there is"
        )
    states = {lane: LaneState.from_json(text, lane) for lane, text in lanes.items()}
    if len(cycles := {state.cycle for state in states.values()}) > 1:
        raise StateError(
            f"the lanes are in different cycles {sorted(cycles)}: the states were saved at different times"
        )
    given = {lane: state.given for lane, state in states.items() if not state.dry}
    if not given:
        return max((state.given for state in states.values()), default=0)
    if max(given.values()) - min(given.values()) > 1 and not allow_skew:
        last, first = min(given, key=given.__getitem__), max(given, key=given.__getitem__)
        raise StateError(
            f"lane {first} has given {given[first]} batches, lane {last} only {given[last]}: the ranks saved at "
            "different steps. Merge states of the same step, or pass allow_skew=True to continue each lane where it is"
        )
    return min(given.values())

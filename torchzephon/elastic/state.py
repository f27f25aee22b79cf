"""The state dict: building it, reading it, and finding it inside the state of what is wrapped around."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from torchzephon.elastic.description import NodeDescription
from torchzephon.elastic.lane_state import LaneState
from torchzephon.errors import StateError

VERSION = 1
VERSION_KEY = "torchzephon"
GRAPH_KEY = "graph"
ROUND_KEY = "round"
NUM_LANES_KEY = "num_lanes"
LANES_KEY = "lanes"
_LANE_NAME = re.compile(r"[0-9]{5}|[1-9][0-9]{5,17}")  # f"{lane:05d}" and nothing else
_KEYS = {VERSION_KEY, GRAPH_KEY, ROUND_KEY, NUM_LANES_KEY, LANES_KEY}


@dataclass(frozen=True)
class Graph:
    """What a state is checked against.

    Attributes:
        nodes: the description of the graph, from the leaf to the root.
        accept: argument names that may differ when the state is loaded next.
        history: differences accepted so far: ``{"round": r, "changes": [sentences]}`` each.
    """

    nodes: list[NodeDescription]
    accept: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        """One string, so that the key structure of a state never varies with the graph."""
        fields: dict[str, Any] = {"nodes": self.nodes}
        if self.accept:
            fields["accept"] = self.accept
        if self.history:
            fields["history"] = self.history
        return orjson.dumps(fields).decode()

    @classmethod
    def from_json(cls, text: Any) -> Graph:
        """Raises StateError when it is not a graph description."""
        try:
            fields = orjson.loads(text)
            graph = cls(fields.pop("nodes"), **fields)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the graph description in the state is damaged ({error!r})") from error
        if not graph._is_sound():
            raise StateError("the graph description in the state is damaged")
        return graph

    def _is_sound(self) -> bool:
        """Whether the fields are of their types."""
        if not all(isinstance(field, list) for field in (self.nodes, self.accept, self.history)):
            return False
        return (
            all(isinstance(node, dict) and isinstance(node.get("node"), str) for node in self.nodes)
            and all(isinstance(name, str) for name in self.accept)
            and all(isinstance(entry, dict) for entry in self.history)
        )


@dataclass(frozen=True)
class State:
    """A parsed state dict.

    Attributes:
        graph: the graph that saved it.
        round: rounds that all its lanes have given.
        num_lanes: lanes of the whole run, V.
        lanes: lane -> its JSON, for the lanes that the state holds.
    """

    graph: Graph
    round: int
    num_lanes: int
    lanes: dict[int, str]

    def to_dict(self) -> dict[str, Any]:
        """The state dict: JSON types only, one string leaf a lane."""
        return {
            VERSION_KEY: VERSION,
            GRAPH_KEY: self.graph.to_json(),
            ROUND_KEY: self.round,
            NUM_LANES_KEY: self.num_lanes,
            LANES_KEY: {f"{lane:05d}": self.lanes[lane] for lane in sorted(self.lanes)},
        }

    def lane(self, index: int) -> LaneState:
        """The state of one lane, which the state must hold."""
        return LaneState.from_json(self.lanes[index], index)


def parse_state(state: Any) -> State:
    """Reads a state dict.

    Raises:
        StateError: when it is foreign, truncated, damaged, or of a newer version.
    """
    if not isinstance(state, Mapping) or VERSION_KEY not in state:
        keys = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"this is not a state of torchzephon: found {keys}, expected the keys {sorted(_KEYS)}; pass what "
            "state_dict() gave"
        )
    version = state[VERSION_KEY]
    if type(version) is not int or version < 1:
        raise StateError(f"the state is damaged: its version is {version!r}")
    if version > VERSION:
        raise StateError(
            f"the state has version {version}, this torchzephon reads versions up to {VERSION}: install a newer one"
        )
    if missing := _KEYS - set(state):
        raise StateError(f"the state is truncated: it lacks {sorted(missing)}")
    round_index, num_lanes, lanes = state[ROUND_KEY], state[NUM_LANES_KEY], state[LANES_KEY]
    if type(round_index) is not int or round_index < 0 or type(num_lanes) is not int or num_lanes < 1:
        raise StateError(f"the state is damaged: round {round_index!r}, num_lanes {num_lanes!r}")
    if not isinstance(lanes, Mapping):
        raise StateError(f"the state is damaged: its lanes are {type(lanes).__name__}")
    parsed: dict[int, str] = {}
    for name, text in lanes.items():
        if not (isinstance(name, str) and _LANE_NAME.fullmatch(name) and int(name) < num_lanes):
            raise StateError(f"the state is damaged: lane {name!r:.40} of {num_lanes}")
        if not isinstance(text, str):
            raise StateError(f"the state is damaged: lane {name} is {type(text).__name__}, expected a string")
        parsed[int(name)] = text
    return State(Graph.from_json(state[GRAPH_KEY]), round_index, num_lanes, parsed)


def is_state(value: Any) -> bool:
    """Whether a value is one of our state dicts (as opposed to something wrapped around one)."""
    return isinstance(value, Mapping) and VERSION_KEY in value

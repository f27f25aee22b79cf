"""The state of one lane: one JSON string, the leaf of every state dict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from torchzephon.errors import StateError


@dataclass(frozen=True)
class LaneState:
    """Where a lane stands.

    Attributes:
        given: batches that the lane has given in this cycle.
        cycle: the run through the curriculum that it is in, from 0.
        node: the state dict of the lane's root node; None at the start of a cycle, and for a dry lane.
        dry: whether the lane has come to its end in this cycle.
    """

    given: int = 0
    cycle: int = 0
    node: dict[str, Any] | None = None
    dry: bool = False

    def to_json(self) -> str:
        """The lane's leaf in a state dict.

        Raises:
            TypeError: when a node's state holds something that JSON cannot express.
        """
        fields: dict[str, Any] = {"given": self.given, "cycle": self.cycle}
        if self.dry:
            fields["dry"] = True
        elif self.node is not None:
            fields["node"] = self.node
        # numpy integers are an easy slip in a node of one's own, and harmless
        return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY).decode()

    @classmethod
    def from_json(cls, text: Any, lane: int) -> LaneState:
        """Reads a lane's leaf.

        Raises:
            StateError: when it is not one, naming the lane.
        """
        try:
            fields = orjson.loads(text)
            state = cls(fields["given"], fields["cycle"], fields.get("node"), fields.get("dry", False))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the state of lane {lane} is damaged ({error!r}): {str(text)[:80]!r}") from error
        counts = all(type(n) is int and n >= 0 for n in (state.given, state.cycle))
        if not counts or not (state.node is None or isinstance(state.node, dict)) or not isinstance(state.dry, bool):
            raise StateError(f"the state of lane {lane} is damaged: {str(text)[:80]!r}")
        return state

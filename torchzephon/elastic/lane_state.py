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
            TypeError: when the root node's state is no dict, or holds something that JSON cannot express.
        """
        if self.given and not self.dry and not isinstance(self.node, dict):
            raise TypeError(f"state_dict() of the root node must be a dict, got {type(self.node).__name__}")
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
            state = cls(fields.pop("given"), fields.pop("cycle"), **fields)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the state of lane {lane} is damaged ({error!r}): {str(text)[:80]!r}") from error
        if not state._is_sound():
            raise StateError(f"the state of lane {lane} is damaged: {str(text)[:80]!r}")
        return state

    def _is_sound(self) -> bool:
        """Whether the fields are of their types, and fit each other: without a node's state, nothing was given."""
        if not all(type(count) is int and count >= 0 for count in (self.given, self.cycle)):
            return False
        if self.dry is not False:
            return self.dry is True and self.node is None
        return isinstance(self.node, dict) if self.given else self.node is None

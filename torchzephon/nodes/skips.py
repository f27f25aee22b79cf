"""Skips: the samples that a node passes over because they are bad."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torchdata.nodes import BaseNode

from torchzephon.errors import StateError
from torchzephon.nodes.graph import walk

logger = logging.getLogger(__name__)


class Skips:
    """Counts the samples that a lane has passed over in this cycle, and names some of them: the 1st, 2nd, 4th, 8th...

    Args:
        source: what the node reads from, and so in the end the lane.

    Attributes:
        count: how many.
    """

    KEY = "skipped"

    def __init__(self, source: BaseNode[Any]) -> None:
        self._source = source
        self.count = 0

    def reset(self, state: Mapping[str, Any] | None) -> None:
        """To what a node's state says: None for the beginning.

        Raises:
            StateError: for a count that is none.
        """
        count = 0 if state is None else state.get(self.KEY, 0)
        if type(count) is not int or count < 0:
            raise StateError(f"the number of skipped samples must be an integer >= 0, got {count!r:.200}")
        self.count = count

    def add(self, failure: str) -> None:
        """One more. ``failure``: which sample, and what is wrong with it."""
        self.count += 1
        if self.count & (self.count - 1) == 0:  # a power of two
            *_, leaf = walk(self._source)
            lane, cycle = getattr(leaf, "lane", None) or 0, getattr(leaf, "cycle", 0)
            logger.warning("skipped sample number %d of lane %d in cycle %d: %s", self.count, lane, cycle, failure)

    def state(self) -> dict[str, int]:
        """For the node's state: nothing where nothing was skipped."""
        return {self.KEY: self.count} if self.count else {}

"""Where the lanes' batches come from: made in this process, or by worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torchzephon.elastic.lane import Item
from torchzephon.elastic.lane_state import LaneState


class Supply(Protocol):
    """Makes the batches of a set of lanes, each lane's in order.

    A lane's batches are counted from the start of its cycle: ``index`` 0 is the first.
    """

    def start(self, states: Mapping[int, LaneState]) -> None:
        """Begins: each lane (number -> where it stands). Stops what was running before."""
        ...

    def has(self, lane: int, index: int) -> bool:
        """Whether the lane has batch ``index``, or an error up to it; False when it is dry before. Waits to know."""
        ...

    def fails(self, lane: int, index: int) -> bool:
        """Whether the lane is known to have an error up to batch ``index``, in its place or before. Does not wait."""
        ...

    def take(self, lane: int) -> Item:
        """The lane's next batch, of which :meth:`has` said that there is one (before a restart, perhaps).

        Raises:
            LaneError: when there is an error instead.
            StateError: when the lane cannot go on from its state.
        """
        ...

    def close(self, patience: float | None = None) -> None:
        """Stops threads and processes. :meth:`start` may follow.

        Args:
            patience: seconds to wait at most for each thread; None for all the time that it takes.
        """
        ...

"""Signals that ask for a checkpoint.

A handler only sets a flag, because it may run in the middle of anything. The flag is looked at between two steps, where
model, optimizer and loader agree, and the ranks exchange it, so that all of them save after the same step.
"""

from __future__ import annotations

import signal
from types import FrameType

NOTHING, SAVE, SAVE_AND_STOP = 0, 1, 2


class SaveRequests:
    """SIGUSR1 asks for a checkpoint, SIGTERM for a checkpoint and the end of the process."""

    def __init__(self) -> None:
        self._received: list[int] = []
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGUSR1, self._handle)

    def take(self) -> int:
        """The strongest request since the last call. One that comes in meanwhile is kept for the next call."""
        strongest = NOTHING
        while self._received:
            strongest = max(strongest, self._received.pop())
        return strongest

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self._received.append(SAVE_AND_STOP if signum == signal.SIGTERM else SAVE)

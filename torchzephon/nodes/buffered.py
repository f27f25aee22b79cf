"""BufferedNode: the anchor mechanism for nodes that hold samples back."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from torchzephon.data.block import as_block

T = TypeVar("T")


class BufferedNode(BaseNode[T]):
    """Base class for nodes that pull samples, hold some of them back, and must not store them in their state.

    The node remembers, for each block that it still holds a sample of, the state its source had *before* that
    block was pulled: the anchor. Its own state is the oldest anchor and a count of the samples that were already
    used since; on load the source is reset to the anchor and the used samples are skipped. Counts are in samples
    of the source, never in rows of a block, so block size may change between save and load. Grain's packing
    iterators use the same idea (state of the parent and a row number).

    A subclass calls :meth:`pull` for the next block, :meth:`release` when the oldest held samples are no longer
    needed, and puts :meth:`anchor` into its state and :meth:`rewind` into its reset::

        def reset(self, initial_state=None):
            super().reset(initial_state)
            self.rewind(initial_state)      # initial_state may be None
            ...

        def get_state(self):
            return {**self.anchor(), "more": ...}

    Args:
        source: yields Blocks, sample dicts, or lists of sample dicts.
    """

    SOURCE_KEY = "source"
    USED_KEY = "used"

    def __init__(self, source: BaseNode[Any]) -> None:
        super().__init__()
        self.source = source
        self._anchors: deque[tuple[int, dict[str, Any]]] = deque()  # (ordinal of its first sample, source state)
        self._pulled = 0
        self._released = 0
        self._skip = 0

    def convert(self, item: Any) -> Any:
        """What :meth:`pull` gives for an item of the source: something with a length that can be sliced."""
        return as_block(item)

    def rewind(self, state: dict[str, Any] | None) -> None:
        """Resets the source, to the anchor in ``state`` or to its beginning; to be called from ``reset``."""
        self._anchors.clear()
        self._pulled = self._released = 0
        self._skip = 0 if state is None else state[self.USED_KEY]
        self.source.reset(None if state is None else state[self.SOURCE_KEY])

    def pull(self) -> Any:
        """The next block that holds a sample not yet used. Raises StopIteration at the end of the source."""
        while True:
            anchor = self.source.state_dict()
            block = self.convert(next(self.source))
            if not len(block):
                continue
            self._anchors.append((self._pulled, anchor))
            self._pulled += len(block)
            if self._skip:
                skipped = min(self._skip, len(block))
                self._skip -= skipped
                self.release(skipped)
                block = block[skipped:]
            if len(block):
                return block

    def release(self, count: int) -> None:
        """Says that the ``count`` oldest samples still held are held no longer."""
        self._released += count
        while len(self._anchors) > 1 and self._anchors[1][0] <= self._released:
            self._anchors.popleft()
        if self._released == self._pulled:
            self._anchors.clear()

    def anchor(self) -> dict[str, Any]:
        """The part of the state that :meth:`rewind` reads."""
        if not self._anchors:
            return {self.SOURCE_KEY: self.source.state_dict(), self.USED_KEY: self._skip}
        first, state = self._anchors[0]
        return {self.SOURCE_KEY: state, self.USED_KEY: self._released - first + self._skip}

"""BufferedNode: the anchor mechanism for nodes that hold samples back."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from torchzephon.data.block import Block, as_block
from torchzephon.errors import StateError
from torchzephon.nodes.graph import check_state

T = TypeVar("T")


class BufferedNode(BaseNode[T]):
    """Base class for nodes that pull samples and hold some of them back, without storing them in their state.

    The node remembers, for each block of which it still holds a sample, the state its source had *before* that block
    was pulled: the anchor. Its own state is the oldest anchor and how many samples from there on are used up; on load
    the source is reset to the anchor and those samples are skipped. Counts are in samples of the source, never in
    rows of a block, so block size may change between save and load. (Grain's packing iterators work alike: their
    state is the parent's state and a row number.)

    A subclass gets samples with :meth:`take` or :meth:`pull`, and says with :meth:`release` that it is done with the
    oldest ones. :meth:`reset` and :meth:`get_state` do the rest; a subclass adds what it must know besides. After a
    reset with a state it is given the samples again from the oldest that it had not released. So that block size
    never changes the data, let nothing depend on where :meth:`pull` cuts the stream.

    A node that sorts every hundred samples by length::

        class SortByLength(BufferedNode[dict[str, Any]]):
            def reset(self, initial_state=None):
                super().reset(initial_state)
                self.window = []
                self.at = 0 if initial_state is None else initial_state["at"]

            def next(self):
                if not self.window:
                    self.window = sorted(self.take(100), key=lambda sample: len(sample["text"]))
                    if not self.window:
                        raise StopIteration
                sample = self.window[self.at]
                self.at += 1
                if self.at == len(self.window):
                    self.release(self.at)
                    self.window, self.at = [], 0
                return sample

            def get_state(self):
                return {**super().get_state(), "at": self.at}

    Args:
        source: yields Blocks, sample dicts, or lists of sample dicts.
    """

    SOURCE_KEY = "source"
    USED_KEY = "used"

    def __init__(self, source: BaseNode[Any]) -> None:
        super().__init__()
        if not isinstance(source, BaseNode):
            raise TypeError(f"{type(self).__name__}: source must be a torchdata node, got {type(source).__name__}")
        self.source = source
        self._clear()

    def _clear(self) -> None:
        self._anchors: deque[tuple[int, dict[str, Any]]] = deque()  # (ordinal of a block's first sample, source state)
        self._pulled = 0  # samples
        self._released = 0
        self._skip = 0  # samples after the loaded anchor that are used already
        self._back: deque[Block] = deque()  # pushed back
        self._ended = False

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Resets the source to the anchor in the state, or to its beginning."""
        super().reset(initial_state)
        self._clear()
        if initial_state is None:
            self.source.reset(None)
            return
        check_state(self, initial_state, self.USED_KEY)
        self._skip = initial_state[self.USED_KEY]
        self.source.reset(initial_state[self.SOURCE_KEY])

    def get_state(self) -> dict[str, Any]:
        """The anchor: the source's state before the oldest sample not released, and the released samples since."""
        first, state = self._anchors[0] if self._anchors else (self._pulled, self.source.state_dict())
        return {self.SOURCE_KEY: state, self.USED_KEY: self._released - first + self._skip}

    def pull(self) -> Block:
        """The next samples, at least one, as they come from the source.

        Raises:
            StopIteration: at the end of the source.
            StateError: if the source ends before all the samples that the loaded state has used.
        """
        if self._back:
            return self._back.popleft()
        while True:
            block = self._next_block()
            used = min(self._skip, len(block))
            self._skip -= used
            self.release(used)
            if used < len(block):
                return block[used:] if used else block

    def push_back(self, block: Block) -> None:
        """Gives back the last samples of the last :meth:`pull`: the next one gives them again.

        For samples that turn out to be bad: whoever asks again must get the error again, not the samples after them.
        """
        self._back.appendleft(block)

    def take(self, count: int) -> list[dict[str, Any]]:
        """The next ``count`` samples, fewer only at the end of the source."""
        blocks: list[Block] = []
        try:
            while count > 0:
                block = self.pull()
                if count < len(block):
                    self.push_back(block[count:])
                    block = block[:count]
                blocks.append(block)
                count -= len(block)
        except StopIteration:
            pass
        except Exception:
            for block in reversed(blocks):
                self.push_back(block)
            raise
        return [sample for block in blocks for sample in block]

    def release(self, count: int) -> None:
        """Says that the ``count`` oldest samples that were not released yet are not needed any more."""
        held = self._pulled - self._released
        if not 0 <= count <= held:
            raise ValueError(f"{type(self).__name__}: cannot release {count} samples: {held} are held")
        self._released += count
        while len(self._anchors) > 1 and self._anchors[1][0] <= self._released:
            self._anchors.popleft()
        if self._released == self._pulled:
            self._anchors.clear()

    def _next_block(self) -> Block:
        if self._ended:
            raise StopIteration
        anchor = self.source.state_dict()
        try:
            block = as_block(next(self.source))
        except StopIteration:
            self._ended = True
            if self._skip:
                raise StateError(
                    f"{type(self).__name__}: the source ended {self._skip} samples before the place that the state "
                    "was saved at: its data has changed"
                ) from None
            raise
        if len(block):
            self._anchors.append((self._pulled, anchor))
            self._pulled += len(block)
        return block

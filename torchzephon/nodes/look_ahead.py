"""Looking ahead: a node pulls a block before it is asked for it, and has work on it done in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torchdata.nodes import BaseNode

from torchzephon.curriculum.work import Work
from torchzephon.data.background import Task
from torchzephon.data.block import Block, as_block
from torchzephon.nodes.graph import walk
from torchzephon.nodes.work_source import WorkSource

T = TypeVar("T")


class LookAhead(Generic[T]):
    """A source's blocks, the next one pulled ahead of time.

    Nobody notices: until it is asked for, the block is not in the state, an error in it is not raised, and its samples
    are not what messages call the last that were read.

    Args:
        source: yields blocks, or what makes them.
    """

    def __init__(self, source: BaseNode[Any]) -> None:
        self._source = source
        *_, leaf = walk(source)
        self._leaf = leaf if isinstance(leaf, WorkSource) else None
        self._held: _Held[T] | None = None

    def clear(self) -> None:
        """Forgets what was pulled: to be called before the source is reset."""
        self._held = None

    def state(self) -> dict[str, Any]:
        """The source's state after the last block that was asked for."""
        return self._source.state_dict() if self._held is None else self._held.state

    def pull(self) -> Block | Task[T]:
        """The next block, or what was begun with it if it was pulled ahead of time.

        Raises:
            StopIteration: at the end of the source.
            Exception: what the source raised.
        """
        held, self._held = self._held, None
        if held is None:
            return as_block(next(self._source))
        if self._leaf is not None:
            self._leaf.last = held.last
        if isinstance(held.begun, Exception):
            raise held.begun
        return held.begun

    def look(self, begin: Callable[[Block], Task[T]]) -> None:
        """Pulls the block after, and begins what is to be done with it."""
        state = self._source.state_dict()
        last = None if self._leaf is None else self._leaf.last
        begun: Task[T] | Exception
        try:
            begun = begin(as_block(next(self._source)))
        except Exception as error:
            begun = error
        read = None if self._leaf is None else self._leaf.last
        if self._leaf is not None:
            self._leaf.last = last
        self._held = _Held(state, read, begun)


@dataclass(frozen=True)
class _Held(Generic[T]):
    """A block that was pulled before it was asked for.

    Attributes:
        state: the source's, before.
        last: what the leaf handed out last, after.
        begun: what was begun with the block, which is not held besides; or the error that came in its place.
    """

    state: dict[str, Any]
    last: Work | None
    begun: Task[T] | Exception

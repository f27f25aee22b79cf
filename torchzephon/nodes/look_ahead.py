"""Looking ahead: a node pulls a block before it is asked for it, and has work on it done in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from torchzephon.curriculum.work import Work
from torchzephon.data.background import Task
from torchzephon.data.block import Block, as_block
from torchzephon.data.ragged import Ragged
from torchzephon.nodes.graph import walk
from torchzephon.nodes.work_source import WorkSource


class LookAhead:
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
        self._held: _Held | None = None

    def clear(self) -> None:
        """Forgets what was pulled: to be called before the source is reset."""
        self._held = None

    def state(self) -> dict[str, Any]:
        """The source's state after the last block that was asked for."""
        return self._source.state_dict() if self._held is None else self._held.state

    def pull(self) -> tuple[Block, Task[Ragged] | None]:
        """The next block, and what was begun with it if it was pulled ahead of time.

        Raises:
            StopIteration: at the end of the source.
            Exception: what the source raised.
        """
        held, self._held = self._held, None
        if held is None:
            return as_block(next(self._source)), None
        if self._leaf is not None:
            self._leaf.last = held.last
        if isinstance(held.block, Exception):
            raise held.block
        return held.block, held.task

    def look(self, begin: Callable[[Block], Task[Ragged] | None]) -> None:
        """Pulls the block after, and begins what is to be done with it."""
        state = self._source.state_dict()
        last = None if self._leaf is None else self._leaf.last
        block: Block | Exception
        try:
            block = as_block(next(self._source))
        except Exception as error:
            block = error
        read = None if self._leaf is None else self._leaf.last
        if self._leaf is not None:
            self._leaf.last = last
        self._held = _Held(state, read, block, None if isinstance(block, Exception) else begin(block))


class _Held(NamedTuple):
    """A block that was pulled before it was asked for.

    Attributes:
        state: the source's, before.
        last: what the leaf handed out last, after.
        block: or the error.
        task: what was begun with it.
    """

    state: dict[str, Any]
    last: Work | None
    block: Block | Exception
    task: Task[Ragged] | None

"""Lane: one deep copy of the template graph, bound to one lane."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchdata.nodes import BaseNode

from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.template import find_leaf
from torchzephon.errors import LaneError, StateError
from torchzephon.nodes.graph import walk

_UNREADABLE = (StateError, LookupError, TypeError, AttributeError)  # what a damaged state comes to in a node's reset


class Item(NamedTuple):
    """What a lane yields: a batch, and the lane's state right after it (JSON)."""

    value: Any
    state: str


class Lane:
    """A virtual worker: an independent stream, the unit of state.

    Args:
        root: this lane's own graph.
        index: which lane it is.
        num_lanes: of how many.
    """

    def __init__(self, root: BaseNode[Any], index: int, num_lanes: int) -> None:
        self.index = index
        self.root = root
        self.queue: deque[Item] = deque()  # made, not yet taken
        self.made = 0  # batches made in this cycle, taken or not
        self.dry = False
        self.error: LaneError | StateError | None = None
        self.lock = threading.Lock()  # held by whoever makes a batch
        self._cycle = 0
        leaf = find_leaf(root)
        leaf.bind_lane(index, num_lanes)
        self._leaf = leaf

    @property
    def is_live(self) -> bool:
        """Whether there may be more batches."""
        return not self.dry and self.error is None

    def start(self, state: LaneState, *, same_order: bool) -> None:
        """Goes to where ``state`` says. ``same_order``: every cycle repeats the first one's order."""
        self.queue.clear()
        self.made = state.given
        self.dry = state.dry
        self.error = None
        self._cycle = state.cycle
        self._maker = self._make_all()
        if self.dry:
            return
        try:
            self._leaf.start_cycle(0 if same_order else state.cycle)
            self.root.reset(state.node)
        except Exception as error:
            is_damaged = state.node is not None and isinstance(error, _UNREADABLE)
            raise self._explain(error, "while it was reset", is_state=is_damaged) from error

    def make(self) -> None:
        """Makes the next item and queues it, or finds the lane dry, or keeps the error until its turn has come."""
        next(self._maker)

    def _make_all(self) -> Iterator[None]:
        # Nobody calls a generator that waits: the frames in an error's traceback do not hold those of the consumer,
        # who may leave the loop before the error's turn, and is to be rid of the iterator then.
        while True:
            self._make()
            yield

    def _make(self) -> None:
        try:
            value = next(self.root)
            self._leaf.note_delivery()
            state = LaneState(self.made + 1, self._cycle, self.root.state_dict()).to_json()
        except StopIteration:
            self.dry = True
        except Exception as error:
            self.error = self._explain(
                error, f"while it made batch {self.made}", is_state=isinstance(error, StateError)
            )
            self.error.__cause__ = error
        else:
            self.queue.append(Item(value, state))
            self.made += 1

    def _explain(self, error: Exception, when: str, *, is_state: bool) -> LaneError | StateError:
        node = _raising_node(error, self.root)
        last = self._leaf.last
        where = "" if last is None or not len(last) else f"; last read: {self._leaf.describe_work(last)}"
        kind = StateError if is_state else LaneError
        return kind(f"lane {self.index}, node {node}, {when}{where}: {type(error).__name__}: {error}")


def _raising_node(error: BaseException, root: BaseNode[Any]) -> str:
    """The innermost node in the error's traceback."""
    nodes = {id(node) for node in walk(root)}
    name = type(root).__name__
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if id(owner) in nodes:
            name = type(owner).__name__
        trace = trace.tb_next
    return name

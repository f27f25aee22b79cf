"""Pump: makes the lanes' batches in this process, inline or in threads that run ahead of the consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torchzephon.elastic.lane import Item, Lane
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.template import Root, dump_root, load_root, make_graph
from torchzephon.errors import LaneError

_MOST_AHEAD = 128  # batches; a rank with thousands of lanes must not hold `prefetch` whole rounds of them


class Pump:
    """The supply of this process.

    Lanes are made in the order in which they are consumed. Each thread owns every n-th lane, so that a lane never
    sees two threads, and a thread waits when its next batch lies further ahead than the bound.

    Args:
        root: the template graph, or a function that builds it.
        num_lanes: lanes of the whole run.
        num_threads: 0 makes a batch when it is asked for.
        rounds_ahead: rounds that threads may run ahead.
        same_order: every cycle repeats the first one's order.
    """

    def __init__(self, root: Root, num_lanes: int, *, num_threads: int, rounds_ahead: int, same_order: bool) -> None:
        self._root = root
        self._num_lanes = num_lanes
        self._num_threads = num_threads
        self._rounds_ahead = rounds_ahead
        self._same_order = same_order
        self._lanes: dict[int, Lane] = {}
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._waiting = 0  # threads, the consumer's included
        self._stopping = False
        self._taken = 0  # consumer's position, in batches of all lanes since start
        self._wanted = 0  # position up to which the consumer has asked, which may lie beyond the bound

    def __reduce__(self) -> tuple[Any, ...]:
        options = (self._num_lanes, self._num_threads, self._rounds_ahead, self._same_order)
        return _load_pump, (dump_root(self._root), *options)

    def start(self, states: Mapping[int, LaneState]) -> None:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        self.close()
        for index in states:
            if index not in self._lanes:
                self._lanes[index] = Lane(make_graph(self._root), index, self._num_lanes)
        for index, state in states.items():
            self._lanes[index].start(state, same_order=self._same_order)
        self._first_round = min((state.given for state in states.values() if not state.dry), default=0)
        self._order = {index: place for place, index in enumerate(states)}
        self._bound = max(self._rounds_ahead, min(self._rounds_ahead * len(states), _MOST_AHEAD))
        self._taken = self._wanted = 0
        self._stopping = False
        lanes = list(states)
        for number in range(min(self._num_threads, len(lanes))):
            thread = threading.Thread(
                target=self._run_ahead,
                args=([self._lanes[index] for index in lanes[number :: self._num_threads]],),
                name=f"torchzephon-lanes-{number}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def has(self, lane: int, index: int) -> bool:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        stream = self._lanes[lane]
        if not self._threads:
            while stream.made <= index and _is_live(stream):
                stream.make()
        elif stream.made <= index and _is_live(stream):
            self._await_round(index)
        if stream.made <= index and stream.error is not None:
            raise stream.error
        return stream.made > index

    def take(self, lane: int) -> Item:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        stream = self._lanes[lane]
        if not stream.queue:
            self.has(lane, stream.made)
        item = stream.queue.popleft()
        self._taken += 1
        if self._taken % max(1, self._bound // 2) == 0:  # a thread that is woken up for each batch is a slow one
            self._tell()
        return item

    def close(self) -> None:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        self._stopping = True
        self._tell()
        if threading.current_thread() not in self._threads:  # where the garbage collector may find the node
            for thread in self._threads:
                thread.join()
        self._threads.clear()

    def _place(self, lane: int, index: int) -> int:
        """Where a lane's batch stands in the order of consumption."""
        return (index - self._first_round) * len(self._order) + self._order[lane]

    def _await_round(self, index: int) -> None:
        """Waits for every lane's batch ``index``: a round is needed whole, and waking up for each batch is costly."""
        lanes = [self._lanes[lane] for lane in self._order]
        self._wanted = max(self._wanted, (index + 1 - self._first_round) * len(lanes))
        self._tell()
        self._wait_until(lambda: not any(lane.made <= index and _is_live(lane) for lane in lanes))

    def _await_room(self, place: int) -> bool:
        """Waits until a batch may be made; False when the thread is to stop."""

        def is_time() -> bool:
            return self._stopping or place < max(self._taken + self._bound, self._wanted)

        if not is_time():
            self._wait_until(is_time)
        return not self._stopping

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._waiting += 1  # before looking: whoever changes something after this look will tell
            try:
                while not condition():
                    self._changed.wait()
            finally:
                self._waiting -= 1

    def _tell(self) -> None:
        """Something has changed. Takes the lock only if somebody waits: fighting for it costs more than a batch."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def _run_ahead(self, lanes: list[Lane]) -> None:
        while live := [lane for lane in lanes if _is_live(lane)]:
            index = min(lane.made for lane in live)
            for lane in live:
                if lane.made > index:
                    continue
                if not self._await_room(self._place(lane.index, index)):
                    return
                try:
                    lane.make()
                except BaseException as error:  # such as SystemExit: the consumer must not wait forever
                    cause = f"{type(error).__name__}: {error}"
                    lane.error = LaneError(f"lane {lane.index}: its thread was stopped by {cause}")
            self._tell()


def _is_live(lane: Lane) -> bool:
    return not lane.dry and lane.error is None


def _load_pump(root: bytes, num_lanes: int, num_threads: int, rounds_ahead: int, same_order: bool) -> Pump:
    return Pump(load_root(root), num_lanes, num_threads=num_threads, rounds_ahead=rounds_ahead, same_order=same_order)

"""Pump: makes the lanes' batches in this process, in the consumer's thread or ahead of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torchzephon.elastic.lane import Item, Lane
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.template import Root, dump_root, load_root, make_graph
from torchzephon.errors import LaneError
from torchzephon.nodes.graph import Empty, Narrowable

_MOST_AHEAD = 128  # batches; a rank with thousands of lanes must not hold `prefetch` whole rounds of them
_AWAY_S = 0.001  # a consumer that has not asked for so long is busy with something else
_LONGEST_REST_S = 0.032  # of a thread whose consumer is never away: to wake up takes the interpreter from it
_FULL_S = 0.005  # between looks for room


class Pump:
    """The supply of this process.

    Whoever needs a batch makes it: the consumer, in its own thread. Threads run ahead only while the consumer is away,
    computing a training step. Two threads that copy arrays and fight for the interpreter are slower than one, so a
    consumer that waits for data loses nothing to them, and one that computes finds its next round ready.

    Each thread owns every n-th lane and makes its batches in the order in which they are consumed, until they lie
    further ahead than the bound.

    Args:
        root: the template graph, or a function that builds it.
        num_lanes: lanes of the whole run.
        num_threads: threads that run ahead; 0 for none.
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
        # Held while threads run: who gets it is to stop. Ctrl-C could leave a condition or an event locked.
        self._going = threading.Lock()
        self._stopping = True
        self._making = False  # the consumer makes a batch
        self._asked = 0  # times that the consumer asked for something
        self._taken = 0  # batches of all lanes that it took since start

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
        self._taken = 0
        self._going.acquire(blocking=False)
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

    def narrow(self, empty: Empty) -> set[str]:
        """Has batches made with int32 where they would have int64, for the trip from a worker.

        Args:
            empty: gives the memory that a batch is made in.

        Returns:
            The keys of what is to be widened again.
        """
        roots = [lane.root for lane in self._lanes.values()]
        return {name for root in roots if isinstance(root, Narrowable) for name in root.narrow(empty)}

    def has(self, lane: int, index: int) -> bool:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        self._asked += 1
        stream = self._lanes[lane]
        if stream.made <= index:
            self._making = True
            try:
                with stream.lock:  # a thread may be about to finish the very batch
                    while stream.made <= index and stream.is_live:
                        stream.make()
            finally:
                self._making = False
        return stream.made > index or stream.error is not None

    def fails(self, lane: int, index: int) -> bool:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        stream = self._lanes[lane]
        return stream.error is not None and stream.made <= index

    def take(self, lane: int) -> Item:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        stream = self._lanes[lane]
        if not stream.queue:
            self.has(lane, stream.made)
            if not stream.queue and stream.error is not None:
                raise stream.error
        self._asked += 1
        self._taken += 1
        return stream.queue.popleft()

    def close(self, patience: float | None = None) -> None:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        if not self._stopping:
            self._stopping = True
            self._going.release()
        if threading.current_thread() not in self._threads:  # where the garbage collector may find the node
            for thread in self._threads:
                if thread.is_alive():  # else it has ended, or its start was interrupted
                    thread.join(patience)
        self._threads.clear()

    def _run_ahead(self, lanes: Sequence[Lane]) -> None:
        seen, rest = -1, 0.0
        while not self._stopping and (live := [lane for lane in lanes if lane.is_live]):
            if self._making or self._asked != seen:
                self._pause(rest)
                rest = min(2 * rest + _AWAY_S, _LONGEST_REST_S)
                seen = self._asked
                self._pause(_AWAY_S)
                continue
            rest = 0.0
            if (lane := self._next(live)) is None:
                self._pause(_FULL_S)
            elif lane.lock.acquire(blocking=False):  # else the consumer is back
                try:
                    lane.make()
                except BaseException as error:  # such as SystemExit: the consumer must hear of it
                    cause = f"{type(error).__name__}: {error}"
                    lane.error = LaneError(f"lane {lane.index}: its thread was stopped by {cause}")
                finally:
                    lane.lock.release()

    def _next(self, live: Sequence[Lane]) -> Lane | None:
        """The lane whose next batch is wanted first, unless that lies too far ahead."""
        lane = min(live, key=lambda lane: lane.made)
        place = (lane.made - self._first_round) * len(self._order) + self._order[lane.index]
        return lane if place < self._taken + self._bound else None

    def _pause(self, seconds: float) -> None:
        if self._going.acquire(timeout=seconds):
            self._going.release()


def _load_pump(root: bytes, num_lanes: int, num_threads: int, rounds_ahead: int, same_order: bool) -> Pump:
    return Pump(load_root(root), num_lanes, num_threads=num_threads, rounds_ahead=rounds_ahead, same_order=same_order)

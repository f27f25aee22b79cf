"""WorkerSupply: the lanes' batches from the worker processes of a StatefulDataLoader."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from torchzephon.elastic.lane import Item
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.pump import Pump
from torchzephon.elastic.transport import Packed, Receiver, Sender
from torchzephon.errors import LaneError, StateError, WorkerError

_PREFETCH = 4  # rounds: with torch's 2, workers wait for a parent that is late for a moment
_DYING_S = 5
_OFTEN = {
    "SIGKILL": ", often the system running out of memory",
    "SIGBUS": ", often a full /dev/shm: give the container more (docker run --shm-size), or lower prefetch_factor",
}


@dataclass
class Share:
    """A worker's share of one round, the item of the StatefulDataLoader.

    Attributes:
        worker: which worker.
        lanes: the lanes that have a batch in this round.
        states: each one's state after it.
        batches: the batches.
        dry: lanes of the worker that came to their end.
        failed: lanes that have an error in place of a batch.
    """

    worker: int
    lanes: list[int]
    states: list[str]
    batches: Packed
    dry: list[int]
    failed: dict[int, LaneError | StateError]


class WorkerLanes(IterableDataset[Share]):
    """What runs in a worker: a contiguous run of the rank's lanes, one round an item.

    Args:
        pump: makes the batches; pickled or inherited before it was started.
        states: where the rank's lanes stand when the workers start.
        num_workers: how many will run it.

    Attributes:
        received: int64 ``[num_workers, 1]``, shared: items of each worker that the parent has unpacked.
    """

    def __init__(self, pump: Pump, states: Mapping[int, LaneState], num_workers: int) -> None:
        super().__init__()
        self.received = torch.zeros(num_workers, 1, dtype=torch.int64).share_memory_()
        self._sender: Sender | None = None
        self._pump = pump
        self._states = dict(states)
        # The loaded state is for the first iteration only; a persistent worker takes later cycles from here.
        self.next_cycle = torch.full((1,), -1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[Share]:
        worker = get_worker_info()
        assert worker is not None, "runs in worker processes only"
        owned = list(self._states)
        mine = _lanes_of(worker.id, worker.num_workers, owned)
        cycle = int(self.next_cycle)
        states = {lane: self._states[lane] if cycle < 0 else LaneState(cycle=cycle) for lane in mine}
        if self._sender is None:
            self._sender = Sender(self.received[worker.id])
        sender = self._sender
        pump = self._pump
        pump.start(states)
        sender.begin(widened=pump.narrow(sender.empty))
        given = {lane: state.given for lane, state in states.items()}
        waiting = set(mine)
        while waiting:
            current = min(given[lane] for lane in waiting)
            turn = [lane for lane in mine if lane in waiting and given[lane] == current]
            dry: list[int] = []
            items: dict[int, Item] = {}
            failed: dict[int, LaneError | StateError] = {}
            for lane in turn:
                try:
                    if pump.has(lane, current):
                        items[lane] = pump.take(lane)
                        given[lane] += 1
                    else:
                        dry.append(lane)
                except (LaneError, StateError) as error:
                    failed[lane] = error
            waiting.difference_update(dry, failed)
            packed = sender.pack([item.value for item in items.values()])
            yield Share(worker.id, list(items), [item.state for item in items.values()], packed, dry, failed)


class WorkerSupply:
    """The supply of worker processes; see :class:`~torchzephon.elastic.supply.Supply`.

    Args:
        pump: makes the batches in each worker, inline.
        num_workers: processes, at most one a lane.
        options: further arguments of ``StatefulDataLoader``.
    """

    def __init__(self, pump: Pump, num_workers: int, options: Mapping[str, Any]) -> None:
        self._pump = pump
        self._num_workers = num_workers
        self._options = {"prefetch_factor": _PREFETCH, **options}
        self._loader: StatefulDataLoader[Share] | None = None
        self._iterator: Any = None  # of the loader; it has the processes
        self._failed: dict[int, LaneError | StateError] = {}  # what came in place of a lane's next batch

    def start(self, states: Mapping[int, LaneState]) -> None:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        cycles = {state.cycle for state in states.values()}
        from_start = all(state == LaneState(cycle=state.cycle) for state in states.values()) and len(cycles) == 1
        if self._loader is not None and from_start:  # persistent workers live on
            dataset = self._loader.dataset
            assert isinstance(dataset, WorkerLanes)
            dataset.next_cycle.fill_(cycles.pop())
            dataset.received.zero_()
        else:
            self.shut_down()
            dataset = WorkerLanes(self._pump, states, self._num_workers)
            self._loader = StatefulDataLoader(dataset, batch_size=None, num_workers=self._num_workers, **self._options)
            self._receivers = [Receiver(received) for received in dataset.received]
        self._queues: dict[int, deque[Item]] = {lane: deque() for lane in states}
        self._made = {lane: state.given for lane, state in states.items()}
        self._begun = dict(self._made)
        self._dry = {lane for lane, state in states.items() if state.dry}
        self._failed.clear()
        try:
            self._iterator = iter(self._loader)
        except BaseException as error:
            self._iterator = _find_iterator(error)
            self._give_up(error)
        if self._iterator._worker_pids_set:
            # Or torch would raise for a worker's death wherever the main thread is, in the middle of anything.
            torch._C._remove_worker_pids(id(self._iterator))
            self._iterator._worker_pids_set = False

    def has(self, lane: int, index: int) -> bool:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        while self._made[lane] <= index and lane not in self._dry and lane not in self._failed:
            self._receive()
        return self._made[lane] > index or lane in self._failed

    def fails(self, lane: int, index: int) -> bool:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        return lane in self._failed and self._made[lane] <= index

    def take(self, lane: int) -> Item:
        """See :class:`~torchzephon.elastic.supply.Supply`."""
        if not self._queues[lane]:
            self.has(lane, self._made[lane])
            if not self._queues[lane] and lane in self._failed:
                raise self._failed[lane]
        return self._queues[lane].popleft()

    def close(self, patience: float | None = None) -> None:  # noqa: ARG002
        """Stops the workers, unless they are persistent: those stop with the loader, or after an error."""
        if not self._options.get("persistent_workers") or self._failed:
            self.shut_down()

    def shut_down(self) -> None:
        """Stops persistent workers, too."""
        iterator, self._loader, self._iterator = self._iterator, None, None
        if iterator is not None:
            # Leaving it to the garbage collector would leave processes behind an exception's traceback.
            iterator._shutdown_workers()

    def _receive(self) -> None:
        try:
            share: Share = next(self._iterator)
        except StopIteration:
            self._dry.update(self._queues)
            return
        except Exception as error:
            self._give_up(error)
        self._dry.update(share.dry)
        self._failed.update(share.failed)
        batches = self._receivers[share.worker].unpack(share.batches)
        for lane, state, batch in zip(share.lanes, share.states, batches, strict=True):
            self._queues[lane].append(Item(batch, state))
            self._made[lane] += 1

    def _give_up(self, error: BaseException) -> NoReturn:
        """Stops all workers after an error, and raises it, or a better one if workers have died."""
        if isinstance(error, (LaneError, StateError)):
            self.shut_down()
            raise _without_trace(error) from error
        dead, way_out = self._name_dead(error), self._way_out()
        self.shut_down()
        if dead:
            raise WorkerError(f"{dead}; {way_out}") from error
        raise error

    def _way_out(self) -> str:
        """What to do when workers have died."""
        methods = {process._start_method or multiprocessing.get_start_method() for process in self._processes}
        if self._made == self._begun and methods - {"fork"}:
            return (
                f"nothing has come from the workers yet, and {methods.pop()!r} has each of them import the script: is "
                'all that the script does below `if __name__ == "__main__":`? Else the cause is printed above'
            )
        return "the last state_dict() is good, restart from it"

    def _name_dead(self, error: BaseException) -> str:
        """Says which workers have died, and of what; empty when none has."""
        deadline = time.monotonic() + _DYING_S  # a worker's connection can break before it is dead
        while not (dead := self._dead(error)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return "; ".join(dead)

    @property
    def _processes(self) -> list[Any]:
        return getattr(self._iterator, "_workers", [])

    def _dead(self, error: BaseException) -> list[str]:
        processes = self._processes
        owned = list(self._queues)
        messages = []
        for number, process in enumerate(processes):
            code = process.exitcode
            if code or (code == 0 and (self._iterator._workers_status[number] or str(process.pid) in str(error))):
                lanes = _lanes_of(number, self._num_workers, owned)
                end = f"ended with exit code {code}" if code >= 0 else f"died of signal {-code} ({_signal_name(-code)})"
                messages.append(f"worker {number} (pid {process.pid}, lanes {lanes[0]}-{lanes[-1]}) {end}")
        return messages


def _lanes_of(worker: int, num_workers: int, owned: list[int]) -> list[int]:
    """The contiguous run of a rank's lanes that a worker makes."""
    return owned[worker * len(owned) // num_workers : (worker + 1) * len(owned) // num_workers]


def _without_trace(error: LaneError | StateError) -> LaneError | StateError:
    """An error from a worker, whose message torch has put behind the worker's whole traceback."""
    kind = type(error)
    return kind(str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")[2].rstrip())


def _find_iterator(error: BaseException) -> Any:
    """The loader's iterator that an error was raised in, when it has started workers and nobody has a hold of it."""
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if hasattr(owner, "_shutdown_workers"):
            return owner
        trace = trace.tb_next
    return None


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "unknown"
    return name + _OFTEN.get(name, "")

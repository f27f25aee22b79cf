"""Pool: open files and decoded parts, shared by the lanes of a process and bounded by bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary

T = TypeVar("T")


@dataclass
class PoolStats:
    """What a pool did in this process.

    Attributes:
        hits: gets that found their value, or waited for another thread's load of it.
        loads: values loaded.
        bytes: bytes held now.
        peak: the most bytes that were held at one time.
    """

    hits: int = 0
    loads: int = 0
    bytes: int = 0
    peak: int = 0


class Pool:
    """A cache of what is costly to open or decode: the least recently used goes first when the bytes run out.

    It may be used from several threads. One key is loaded once at a time: who wants the same key waits for that
    load, who wants another goes on. An evicted value is only forgotten: whoever uses it still has it, and an
    mmap is unmapped with its last reference. The value used last is never evicted, so that one larger than the
    bound is not loaded again for every read.

    Each process has its own: a pool is empty after a fork and after unpickling. A deep copy is the pool itself.

    Args:
        memory_bytes: bound on the sum of the bytes that the loaders report.

    Raises:
        ValueError: for a negative ``memory_bytes``.
    """

    def __init__(self, memory_bytes: int) -> None:
        if memory_bytes < 0:
            raise ValueError(f"memory_bytes must not be negative, got {memory_bytes}")
        self.memory_bytes = memory_bytes
        self._shelves: dict[int, _Shelf] = {}

    @property
    def stats(self) -> PoolStats:
        """The counters of this process, live."""
        return self._shelf().stats

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value of ``key``, from the pool or loaded.

        Args:
            key: names the value. Everything that the value depends on must be in it.
            load: gives the value and the bytes of memory that it takes. May itself get other keys, and make room.

        Raises:
            Exception: what ``load`` raised, in every thread that waited for it; the next get loads again.
        """
        shelf = self._shelf()
        while True:
            with shelf.lock:
                if key in shelf.values:
                    shelf.values.move_to_end(key)
                    shelf.stats.hits += 1
                    return cast("T", shelf.values[key][0])
                pending = shelf.pending.get(key)
                if pending is None:
                    mine = shelf.pending[key] = _Load()
                    break
            pending.done.wait()
            if pending.error is not None:
                raise pending.error
            if pending.loaded:
                with shelf.lock:
                    shelf.stats.hits += 1
                return cast("T", pending.value)
        try:
            value, size = load()
            mine.value, mine.loaded = value, True
            self._keep(shelf, key, value, size)
            return value
        except Exception as error:
            mine.error = error
            raise
        finally:
            # An interrupt (not an Exception) is this thread's own: the waiters find neither value nor error and
            # one of them loads.
            with shelf.lock:
                del shelf.pending[key]
            mine.done.set()

    def make_room(self, size: int, *, but: Hashable = None) -> None:
        """Evicts what would be evicted by ``size`` bytes more: to be called before they are taken, not after.

        Args:
            size: bytes.
            but: the key of a value that stays: the one that is to grow.
        """
        shelf = self._shelf()
        dropped = []  # let go of outside the lock: freeing may take long
        with shelf.lock:
            excess = shelf.stats.bytes + size - self.memory_bytes
            for key in list(shelf.values) if excess > 0 else ():
                if key == but:
                    continue
                value, value_size = shelf.values.pop(key)
                dropped.append(value)
                shelf.stats.bytes -= value_size
                excess -= value_size
                if excess <= 0:
                    break
        dropped.clear()

    def peek(self, key: Hashable) -> object:
        """The value if it is there, else None; that it was looked at does not count as use."""
        shelf = self._shelf()
        with shelf.lock:
            return shelf.values.get(key, (None, 0))[0]

    def resize(self, key: Hashable, value: object, size: int) -> None:
        """Says that a value takes another number of bytes now; nothing happens if it is gone already."""
        shelf = self._shelf()
        with shelf.lock:
            held, old = shelf.values.get(key, (None, 0))
            if held is not value:
                return
            shelf.values[key] = value, size
            shelf.stats.bytes += size - old
        self.make_room(0, but=key)
        with shelf.lock:
            shelf.stats.peak = max(shelf.stats.peak, shelf.stats.bytes)

    def discard(self, key: Hashable, value: object) -> None:
        """Lets a value go that nobody will ask for again soon; nothing happens if it is gone already."""
        shelf = self._shelf()
        with shelf.lock:
            held, size = shelf.values.get(key, (None, 0))
            if held is not value:
                return
            del shelf.values[key]
            shelf.stats.bytes -= size

    def _keep(self, shelf: _Shelf, key: Hashable, value: Any, size: int) -> None:
        self.make_room(size)
        with shelf.lock:
            shelf.values[key] = value, size
            shelf.stats.loads += 1
            shelf.stats.bytes += size
            shelf.stats.peak = max(shelf.stats.peak, shelf.stats.bytes)

    def _shelf(self) -> _Shelf:
        pid = os.getpid()
        shelf = self._shelves.get(pid)
        if shelf is None:  # new here, or forked: the parent's locks may be held for ever by threads that are not here
            shelf = self._shelves.setdefault(pid, _Shelf())
            for other in list(self._shelves):
                if other != pid:
                    self._shelves.pop(other, None)
        return shelf

    def __deepcopy__(self, memo: dict[int, Any]) -> Pool:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return pool_of_process, (self.memory_bytes,)


@dataclass
class _Load(Generic[T]):
    """A load that is going on."""

    done: threading.Event = field(default_factory=threading.Event)
    loaded: bool = False
    value: T | None = None
    error: Exception | None = None


@dataclass
class _Shelf:
    """What one process holds."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    values: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict)
    pending: dict[Hashable, _Load[Any]] = field(default_factory=dict)
    stats: PoolStats = field(default_factory=PoolStats)


_POOLS: WeakValueDictionary[int, Pool] = WeakValueDictionary()


def pool_of_process(memory_bytes: int) -> Pool:
    """The one pool with this bound, as long as somebody has it: graphs that are built one by one share it too."""
    return _POOLS.setdefault(memory_bytes, Pool(memory_bytes))

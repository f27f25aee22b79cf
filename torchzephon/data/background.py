"""Background: work that needs no interpreter, done while the consumer uses it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

_LINGER_S = 0.05


class Task(Generic[T]):
    """Something that a thread does in the background.

    Whoever needs a result does not sit idle: it does the task itself if the thread has not begun it, and others that
    nobody has begun while it waits for one that is under way. So two cores are busy, whichever has more to do.

    Nothing here but plain locks: whoever waits may be interrupted (Ctrl-C) anywhere, and go on.

    Args:
        function: does it. It should spend its time outside of Python: else it takes from the consumer what it gives.
            Should it be interrupted, or begun by two at the same moment, it is done again: it must change nothing.
        thread: name of the thread, of which each process has one. It does its tasks in turn.
    """

    def __init__(self, function: Callable[[], T], thread: str) -> None:
        self._function: Callable[[], T] | None = function  # None once it is done
        self._outcome: _Outcome[T] | None = None
        self._begun = self._taken = False  # by the thread, by who waits
        self._done = threading.Lock()  # held until the thread has done it
        self._done.acquire()
        self._thread = _thread(os.getpid(), thread)
        self._thread.add(self)

    def result(self) -> T:
        """What the function gave; or raises what it raised."""
        if self._outcome is None and self._begun and self._thread.is_here:
            self._thread.help(self._done)
            with self._done:
                pass
        if self._outcome is None:  # not begun; or forked, and the thread that began it is not here
            self.take()
        assert self._outcome is not None
        return self._outcome.result()

    def run(self) -> None:
        """For the thread."""
        try:
            if not self._taken:
                self._begun = True
                self._do(BaseException)  # such as SystemExit: whoever waits must hear of it
        finally:
            self._done.release()

    def take(self) -> None:
        """For who waits: does it here and now."""
        self._taken = True
        self._do(Exception)

    def _do(self, caught: type[BaseException]) -> None:
        function = self._function
        if function is not None:
            try:
                self._outcome = _Outcome(function(), None)
            except caught as error:
                self._outcome = _Outcome(None, error)
            self._function = None  # what it holds is not needed any more; last, for a fork in between

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _Outcome, (self.result(), None)
        except Exception as error:
            return _Outcome, (None, error)


def help_out(thread: str, lock: threading.Lock) -> None:
    """For who waits for a lock that a task, or another's help, may hold: does tasks that nobody has begun meanwhile."""
    _thread(os.getpid(), thread).help(lock)


class _Outcome(Generic[T]):
    """What became of a task; also a task that was copied."""

    def __init__(self, value: T | None, error: BaseException | None) -> None:
        self._value = value
        self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class _Thread:
    """Does tasks in turn, and ends when there have been none for a moment.

    At exit it ends after the task that it is at: native code must not outlive the interpreter.
    """

    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self._name = name
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._helping = threading.local()
        atexit.register(self._stop)

    @property
    def is_here(self) -> bool:
        """Whether this is its process, not a fork of it: there the thread is not, and its locks may be held."""
        return self._pid == os.getpid()

    def add(self, task: Task[Any]) -> None:
        self._tasks.put(task)
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=f"torchzephon-{self._name}", daemon=True)
                self._thread.start()

    def help(self, done: threading.Lock) -> None:
        """For who waits for a task that has begun: does others, until it is done."""
        if getattr(self._helping, "now", False):  # one at a time: else they would lie in each other without bound
            return
        try:
            self._helping.now = True
            while done.locked():
                task = self._tasks.get_nowait()
                if task is None:  # the process ends
                    self._tasks.put(None)
                    return
                task.take()
        except Empty:
            return
        finally:
            self._helping.now = False

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_LINGER_S)
            except Empty:
                with self._starting:
                    if self._tasks.empty():
                        self._thread = None
                        return
                continue
            if task is None:
                return
            task.run()
            del task  # what it holds is not to be held until the next one comes

    def _stop(self) -> None:
        if not self.is_here:
            return
        thread = self._thread
        with contextlib.suppress(Empty):
            while True:
                self._tasks.get_nowait()
        self._tasks.put(None)
        if thread is not None:
            thread.join()


@cache
def _thread(pid: int, name: str) -> _Thread:  # a forked process has none of its parent's threads
    return _Thread(pid, name)

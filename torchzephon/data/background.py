"""Background: work that needs no interpreter, done while the consumer uses it."""

from __future__ import annotations

import atexit
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

    Nothing here but plain locks: whoever waits may be interrupted (Ctrl-C) anywhere, and go on.

    Args:
        function: does it. It should spend its time outside of Python: else it takes from the consumer what it gives.
        thread: name of the thread, of which each process has one. It does its tasks in turn.
    """

    def __init__(self, function: Callable[[], T], thread: str) -> None:
        self._function: Callable[[], T] | None = function  # None once it is done
        self._pid = os.getpid()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()  # held until it is done
        self._done.acquire()
        _thread(self._pid, thread).add(self)

    def result(self) -> T:
        """What the function gave, waiting for it; or raises what it raised."""
        function = self._function
        if self._pid != os.getpid() and function is not None:  # forked, and the thread is not here
            return function()
        with self._done:
            pass
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def run(self) -> None:
        """For the thread."""
        function = self._function
        assert function is not None
        try:
            self._value = function()
        except BaseException as error:  # such as SystemExit: whoever waits must hear of it
            self._error = error
        finally:
            self._done.release()
            self._function = None  # what it holds is not needed any more; last, for a fork in between

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _Done, (self.result(), None)
        except Exception as error:
            return _Done, (None, error)


class _Done(Generic[T]):
    """A task that was copied."""

    def __init__(self, value: T, error: Exception | None) -> None:
        self._value = value
        self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


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
        atexit.register(self._stop)

    def add(self, task: Task[Any]) -> None:
        self._tasks.put(task)
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=f"torchzephon-{self._name}", daemon=True)
                self._thread.start()

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
        if self._pid != os.getpid():  # forked: the thread is not here, and its locks may be held
            return
        thread = self._thread
        while not self._tasks.empty():
            self._tasks.get()
        self._tasks.put(None)
        if thread is not None:
            thread.join()


@cache
def _thread(pid: int, name: str) -> _Thread:  # a forked process has none of its parent's threads
    return _Thread(pid, name)

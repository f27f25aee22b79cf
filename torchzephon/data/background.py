"""Background: work that needs no interpreter, done while the consumer uses it."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LINGER_S = 0.05


class Task(Generic[T]):
    """Something that a thread does in the background.

    Args:
        function: does it. It should spend its time outside of Python: else it takes from the consumer what it gives.
        thread: name of the thread, of which each process has one. It does its tasks in turn.
    """

    def __init__(self, function: Callable[[], T], thread: str) -> None:
        self._function = function
        self._pid = os.getpid()
        self._future: Future[T] = Future()
        _thread(self._pid, thread).add(self)

    def result(self) -> T:
        """What the function gave, waiting for it; or raises what it raised."""
        if self._pid != os.getpid():  # forked, and the thread is not here
            return self._function()
        return self._future.result()

    def run(self) -> None:
        """For the thread."""
        try:
            self._future.set_result(self._function())
        except BaseException as error:  # such as SystemExit: whoever waits must hear of it
            self._future.set_exception(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Done, (self.result(),)


class _Done(Generic[T]):
    """A task that was copied."""

    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        return self._value


class _Thread:
    """Does tasks in turn, and ends when there have been none for a moment.

    At exit it ends after the task that it is at: native code must not outlive the interpreter.
    """

    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self._name = name
        self._tasks: deque[Task[Any]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        atexit.register(self._stop)

    def add(self, task: Task[Any]) -> None:
        with self._changed:
            self._tasks.append(task)
            if self._thread is not None and self._thread.is_alive():
                self._changed.notify()
            else:
                self._thread = threading.Thread(target=self._run, name=f"torchzephon-{self._name}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._tasks and not self._changed.wait_for(lambda: self._tasks, _LINGER_S):
                    self._thread = None
                    return
                task = self._tasks.popleft()
            task.run()
            del task  # what it holds is not to be held until the next one comes

    def _stop(self) -> None:
        if self._pid != os.getpid():  # forked: the lock may be held for ever
            return
        with self._changed:
            self._tasks.clear()
            thread = self._thread
        if thread is not None:
            thread.join()


@cache
def _thread(pid: int, name: str) -> _Thread:  # a forked process has none of its parent's threads
    return _Thread(pid, name)

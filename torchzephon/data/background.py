"""Background: work that needs no interpreter, done while the consumer uses it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
        _thread(self._pid, thread).tasks.put(self)

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
    """Does tasks in turn. At exit it ends after the task that it is at: native code must not outlive Python."""

    def __init__(self, name: str) -> None:
        self.tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"torchzephon-{name}", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None and not self._stopping:
            task.run()
            del task  # what it holds is not to be held until the next one comes

    def _stop(self) -> None:
        self._stopping = True
        self.tasks.put(None)
        self._thread.join()


@cache
def _thread(pid: int, name: str) -> _Thread:  # noqa: ARG001  # a forked process has none of its parent's threads
    return _Thread(name)

"""The fork gate: a process forks only while no encoder runs."""

from __future__ import annotations

import os
import threading
import time

_SETTLE_S = 0.002
_PARALLELISM = "TOKENIZERS_PARALLELISM"


class ForkGate:
    """Makes encoders with native thread pools survive ``fork``.

    A forked process has none of its parent's threads, but all of its locks, as they were. So encoders run under the
    gate (``with gate:``), a fork waits until none runs and the pools' threads had time to fall asleep, and new ones
    wait for the fork. In the child, a call to fastokens then does all the work itself, because callers take part in
    its pool. tokenizers would wait for the dead pool for ever, so it is told to use none.

    Attributes:
        rayon: whether tokenizers has made its pool in this process; set by whoever makes it do so.
    """

    def __init__(self) -> None:
        self.rayon = False
        self._parallelism: str | None = None
        self._start()

    def _start(self) -> None:
        self._changed = threading.Condition()
        self._inside = threading.local()
        self._running = 0
        self._forking = False
        self._ended = 0.0

    def __enter__(self) -> None:
        depth = getattr(self._inside, "depth", 0)
        self._inside.depth = depth + 1
        with self._changed:
            while self._forking and not depth:
                self._changed.wait()
            self._running += 1

    def __exit__(self, *_: object) -> None:
        self._inside.depth -= 1
        with self._changed:
            self._running -= 1
            self._ended = time.monotonic()
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Keeps new encoders out and waits for those inside."""
        self._changed.acquire()
        self._forking = True
        while self._running:
            self._changed.wait()
        time.sleep(max(0.0, self._ended + _SETTLE_S - time.monotonic()))
        if self.rayon:
            self._parallelism = os.environ.get(_PARALLELISM)
            os.environ[_PARALLELISM] = "false"  # it reads this in the child

    def after_in_parent(self) -> None:
        """Lets encoders in again."""
        if self.rayon and self._parallelism is None:
            del os.environ[_PARALLELISM]
        elif self.rayon and self._parallelism is not None:
            os.environ[_PARALLELISM] = self._parallelism
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Starts anew: whoever waited at the gate is not in this process."""
        self._start()


gate = ForkGate()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=gate.before_fork, after_in_parent=gate.after_in_parent, after_in_child=gate.after_in_child
    )

"""EndAgreement: the ranks agree, round by round and ahead of time, on where finite data ends."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist

from torchzephon.elastic.assignment import Assignment

_FLAG, _LEFT, _CYCLE, _MINUS_CYCLE = range(4)


class EndAgreement:
    """One small asynchronous all-reduce a round, on a private gloo group, for a round that lies ahead.

    Each rank raises a flag for a round or does not; all ranks learn whether any did. Ranks call :meth:`ask` and
    :meth:`answer` for the same rounds in the same order, in the consumer's thread only. A rank that leaves early
    sends a last word (:meth:`leave`) in place of its next flag, so that its peers learn of it instead of waiting.

    Args:
        assignment: the data-parallel ranks, with a process group behind them. Every rank of it must construct this.
    """

    def __init__(self, assignment: Assignment) -> None:
        # Ranks outside of the data-parallel group do not take part in making this one.
        ranks = None if assignment.group is None else dist.get_process_group_ranks(assignment.group)
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)
        assert isinstance(group, dist.ProcessGroup), "this rank is not part of its own data-parallel group"
        self._group = group
        self._asked: deque[tuple[int, torch.Tensor, dist.Work]] = deque()
        self._last_words: list[tuple[torch.Tensor, dist.Work]] = []
        self._run = 0
        self._running = False

    def begin(self) -> None:
        """A new run over the data; after :meth:`leave` or the agreed end of the one before."""
        self._asked.clear()
        self._run += 1
        self._running = True

    def ask(self, round_index: int, flag: bool) -> None:
        """Sends this rank's flag for a round."""
        self._send(round_index, flag, left=False)

    def answer(self, round_index: int) -> bool:
        """Whether any rank raised its flag for the round; rounds are answered in the order of :meth:`ask`.

        Raises:
            RuntimeError: when another rank stopped iterating before this round.
        """
        asked, payload, work = self._asked.popleft()
        assert asked == round_index, f"round {asked} was asked, round {round_index} is to be answered"
        work.wait()
        if payload[_LEFT] or payload[_CYCLE] != self._run or payload[_MINUS_CYCLE] != -self._run:
            self._running = False
            raise RuntimeError(
                f"another rank stopped iterating before round {round_index} while this one goes on: the ranks cannot "
                "agree on the end of the data any more. Leave the loop after the same round on every rank"
            )
        return bool(payload[_FLAG])

    def end(self) -> None:
        """The agreed end was reached, on all ranks alike."""
        self._running = False

    def leave(self) -> None:
        """Leaves the current run before its end; does nothing when none is running, and never raises or waits."""
        if not self._running:
            return
        self._running = False
        try:
            self._send(-1, flag=False, left=True)
        except (RuntimeError, ValueError):  # the process group is gone already, and the peers with it
            return
        self._last_words = [(payload, work) for payload, work in self._last_words if not work.is_completed()]
        _, payload, work = self._asked.pop()
        self._last_words.append((payload, work))

    def _send(self, round_index: int, flag: bool, *, left: bool) -> None:
        payload = torch.tensor([flag, left, self._run, -self._run], dtype=torch.int64)
        work = dist.all_reduce(payload, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None, "this rank is part of the group"
        self._asked.append((round_index, payload, work))

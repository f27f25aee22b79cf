"""EndAgreement: the ranks agree, ahead of time, on where finite data ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from torchzephon.elastic.assignment import Assignment
from torchzephon.elastic.connections import Connections, Reduction

_START = -1  # the question where to begin, in place of the round that a question is about
_VALUES = 5  # most numbers of a question


class _Question(NamedTuple):
    """One all-reduce under way.

    Attributes:
        round: what it is about.
        place: where this rank is; the others must be at the same place.
        reduction: of whether this is a last word, the place, its negative, the values. The maximum over the ranks shows
            whether all places are equal.
    """

    round: int
    place: tuple[int, ...]
    reduction: Reduction


class EndAgreement:
    """Asynchronous all-reduces of a few numbers, on gloo connections of their own.

    Ranks call :meth:`begin`, :meth:`ask` and :meth:`answer` for the same rounds in the same order, in the consumer's
    thread only. A rank that leaves early sends a last word (:meth:`leave`) in place of its next number, so that its
    peers learn of it instead of waiting.

    Args:
        assignment: the data-parallel ranks, with a process group behind them. Every rank of it must construct this.
        digest: of all that must be alike on the ranks, at most 63 bits.
    """

    def __init__(self, assignment: Assignment, digest: int) -> None:
        self._digest = digest
        self._running = False
        self._connections = Connections(assignment)
        self._asked: deque[_Question] = deque()  # under way: a question, and a last word after it
        self._run = 0
        self._cycle = 0

    def __del__(self) -> None:
        self.leave()

    def begin(self, cycle: int, round_index: int, *, is_fresh: bool) -> int:
        """A new run over the data, after :meth:`leave` or the agreed end of the one before.

        Args:
            cycle: in which this rank begins.
            round_index: at which this rank begins.
            is_fresh: whether it begins where it was reset or loaded to. Ranks that were interrupted may be rounds
                apart; after a load they are one apart at most, if the state was saved in the middle of a round.

        Returns:
            The round at which all ranks begin: the smallest ``round_index`` of any.

        Raises:
            RuntimeError: when the other ranks are elsewhere, or made otherwise.
        """
        self._cycle = cycle
        self._catch_up()
        self._run += 1
        self._running = True
        self.ask(_START, -round_index, round_index, not is_fresh, self._digest, -self._digest)
        first, last, interrupted, digest, other = self.answer()
        if digest != -other:
            self._refuse(
                "they were made with other graphs, or other arguments of Lanes. Build all alike on every rank; a seed "
                "must not depend on the rank, since lanes share out the data. gather_state(loader) names what differs"
            )
        if last + first > 1 and not interrupted:
            self._refuse(
                f"one begins with round {-first} of cycle {cycle}, another one with round {last}. Load the same "
                "checkpoint on every rank"
            )
        return -first

    def ask(self, round_index: int, *values: int) -> None:
        """Sends this rank's numbers for a round, when what was asked before is answered."""
        self._send(round_index, values, left=False)

    def answer(self) -> list[int]:
        """The largest numbers of any rank, for the round that was asked about.

        Raises:
            RuntimeError: when another rank stopped iterating before, is elsewhere, or is gone.
        """
        question = self._asked[0]
        try:
            left, *numbers = self._connections.wait(question.reduction)
        except RuntimeError as error:
            self._running = False
            raise RuntimeError(
                f"the other data-parallel ranks cannot be reached to agree on the end of the data: one of them has "
                f"exited, was killed, or stands still ({error}). Restart the ranks from the last checkpoint"
            ) from error
        self._asked.popleft()
        size = len(question.place)
        if left or numbers[:size] != [-part for part in numbers[size : 2 * size]]:
            self._running = False
            raise RuntimeError(
                f"this rank goes on with {_describe(question.round)} of cycle {self._cycle}, while another one stopped "
                "iterating, failed, or is elsewhere: the ranks cannot agree on the end of the data. Look for an error "
                "of another rank; else leave the loop after the same round, and load the same checkpoint, on every rank"
            )
        return numbers[2 * size :]

    def end(self) -> None:
        """The agreed end was reached, on all ranks alike."""
        self._running = False

    def leave(self) -> None:
        """Leaves the current run before its end; does nothing when none is running, and never raises or waits."""
        if not self._running:
            return
        self._running = False
        with suppress(RuntimeError):  # the connections are broken, and the peers know
            self._send(_START, (), left=True)

    def _catch_up(self) -> None:
        """Sees to it that this rank's next message meets the others' next one.

        It left with a question under way. When another one had left before, that question met a last word, and this
        rank's own last word is to meet what the others begin anew with: which fails on all ranks.
        """
        if len(self._asked) == 2:
            try:
                self.answer()
            except RuntimeError:
                self._run += 1  # as the others do
                self.answer()
        self._asked.clear()

    def _refuse(self, reason: str) -> NoReturn:
        self.end()  # all ranks alike
        raise RuntimeError(f"the ranks do not read the same data: {reason}")

    def _send(self, round_index: int, values: Sequence[int], *, left: bool) -> None:
        place = (self._run, self._cycle, round_index)
        # All messages have one size: a last word may meet any of them.
        padding = [0] * (_VALUES - len(values))
        reduction = self._connections.maximum([left, *place, *(-part for part in place), *values, *padding])
        self._asked.append(_Question(round_index, place, reduction))


def _describe(round_index: int) -> str:
    return "the first round" if round_index == _START else f"round {round_index}"

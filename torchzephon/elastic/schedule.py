"""Schedule: which lanes stand in which round, and after which round the data ends."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Literal

from torchzephon.elastic.agreement import EndAgreement
from torchzephon.elastic.assignment import Assignment
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.supply import Supply
from torchzephon.errors import LaneError

logger = logging.getLogger(__name__)

BLANK = -1  # a slot of a round that no lane fills


class Schedule:
    """The rounds of one rank.

    Args:
        assignment: this rank and its lanes.
        uneven: see :class:`~torchzephon.Lanes`.
        end: see :class:`~torchzephon.Lanes`.
        is_finite: whether the curriculum ends.
        agreement: how the ranks agree on the end; None: each rank sees its own end.
        stretch: rounds that the ranks agree on at once, half a stretch ahead.

    Attributes:
        round: the current round.
        dry: the lanes of this rank that :meth:`slots` left out, because they have nothing more.
    """

    def __init__(
        self,
        assignment: Assignment,
        *,
        uneven: Literal["pad", "allow", "error"],
        end: Literal["pad", "drop", "ragged"],
        is_finite: bool,
        agreement: EndAgreement | None,
        stretch: int,
    ) -> None:
        self.round = 0
        self.dry: list[int] = []
        self._assignment = assignment
        self._pads = uneven == "pad" and assignment.size > 1
        self._end = end
        self._is_finite = is_finite
        self._agreement = agreement
        self._stretch = stretch
        self._given: dict[int, int] = {}

    def begin(self, supply: Supply, states: Mapping[int, LaneState], round_index: int, *, is_fresh: bool) -> None:
        """Starts at a round, with each lane where ``states`` says.

        Where ranks agree, they start together at the smallest round of any of them: a state that was saved in the
        middle of a round can leave them one apart. ``is_fresh``: see :meth:`EndAgreement.begin`.
        """
        self._supply = supply
        self._given = {lane: state.given for lane, state in states.items()}
        if self._agreement is not None:
            cycle = next(state.cycle for state in states.values())
            round_index = self._agreement.begin(cycle, round_index, is_fresh=is_fresh)
        self.round = round_index
        self._asked = round_index  # rounds before this one were asked about,
        self._agreed = round_index  # and before this one they take place;
        self._end_agreed = False  # nothing takes place after them
        self._failing: int | None = None  # the round in which a lane of some rank fails, where that is known

    def takes_place(self) -> bool:
        """Whether the current round takes place."""
        if not self._is_finite and self._assignment.size > 1:
            return True
        if self._agreement is None:
            return self._seems_to_take_place(self.round)
        if self._agreed == self.round and not self._end_agreed:
            self._agree(self._agreement)
        # The next stretch, in time. No sooner than this one is answered: see EndAgreement.ask.
        if not self._end_agreed and self._asked == self._agreed <= self.round + (self._stretch + 1) // 2:
            self._ask(self._agreement)
        if self.round == self._failing and not self._fails(self.round):
            raise RuntimeError(
                f"a lane of another data-parallel rank fails in round {self.round}: look for the error of that rank. "
                "The states of all ranks, after the round before, belong together"
            )
        return self.round < self._agreed

    def slots(self) -> list[int] | None:
        """The lanes of the current round, in order, with ``BLANK`` for a batch that must be made up; None at the end.

        The list may be empty, when all lanes are ahead of the round already. A lane in it may turn out to be dry when
        its turn comes: with many lanes the first batch is not to wait for all others.
        """
        if not self.takes_place():
            self.dry = [lane for lane in self._given if not self._has(lane, self.round)]
            self._finish()
            return None
        slots: list[int] = []
        self.dry = []
        for lane, given in self._given.items():
            if given > self.round:  # the state was saved in the middle of this round, after the lane's turn
                slots += [BLANK] * self._pads
            elif self._end != "ragged" or self._supply.has(lane, given):
                slots.append(lane)
            else:
                self.dry.append(lane)
        if self._pads and self._end != "ragged":
            slots += [BLANK] * (self._assignment.most_owned - len(slots))
        return slots

    def is_dry(self, lane: int) -> bool:
        """Whether a lane of the current round has nothing for it, so that its slot is blank.

        Raises:
            LaneError: where that cannot be.
        """
        if self._supply.has(lane, self._given[lane]):
            return False
        self._refuse_surprise(lane)
        return True

    def gave(self, lane: int) -> None:
        """A lane's batch of the current round was delivered."""
        self._given[lane] += 1

    def leave(self) -> None:
        """Iteration stops before the end."""
        if self._agreement is not None:
            self._agreement.leave()

    def _has(self, lane: int, round_index: int) -> bool:
        return self._given[lane] > round_index or self._supply.has(lane, round_index)

    def _ask(self, agreement: EndAgreement) -> None:
        """Asks how many rounds of the next stretch take place, and how many of those no lane is known to fail in."""
        stretch = range(self._asked, self._asked + self._stretch)
        count = sum(1 for _ in itertools.takewhile(self._seems_to_take_place, stretch))
        sound = sum(not self._fails(round_index) for round_index in stretch)
        agreement.ask(self._asked, -count if self._end == "drop" else count, -sound)
        self._asked += self._stretch

    def _agree(self, agreement: EndAgreement) -> None:
        if self._asked == self._agreed:
            self._ask(agreement)
        count, sound = map(abs, agreement.answer()[:2])
        if sound < count:
            self._failing = self._agreed + sound
        self._agreed += count
        self._end_agreed = count < self._stretch

    def _seems_to_take_place(self, round_index: int) -> bool:
        """Whether a round takes place as far as this rank can tell."""
        return not self._missing(round_index) if self._end == "drop" else self._present(round_index)

    def _fails(self, round_index: int) -> bool:
        """Whether a lane of this rank is known to have no batch for the round, but an error."""
        return any(self._supply.fails(lane, round_index) for lane in self._given)

    def _present(self, round_index: int) -> bool:
        """Whether any lane of this rank has a batch for the round."""
        return any(self._has(lane, round_index) for lane in self._given)

    def _missing(self, round_index: int) -> bool:
        """Whether any lane of this rank has no batch for the round."""
        return any(not self._has(lane, round_index) for lane in self._given)

    def _finish(self) -> None:
        if self._agreement is not None:
            self._agreement.end()
        if self._end == "drop" and (left := [lane for lane in self._given if self._has(lane, self.round)]):
            logger.warning(
                "end='drop': the data ends after round %d, before what lanes %s still had was used; end='pad' keeps it",
                self.round, left,
            )  # fmt: skip

    def _refuse_surprise(self, lane: int) -> None:
        if not self._is_finite and self._assignment.size > 1:
            raise LaneError(
                f"lane {lane} ended after {self._given[lane]} batches although its curriculum is endless: a node cut "
                "it short, and several ranks cannot agree on an end that nobody told them of. Give MixtureWorkSource a "
                "stopping rule instead (stop_after_passes, max_repeats, exhausted_policy), or stop the training loop"
            )

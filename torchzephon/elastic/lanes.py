"""Lanes: the one elastic node."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

import orjson
from torch.utils.data._utils.pin_memory import pin_memory as pinned  # what torch's own DataLoader does
from torchdata.nodes import BaseNode

from torchzephon.curriculum.checks import check_choice, check_int
from torchzephon.elastic.agreement import EndAgreement
from torchzephon.elastic.assignment import DataParallel, assign_lanes
from torchzephon.elastic.description import describe_graph
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.loadable import check_loadable
from torchzephon.elastic.pump import Pump
from torchzephon.elastic.schedule import BLANK, Schedule
from torchzephon.elastic.state import Graph, State, parse_state
from torchzephon.elastic.supply import Supply
from torchzephon.elastic.template import Root, build_template, dump_root, find_leaf, load_root
from torchzephon.errors import StateError
from torchzephon.nodes.graph import Estimate, Estimated, Summarized, find_blank, walk

logger = logging.getLogger(__name__)

_MOST_LANES = 1_000_000  # a rank alone holds the state of each

_PATIENCE_S = 2.0  # of the garbage collector: it may run where a lock is held that a lane's thread waits for
_RUNTIME = {"schedule", "_supply", "_finalizer", "_blank", "_turn"}  # made anew by _prepare


class Lanes(BaseNode[Any]):
    """Runs one copy of a graph per lane and yields the lanes' batches round-robin: the unit of elasticity.

    The run has a fixed number of lanes. Each of the ranks that there are today owns a contiguous share of them, so
    that round ``r`` (one batch of every lane, in lane order) is the same at every world size. The next batch comes
    from the owned lane that has given the fewest, the lowest first.

    The state dict is plain JSON, one string a lane. It counts what was delivered, not what was made ahead of time;
    all ranks' states together (``merge_states``, or DCP) load into any other topology.

    Args:
        root: the template graph, which is deep-copied once per lane, or a function without arguments that builds a
            graph, which is called once per lane. Its leaf must be a :class:`~torchzephon.WorkSource`.
        num_lanes: number of lanes of the whole run, V. It bounds the number of ranks for ever: choose the most ranks
            that you may ever have.
        dp: the data-parallel ranks: a one-dimensional ``DeviceMesh``, a ``ProcessGroup``, ``(rank, size)``, or None:
            WORLD, else torchrun's environment, else one rank alone.
        uneven: what to do where the number of ranks W does not divide V. ``"pad"``: every rank yields ``ceil(V / W)``
            batches a round, the missing ones blank, so that FSDP runs equally many forward passes everywhere.
            ``"allow"``: each rank yields as many as it owns lanes. ``"error"``: refuse.
        end: how finite data ends, since packing makes lanes unequal. ``"pad"``: dry lanes yield blank batches until
            all lanes of all ranks are dry; nothing is lost, all ranks stop after the same round. ``"drop"``: all stop
            before the first round that some lane cannot fill. ``"ragged"``: each lane to its own end, without
            agreement between the ranks.
        cycles: iterating again after the end is the next cycle: in another order (``"reshuffle"``), or in the same
            one (``"same"``, for evaluation).
        num_threads: threads of this process that run ahead while the consumer is away, computing; a batch that is
            needed at once is made by the consumer itself. 0: none runs ahead. None: one.
        prefetch: rounds that threads run ahead (at most 128 batches). With finite data on several ranks, also how
            many rounds the ranks agree on at once.

    Raises:
        ValueError: for arguments that cannot work together, or a graph with two leaves, naming the way out.
        TypeError: for a graph whose leaf is not lane-aware, or that holds a node that cannot be elastic.
    """

    _states: dict[int, str]  # of each lane, as delivered: what state_dict() reads at any time
    _slots: list[int]  # what is left of the current round
    _begun: int  # the round in which iteration began
    _delivered: bool  # anything, since the last reset
    _loaded: bool  # the last reset was to a state
    _ended: bool  # StopIteration was raised
    _dry_at_load: bool  # and that right after a load
    _error: Exception | None  # what ended the iteration otherwise
    _pid: int  # the process that runs it

    def __init__(
        self,
        root: Root,
        num_lanes: int,
        *,
        dp: DataParallel = None,
        uneven: Literal["pad", "allow", "error"] = "pad",
        end: Literal["pad", "drop", "ragged"] = "pad",
        cycles: Literal["reshuffle", "same"] = "reshuffle",
        num_threads: int | None = None,
        prefetch: int = 2,
    ) -> None:
        super().__init__()
        check_choice("uneven", uneven, ("pad", "allow", "error"))
        check_choice("end", end, ("pad", "drop", "ragged"))
        check_choice("cycles", cycles, ("reshuffle", "same"))
        check_int("num_lanes", num_lanes, at_least=1, at_most=_MOST_LANES)
        check_int("prefetch", prefetch, at_least=1)
        if num_threads is not None:
            check_int("num_threads", num_threads, at_least=0)

        self.root = root
        self.template = build_template(root)
        self.num_lanes = num_lanes
        self.num_threads = 1 if num_threads is None else num_threads
        self.prefetch = prefetch
        self.same_order = cycles == "same"
        # An option of the loader, but a batch that cannot be pinned must not count as delivered.
        self.pin_memory = False
        self.assignment = assign_lanes(num_lanes, dp)
        leaf = find_leaf(self.template)
        leaf.bind_lane(self.owned[0], num_lanes)  # descriptions and estimates depend on the number of lanes
        self._graph = Graph(describe_graph(self.template))
        self._blank = find_blank(self.template)

        agreement: EndAgreement | None = None
        if leaf.is_finite and end != "ragged" and self.assignment.size > 1:
            if self.assignment.connected:
                alike = (self._graph, num_lanes, uneven, end, cycles, prefetch)
                agreement = EndAgreement(self.assignment, _digest(alike))
            else:
                end = "ragged"
                logger.warning(
                    "the data is finite and no process group stands behind the ranks (%s): each rank runs to its own "
                    "end, as with end='ragged'",
                    self.assignment.label,
                )
        self._is_global_end = self.assignment.size == 1 or agreement is not None
        if not self.assignment.is_even and uneven == "error":
            raise ValueError(
                f"uneven='error': {self.assignment.size} ranks do not divide num_lanes={num_lanes}; use uneven='pad' "
                "(blank batches), uneven='allow' (unequal numbers of batches), or another number of ranks"
            )
        self.pads = uneven == "pad" and self.assignment.size > 1
        if self._blank is None:
            if self.pads and not self.assignment.is_even:
                raise ValueError(
                    f"{self.assignment.size} ranks do not divide num_lanes={num_lanes}, and the root node "
                    f"{type(self.template).__name__} has no blank() to pad the rounds with: end the graph with "
                    "TrainingBatcher or SequencePacker, give your root node a blank(), or use uneven='allow'"
                )
            if leaf.is_finite and end == "pad" and num_lanes > 1:
                raise ValueError(
                    f"the data is finite, and the root node {type(self.template).__name__} has no blank() for the "
                    "lanes that end first: end the graph with TrainingBatcher or SequencePacker, give your root node a "
                    "blank(), or use end='ragged' (each lane to its own end) or end='drop' (stop with the first)"
                )

        self._reset_by_itself = True  # torchdata's Loader resets a root that gives nothing after a load
        self._uneven = uneven
        self._end = end
        self._agreement = agreement
        self._prepare()

    def _prepare(self) -> None:
        """Sets up what runs, which neither copies nor pickles."""
        self.schedule = Schedule(
            self.assignment,
            uneven=self._uneven,
            end=self._end,
            is_finite=find_leaf(self.template).is_finite,
            agreement=self._agreement,
            # A round of many lanes is far enough ahead by itself, and holding several would take memory.
            stretch=self.prefetch if self.assignment.most_owned <= 16 else 1,
        )
        self._turn = threading.RLock()  # of consumers, should there be several threads of them
        self._running = False
        self._logged = False
        self._replayed = False
        self._use(self.make_pump(self.num_threads))
        self._rewind(0)

    def make_pump(self, num_threads: int) -> Pump:
        """A supply that makes batches in this process."""
        return Pump(
            self.root,
            self.num_lanes,
            num_threads=num_threads,
            rounds_ahead=self.prefetch,
            same_order=self.same_order,
        )

    def share(self, part: int, parts: int, cycle: int) -> Lanes:
        """Every ``parts``-th place of this rank's rounds, as a node of its own that talks to nobody: for a worker.

        Args:
            part: the first place.
            parts: number of shares.
            cycle: the cycle that it begins with.

        Raises:
            ValueError: for ``end="drop"``, which needs to know of all lanes.
        """
        if parts > 1 and self._end == "drop" and find_leaf(self.template).is_finite:
            raise ValueError(
                f"end='drop' with {parts} workers of a plain StatefulDataLoader, which do not know when the lanes of "
                "the others end: use ElasticDataLoader, one worker, or end='pad'"
            )
        lanes = copy.copy(self)
        vars(lanes).update(self._alone(part, parts))
        lanes._is_global_end = self._is_global_end and parts == 1
        lanes._prepare()
        lanes._rewind(cycle)
        lanes._logged = part > 0
        return lanes

    def _alone(self, part: int, parts: int) -> dict[str, Any]:
        """What is different in another process, which cannot agree with other ranks on anything."""
        end = self._end if self._agreement is None else "ragged"
        return {"assignment": self.assignment.share(part, parts), "_agreement": None, "_end": end}

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name not in _RUNTIME}
        fields |= self._alone(self.assignment.part, self.assignment.parts)
        return fields | {"root": None, "template": None, "graph": dump_root(self.root)}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        graph = fields.pop("graph")
        vars(self).update(fields)
        self.root = load_root(graph)
        self.template = build_template(self.root)
        find_leaf(self.template).bind_lane(self.owned[0], self.num_lanes)
        self._blank = find_blank(self.template)
        self._prepare()

    @property
    def owned(self) -> range:
        """The lanes of this rank."""
        return self.assignment.owned

    @property
    def round(self) -> int:
        """Rounds delivered in this cycle."""
        return self._round

    @property
    def cycle(self) -> int:
        """The run through the curriculum, from 0."""
        return self._cycle

    @property
    def places(self) -> int:
        """Batches that this rank yields in a round."""
        return self.assignment.most_owned if self.pads else len(self.owned)

    def estimate_rounds(self) -> int | None:
        """About how many rounds one cycle has, from sizes on storage, without reading. None: endless, or unknown."""
        estimate: Estimate | None = None
        for node in reversed(list(walk(self.template))):
            if isinstance(node, Estimated):
                estimate = node.estimate(estimate)
        return None if estimate is None else max(1, round(estimate.items / self.num_lanes))

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the beginning of the cycle (of the next one, when this one has ended), or to a state.

        Starts nothing: threads begin with the first ``next``.

        Raises:
            StateError: when the state cannot be continued here, naming each reason.
        """
        super().reset(initial_state)
        self._refuse_fork()
        if initial_state is not None:
            state = parse_state(initial_state)
            self._graph = check_loadable(
                state, self._graph, self.num_lanes, self.owned, pads=not self.pads or self._blank is not None
            )
            self._halt()
            self._load(state)
        elif self._dry_at_load:
            # Nobody asked for it: this rank must not start over alone.
            self._dry_at_load = False
        else:
            self._halt()
            if self._delivered and not self._ended:
                if self._replayed or self._round > 1:  # to look at the first batch is no mistake
                    logger.warning("iterating anew before the end of cycle %d replays it from its start", self._cycle)
                self._replayed = True
            self._rewind(self._cycle + self._ended)

    def next(self) -> Any:
        """The next batch of this rank: a lane's, or a blank one."""
        with self._turn:
            return self._deliver(1)[0]

    def next_round(self, arrange: Callable[[list[Any]], list[Any]] = list) -> list[Any]:
        """What is left of this rank's current round, usually all of it, delivered in one piece.

        Args:
            arrange: what is done to the list of batches; when it raises, nothing was delivered.
        """
        with self._turn:
            return self._deliver(None, arrange)

    def get_state(self) -> dict[str, Any]:
        """The state of this rank's lanes, as delivered. Takes no lock and starts nothing: safe in a signal handler."""
        lanes = dict(self._states)
        # Of the ranks' equal keys DCP keeps one: the round must not depend on which lanes this rank owns.
        given = [state.given for state in _read(lanes).values() if not state.dry]
        return State(self._graph, min([self._round, *given]), self.num_lanes, lanes).to_dict()

    def close(self) -> None:
        """Stops threads and worker processes. Iteration may go on later, from what was delivered."""
        self._halt()

    def use_supply(self, supply: Supply) -> None:
        """Takes the batches from elsewhere than this process's own pump, such as worker processes.

        For a loader that calls ``reset`` when its user iterates anew, and only then.
        """
        self._reset_by_itself = False
        self._halt()
        self._finalizer.detach()
        self._use(supply)

    def _use(self, supply: Supply) -> None:
        self._supply = supply
        self._finalizer = weakref.finalize(self, _shut_down, os.getpid(), supply, self.schedule, patience=_PATIENCE_S)

    def _rewind(self, cycle: int) -> None:
        """To the start of a cycle."""
        self._place(dict.fromkeys(self.owned, LaneState(cycle=cycle).to_json()), cycle, 0)
        self._loaded = False

    def _load(self, state: State) -> None:
        states = {lane: state.lane(lane) for lane in self.owned}
        round_index = min([state.round, *(lane.given for lane in states.values() if not lane.dry)])
        cycle = next(
            (lane.cycle for lane in states.values()), self._cycle
        )  # a worker's share may be blank batches alone
        self._place({lane: state.lanes[lane] for lane in self.owned}, cycle, round_index)
        self._loaded = True
        if len(state.lanes) == self.num_lanes and all(state.lane(lane).dry for lane in state.lanes):
            self._rewind(self._cycle + 1)

    def _place(self, states: dict[int, str], cycle: int, round_index: int) -> None:
        self._states = states
        self._cycle = cycle
        self._round = round_index
        self._slots = []
        self._delivered = False
        self._ended = False
        self._dry_at_load = False
        self._error = None

    def _launch(self) -> None:
        states = _read(self._states)
        self._running = True
        self._pid = os.getpid()
        self.schedule.begin(self._supply, states, self._round, is_fresh=not self._delivered)
        self._supply.start(states)  # only now, so that peers hear of it when it fails
        if self._slots and (self.schedule.round != self._round or not self.schedule.takes_place()):
            self._slots = []  # ranks that were interrupted elsewhere begin together
        self._round = self._begun = self.schedule.round
        if not self._logged:
            self._logged = True
            self._log()

    def _refuse_fork(self) -> None:
        # Threads do not come along, and their locks may be held; workers would be taken from the parent.
        if self._running and self._pid != os.getpid():
            raise RuntimeError(
                f"this process was forked from process {self._pid} while that was iterating these lanes: to iterate "
                "them here too, make a loader in this process, and load the other's state_dict() if need be"
            )

    def _halt(self) -> None:
        if self._running:
            self._running = False
            _shut_down(self._pid, self._supply, self.schedule)

    def _deliver(self, count: int | None, arrange: Callable[[list[Any]], list[Any]] = list) -> list[Any]:
        """Delivers slots of the current round: ``count``, or all that are left. Swapping in their state comes last."""
        self._refuse_fork()
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopIteration
        values: list[Any] = []
        states: dict[int, str] = {}
        try:
            if not self._running:
                self._launch()
            while not self._slots:
                self._open_round()
            slots = self._slots[:count]
            for lane in slots:
                if lane == BLANK:
                    values.append(self._make_blank())
                elif self.schedule.is_dry(lane):
                    values.append(self._make_blank())
                    states[lane] = self._dry_state(self._round + 1)
                else:
                    value, states[lane] = self._supply.take(lane)
                    self.schedule.gave(lane)
                    values.append(value)
            values = arrange(values)
            if self.pin_memory:
                values = pinned(values)
        except StopIteration:
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                self._error = error  # after Ctrl-C, iteration may go on from what was delivered
            self._halt()
            raise
        self._slots = self._slots[len(slots) :]
        self._delivered = True
        if not self._slots:
            self._advance()
        if len(states) == 1:  # one item of a dict changes atomically, and thousands of lanes need not be copied
            self._states.update(states)
        else:
            self._states = {**self._states, **states}
        return values

    def _open_round(self) -> None:
        slots = self.schedule.slots()
        self._states.update(dict.fromkeys(self.schedule.dry, self._dry_state(self._round)))
        if slots is None:
            self._end_cycle()
        elif slots:
            self._slots = slots
        else:
            self._advance()

    def _dry_state(self, given: int) -> str:
        """The state of a lane that has nothing more, and stood in ``given`` rounds, with blank batches at last."""
        return LaneState(given, self._cycle, dry=True).to_json()

    def _advance(self) -> None:
        self._round += 1
        self.schedule.round = self._round

    def _end_cycle(self) -> None:
        self._running = False
        self._supply.close()
        if self._round == 0:
            logger.warning(
                "cycle %d has ended without a single batch: is there less data than a batch takes (drop_last=True, "
                "end='drop'), or were all samples skipped, filtered out or empty?",
                self._cycle,
            )
        if self._loaded and not self._delivered:
            # Without a round, the state was saved at the very end: all ranks know that together, and go on into the
            # next cycle. This rank may also have given its part of the last round before it was saved.
            if self._is_global_end and self._round == self._begun:
                self._rewind(self._cycle + 1)
                self._launch()
                return
            self._dry_at_load = self._reset_by_itself
        self._ended = True
        raise StopIteration

    def _make_blank(self) -> Any:
        if self._blank is None:
            raise StateError("a blank batch is needed, and the root node has no blank()")
        return self._blank()

    def _log(self) -> None:
        parts = [node.summary() for node in reversed(list(walk(self.template))) if isinstance(node, Summarized)]
        rounds = self.estimate_rounds()
        owned = self.assignment.share(0, 1).owned
        parts.append(f"rank {self.assignment.rank} of {self.assignment.size} owns lanes {owned[0]}-{owned[-1]}")
        parts[-1] += f" of {self.num_lanes}"
        parts.append("endless" if rounds is None else f"about {rounds:,} rounds a cycle")
        logger.info("%s", "; ".join(part for part in parts if part))


def _digest(value: Any) -> int:
    """63 bits that tell whether plain values are equal."""
    return int.from_bytes(hashlib.blake2b(orjson.dumps(value), digest_size=8).digest(), "big") >> 1


def _read(lanes: dict[int, str]) -> dict[int, LaneState]:
    return {lane: LaneState.from_json(text, lane) for lane, text in lanes.items()}


def _shut_down(pid: int, supply: Supply, schedule: Schedule, *, patience: float | None = None) -> None:
    # A forked child must leave its parent's threads, workers and peers alone when it collects what it has inherited.
    if pid == os.getpid():
        schedule.leave()
        supply.close(patience)

"""MixtureWorkSource: several datasets, mixed by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from torchzephon.curriculum.checks import check_int
from torchzephon.curriculum.curriculum import Curriculum
from torchzephon.curriculum.deal import Deal
from torchzephon.curriculum.order import BlockSize, Shuffling
from torchzephon.curriculum.stopping import Policy, per_dataset, stopping_rule
from torchzephon.curriculum.work import Work
from torchzephon.data.dataset import Dataset
from torchzephon.errors import StateError
from torchzephon.nodes.graph import Estimate
from torchzephon.nodes.work_source import WorkSource

_POINTERS_AT_ONCE = 1024
_POINTERS_HELD = 2**20


class MixtureWorkSource(WorkSource):
    """Mixes datasets by weight, shuffles each of them, and deals the samples to the lanes: pointers, no I/O.

    The mixture is on target at every sample: the next one comes from the dataset with the smallest ``(n + 1/2) / w``,
    ``n`` being how many it has given. What lane ``l`` of ``V`` gets is a pure function of the arguments, the sizes of
    the shards, ``V`` and ``l``.

    Args:
        datasets: what to mix; names must differ. Their indexes are made or read here, if that was not done before.
        weights: dataset name -> share of the *samples*, any positive scale. None: in proportion to the numbers of
            samples.
        seed: of all shuffling, any integer.
        shuffle_shards: each epoch has another order of the shards.
        shuffle_within_shard: each epoch has another order of the rows of each shard. Random access: fine for local
            JSONL, slow for formats that decode many rows at once if ``Reader(memory=...)`` is small.
        shuffle_block_size: besides, consecutive stretches of this many samples are shuffled in themselves, across
            shards. ``"auto"``: 8 times the largest shard of all datasets. ``"global"``: one permutation of the whole
            dataset, which costs no memory here but reads all shards at once.
        stop_after_passes: the curriculum ends with the sample that completes this many passes over *every* dataset;
            smaller or heavier ones repeat meanwhile. This is the default, with 1, if none of the three is given.
        exhausted_policy: ``"repeat"``: datasets repeat without end. ``"stop"``: none repeats; the curriculum ends as
            soon as the next sample would come from a dataset that has none left. A mapping sets it by dataset
            (those not named stop, or repeat if ``stop_after_passes`` is given).
        max_repeats: repeats of a dataset after its first pass; where one more would begin, the curriculum ends.
            Means ``exhausted_policy="repeat"`` where that is not given. A mapping sets it by dataset.
        reshuffle_on_repeat: False: all epochs have the same order. A mapping sets it by dataset.
        chunk_size: consecutive picks of the mixture that go to one lane. None: at most 1024, fewer if a pass over the
            data would otherwise take fewer than 8 rounds of chunks.
        block_size: most samples in a block; never changes the data. None: as many as take a quarter of ``block_bytes``,
            256 at most, fewer with over 32 lanes, 16 at least.
        block_bytes: bytes after which a block is cut; never changes the data.

    Raises:
        ValueError: a value out of range, unknown or missing names, contradictory settings, a dataset without samples.
        TypeError: an argument of the wrong type.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Mapping[str, float] | None = None,
        *,
        seed: int = 0,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = False,
        shuffle_block_size: BlockSize = None,
        stop_after_passes: int | None = None,
        exhausted_policy: Policy | Mapping[str, Policy] | None = None,
        max_repeats: int | Mapping[str, int | None] | None = None,
        reshuffle_on_repeat: bool | Mapping[str, bool] = True,
        chunk_size: int | None = None,
        block_size: int | None = None,
        block_bytes: int = 4 * 2**20,
    ) -> None:
        super().__init__(datasets, block_size=block_size, block_bytes=block_bytes)
        names = [dataset.name for dataset in self.datasets]
        check_int("seed", seed)
        _check_bool("shuffle_shards", shuffle_shards)
        _check_bool("shuffle_within_shard", shuffle_within_shard)
        _check_block_size(shuffle_block_size)
        if chunk_size is not None:
            check_int("chunk_size", chunk_size, at_least=1)
        reshuffle = per_dataset("reshuffle_on_repeat", reshuffle_on_repeat, names, default=True)
        for value in reshuffle.values():
            _check_bool("reshuffle_on_repeat", value)
        self._options = {
            "seed": seed,
            "shuffle_shards": shuffle_shards,
            "shuffle_within_shard": shuffle_within_shard,
            "shuffle_block_size": shuffle_block_size,
            "reshuffle_on_repeat": _by_dataset(reshuffle),
        }
        self._stopping = stopping_rule(names, exhausted_policy, stop_after_passes, max_repeats)
        self._chunk_size = chunk_size
        self.curriculum = Curriculum(
            names,
            [np.array([shard.num_samples for shard in dataset.shards], np.int64) for dataset in self.datasets],
            None if weights is None else _checked_weights(weights, names),
            seed,
            Shuffling(shuffle_shards, shuffle_within_shard, shuffle_block_size),
            list(reshuffle.values()),
            self._stopping,
        )
        self.total = self.curriculum.total
        self.is_finite = self.total is not None
        self._held: _Held | None = None

    @property
    def deal(self) -> Deal:
        """How the picks of this cycle are dealt to the lanes."""
        return self.curriculum.deal(self.num_lanes or 1, self._chunk_size, self.cycle)

    def pointers(self, lane: int, num_lanes: int, cycle: int, start: int, stop: int) -> Work:
        """The samples ``[start, stop)`` of a lane; more are computed at once and held, which is much cheaper."""
        place = lane, num_lanes, cycle
        held = self._held
        if held is None or held.place != place or not held.start <= start <= stop <= held.stop:
            deal = self.curriculum.deal(num_lanes, self._chunk_size, cycle)
            count = max(stop - start, min(_POINTERS_AT_ONCE, _POINTERS_HELD // num_lanes))
            work = self.curriculum.work(deal, lane, start, start + count)
            held = self._held = _Held(place, start, start + count, work)
        return held.work[start - held.start : stop - held.start]

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the beginning of the cycle, or to the cycle and position of a state.

        Raises:
            StateError: the state is not one of a work source, or lies beyond the end of the lane.
        """
        super().reset(initial_state)
        samples = None if initial_state is None else self.deal.samples(self.lane or 0)
        if samples is not None and self.position > samples:
            raise StateError(
                f"the state is {self.position} samples into lane {self.lane or 0}, which has {samples} samples; was it"
                " saved with other datasets, another number of lanes or another place to stop?"
            )

    def describe(self) -> Mapping[str, Any]:
        """Datasets, weights, and all options that change the data."""
        weights = self.curriculum.mixture.segments[0].weights
        rule = self._stopping
        seed = self._options["seed"]
        names = self.curriculum.names
        policies = {name: "stop" if n == 1 else "repeat" for name, n in zip(names, rule.max_passes, strict=True)}
        repeats = {name: None if n is None or n == 1 else n - 1 for name, n in zip(names, rule.max_passes, strict=True)}
        return {
            **super().describe(),
            "weights": {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True)},
            **self._options,
            "seed": seed if -(2**63) <= seed < 2**64 else str(seed),  # what JSON can hold
            "stop_after_passes": rule.min_passes,
            "exhausted_policy": _by_dataset(policies),
            "max_repeats": _by_dataset(repeats),
            "chunk_size": self.deal.chunk_size,
        }

    def estimate(self, source: Estimate | None) -> Estimate | None:  # noqa: ARG002
        """What all lanes yield in one cycle, from the datasets' sizes; None for an endless curriculum."""
        planned = self.curriculum.samples_per_dataset()
        if self.total is None or planned is None:
            return None
        size = sum(
            count * dataset.num_bytes / dataset.num_samples
            for count, dataset in zip(planned, self.datasets, strict=True)
        )
        return Estimate(self.total / self.block_size, self.total, size, 0)

    def summary(self) -> str:
        """Samples, planned epochs, and the order: ``"web x0.8 (997 samples), code x14.2 (311 samples), ..."``."""
        sizes = self.curriculum.sizes
        if self.total is None:
            weights = self.curriculum.mixture.segments[0].weights
            shares = [f"{100 * weight / sum(weights):.3g}%" for weight in weights]
            planned = "endless"
        else:
            shares = [f"x{_short(epochs)}" for epochs in self.curriculum.planned_epochs()]
            planned = f"{self.total:,} samples planned"
        each = [
            f"{name} {share} ({size:,} samples)"
            for name, share, size in zip(self.curriculum.names, shares, sizes, strict=True)
        ]
        return ", ".join([*each, planned, self._order()])

    def _order(self) -> str:
        """What is shuffled, in words."""
        rows, block = self._options["shuffle_within_shard"], self._options["shuffle_block_size"]
        if block == "global":
            return "all samples of a dataset shuffled"
        parts = []
        if self._options["shuffle_shards"] and any(len(dataset.shards) > 1 for dataset in self.datasets):
            parts.append("shards shuffled")
        if rows:
            parts.append("rows shuffled within shards")
        if block is not None:
            parts.append("neighbours shuffled" if block == "auto" else f"every {block:,} neighbours shuffled")
        if not rows and block is None:
            parts.append("rows in order")
        return ", ".join(parts)


class _Held(NamedTuple):
    """Pointers of a lane that were computed together: those of ``[start, stop)``, as far as there are any."""

    place: tuple[int, int, int]
    start: int
    stop: int
    work: Work


def _short(number: float) -> str:
    return f"{number:.1f}" if number >= 0.1 else f"{number:.2g}"


def _by_dataset(values: Mapping[str, Any]) -> Any:
    """One value where all datasets have the same."""
    first, *others = values.values()
    return first if all(value == first for value in others) else dict(values)


def _check_bool(argument: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be a bool, got {value!r}")


def _check_block_size(value: Any) -> None:
    if value is None or value in ("auto", "global"):
        return
    if isinstance(value, str):
        raise ValueError(f"shuffle_block_size must be an int, 'auto', 'global' or None, got {value!r}")
    check_int("shuffle_block_size", value, at_least=1)


def _checked_weights(weights: Any, names: Sequence[str]) -> list[float]:
    """The weights in the order of the datasets."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must map dataset names to numbers, got {type(weights).__name__}")
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(f"weights names unknown datasets {unknown}; the datasets are {list(names)}")
    missing = [name for name in names if name not in weights]
    if missing:
        raise ValueError(f"weights lacks the datasets {missing}; leave a dataset out of the list to leave it out")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise TypeError(f"weights must be numbers, got {weight!r} for {name!r}")
        try:
            value = float(weight)
        except OverflowError:  # an int or a fraction beyond all floats
            value = math.inf
        if not 0 < value < math.inf:
            raise ValueError(
                f"weights must be finite and above 0, got {weight!r} for {name!r}; leave a dataset out of the list to"
                " leave it out"
            )
    return [weights[name] for name in names]

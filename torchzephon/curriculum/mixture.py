"""The mixture: which dataset gives pick ``t``, exactly, anywhere in an endless sequence.

One rule makes it: the next sample comes from the dataset with the smallest ``(n + 1/2) / w``, ``n`` being how many
it has given; where equal, from the first. That is the Sainte-Laguë (Webster) method of handing out seats. After
``t`` picks each of ``K`` datasets is within ``1/2 + K * w / 2`` of its target ``t * w``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FLOAT_EXACT = 2**53
_INT64 = 2**62
_WEIGHT_LIMIT = 2**46
_ROUNDED_WEIGHTS = 2**40
_EXACT_BITS = 128


def integer_weights(weights: Sequence[float]) -> list[int]:
    """The same ratios as integers, so that everything that follows is exact.

    A float means the decimal number that it is written as: 0.7 and 0.3 are 7 and 3. Ratios that would need integers
    with a sum over ``2**46`` (a third written as a float) are rounded to a sum of about ``2**40``, where an error of
    one half is half a sample in a trillion.

    Args:
        weights: finite numbers > 0, ``[K]``.

    Returns:
        ``K`` integers >= 1 with a sum below ``2**46``.
    """
    exact = [Fraction(weight) if isinstance(weight, int) else Fraction(str(float(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*integers)
    total = sum(integers)
    if total // divisor >= _WEIGHT_LIMIT:
        return [max(1, (2 * weight * _ROUNDED_WEIGHTS // total + 1) // 2) for weight in integers]
    return [weight // divisor for weight in integers]


class Picks(NamedTuple):
    """Some picks of the mixture.

    Attributes:
        dataset: int32 ``[n]``.
        number: int64 ``[n]``, the number of the sample within its dataset, through all epochs.
    """

    dataset: NDArray[np.int32]
    number: NDArray[np.int64]

    @classmethod
    def concatenate(cls, parts: Sequence[Picks]) -> Picks:
        """Joins picks, in order."""
        none = cls(np.zeros(0, np.int32), np.zeros(0, np.int64))
        return cls(
            np.concatenate([none.dataset, *(part.dataset for part in parts)]),
            np.concatenate([none.number, *(part.number for part in parts)]),
        )


@dataclass(frozen=True)
class Segment:
    """A stretch of the mixture with constant weights.

    Attributes:
        first: its first pick.
        weights: integers >= 0, one for each dataset, not all 0; with a sum below ``2**46``.
        starts: how many samples each dataset has given before it.
    """

    first: int
    weights: tuple[int, ...]
    starts: tuple[int, ...]

    def picks(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Picks:
        """The picks of some windows ``[start, start + count)``, one window after the other.

        Args:
            starts: int64 ``[W]``, W >= 1, ascending, counted from the segment's first pick.
            counts: int64 ``[W]``, >= 0.

        Returns:
            dataset int32 ``[sum(counts)]``; n int64, the number of the sample, from the dataset's beginning.
        """
        # In units of picks, the key of a dataset's m-th sample is (2m + 1) * total / (2 * weight). By the key `low`
        # at most `start` samples were given, by the key `high` at least `start + count`. What lies between is the
        # window and a few more: the candidates. All is counted from the first window's low, to stay in int64.
        if not counts.any():
            return Picks.concatenate([])
        slack = (len(self.weights) + 1) // 2
        low = np.maximum(0, starts - slack)
        origin = int(low[0])
        given, rest = self._given(origin)
        span = starts + counts + slack - low
        low -= origin
        stride = 2 * sum(self.weights)
        reach = int(low[-1] + span.max())
        if stride * (reach + 1) >= _INT64:
            return self._picks_by_halves(starts, counts)
        twice = np.array([2 * weight for weight in self.weights], np.int64)
        remainder = np.array(rest, np.int64)
        first = (low[:, None] * twice + remainder) // stride  # [W, K], relative to `given`
        number = ((low + span)[:, None] * twice + remainder) // stride - first
        window, dataset = np.divmod(np.repeat(np.arange(number.size, dtype=np.int64), number.ravel()), number.shape[1])
        before = np.cumsum(number) - number.ravel()
        m = np.arange(len(dataset), dtype=np.int64) + np.repeat(first.ravel() - before, number.ravel())
        # The key relative to the low of its window is a quotient of two small integers.
        numerator = stride * (m + 1) - 1 - remainder[dataset] - low[window] * twice[dataset]
        denominator = twice[dataset]
        if stride * (int(span.max()) + 1) < _FLOAT_EXACT:
            order = _sort(window, numerator, denominator)
        else:
            order = _sort_slowly(window, numerator, denominator)
        # Of each window's candidates, skip those that come before its start.
        skip = starts - origin - first.sum(axis=1) + (origin - sum(given))
        begin = np.cumsum(number.sum(axis=1)) - number.sum(axis=1) + skip
        chosen = order[
            np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()), dtype=np.int64)
        ]
        base = np.array([n + g for n, g in zip(self.starts, given, strict=True)], np.int64)
        return Picks(dataset[chosen].astype(np.int32), base[dataset[chosen]] + m[chosen])

    def _picks_by_halves(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Picks:
        """For windows that are too many or too long for int64."""
        if len(starts) == 1:
            half = counts // 2
            starts, counts = np.append(starts, starts + half), np.append(half, counts - half)
        halves = [self.picks(*part) for part in zip(np.array_split(starts, 2), np.array_split(counts, 2), strict=True)]
        return Picks.concatenate(halves)

    def _given(self, key: int) -> tuple[list[int], list[int]]:
        """How many samples each dataset has given by (and not at) a key in units of picks; and a remainder."""
        total = sum(self.weights)
        pairs = [divmod(2 * weight * key + total - 1, 2 * total) for weight in self.weights]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def counts(self, count: int) -> list[int]:
        """How many samples each dataset has given after the segment's first ``count`` picks, from its beginning."""
        given, _ = self._given(max(0, count - (len(self.weights) + 1) // 2))
        # That is a prefix of the sequence, and almost all of it: what is left are the picks that follow.
        start = sum(given)
        more = self.picks(np.array([start], np.int64), np.array([count - start], np.int64)).dataset
        added = np.bincount(more, minlength=len(given)).tolist()
        return [n + m + r for n, m, r in zip(self.starts, given, added, strict=True)]

    def before(self, dataset: int, n: int) -> int | None:
        """How many picks of the segment precede a dataset's ``n``-th (of the segment, from 0); None: there is none."""
        weight = self.weights[dataset]
        if not weight:
            return None
        count = n
        for other, other_weight in enumerate(self.weights):
            if other != dataset:
                # the m with (2m + 1) / other_weight < (2n + 1) / weight, or equal if the other dataset is the first
                bound = (2 * n + 1) * other_weight - weight + (other < dataset)
                count += max(0, -(-bound // (2 * weight)))
        return count


@dataclass(frozen=True)
class Mixture:
    """The endless sequence of picks, as a list of segments: weights may change, counts never jump.

    Attributes:
        segments: by first pick, ascending; the first segment starts at 0, the last one has no end.
    """

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, weights: Sequence[int]) -> Mixture:
        """One segment from the beginning. ``weights``: integers >= 0, not all 0."""
        return cls((Segment(0, tuple(weights), (0,) * len(weights)),))

    def appended(self, first: int, weights: Sequence[int]) -> Mixture:
        """The same up to pick ``first``, from there with other weights.

        Raises:
            ValueError: ``first`` lies before the last segment, or the weights do not fit.
        """
        last = self.segments[-1]
        if first < last.first:
            raise ValueError(f"a segment at pick {first} would start before the last one, at pick {last.first}")
        if len(weights) != len(last.weights) or min(weights) < 0 or not any(weights):
            raise ValueError(f"a segment needs {len(last.weights)} weights >= 0, not all 0; got {list(weights)}")
        kept = self.segments[:-1] if first == last.first else self.segments
        return Mixture((*kept, Segment(first, tuple(weights), tuple(self.counts(first)))))

    def picks(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Picks:
        """The picks of some windows ``[start, start + count)``, one window after the other.

        Args:
            starts: int64 ``[W]``, W >= 1, ascending; no window overlaps the next.
            counts: int64 ``[W]``, >= 0.
        """
        if len(self.segments) == 1:
            return self.segments[0].picks(starts, counts)
        parts = []
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            begin = np.maximum(starts, segment.first)
            end = starts + counts if following is None else np.minimum(starts + counts, following.first)
            inside = end > begin
            if inside.any():
                parts.append(segment.picks(begin[inside] - segment.first, (end - begin)[inside]))
        return Picks.concatenate(parts)

    def counts(self, count: int) -> list[int]:
        """How many samples each dataset has given after ``count`` picks."""
        segment = self.segments[self._segment_of(count)]
        return segment.counts(count - segment.first)

    def position(self, dataset: int, n: int) -> int | None:
        """The pick that takes sample ``n`` of a dataset; None if there is none."""
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            if following is None or n < following.starts[dataset]:
                before = segment.before(dataset, n - segment.starts[dataset])
                return None if before is None else segment.first + before
        raise AssertionError("the last segment has no end")

    def _segment_of(self, pick: int) -> int:
        return bisect_right(self.segments, pick, key=lambda segment: segment.first) - 1


def _sort(window: NDArray[np.intp], numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.intp]:
    """Sorts candidates, given by window and dataset, by window, key and dataset; exact while stride * key < 2**53.

    Division rounds correctly, so equal keys are equal floats, which a stable sort leaves in the order of the datasets.
    Different keys differ by a multiple of ``total / (2 * w1 * w2) >= 2 / total``, which is more than the space between
    two floats below ``2**53 / (2 * total)``: they are different floats.
    """
    order = np.argsort(numerator / denominator, kind="stable")
    return order[np.argsort(window[order], kind="stable")] if window[-1] else order


def _sort_slowly(
    window: NDArray[np.intp], numerator: NDArray[np.int64], denominator: NDArray[np.int64]
) -> NDArray[np.intp]:
    """The same with Python's integers, for long windows and large weights. Some ten times slower."""
    # Different quotients with denominators below 2**63 differ by more than 2**-126.
    keys = [
        (w, (n << _EXACT_BITS) // d)
        for w, n, d in zip(window.tolist(), numerator.tolist(), denominator.tolist(), strict=True)
    ]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.intp)

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

import numpy as np
from numpy.typing import NDArray

_FLOAT_EXACT = 2**53
_WEIGHT_BITS = 40
_EXACT_BITS = 192


def integer_weights(weights: Sequence[float]) -> list[int]:
    """The same ratios as integers, so that everything that follows is exact.

    A float means the decimal number that it is written as: 0.7 and 0.3 are 7 and 3. Ratios that would need integers
    with a sum over ``2**40`` (a third written as a float) are rounded to such: half a sample in a trillion.

    Args:
        weights: finite numbers > 0, ``[K]``.

    Returns:
        ``K`` integers >= 1.
    """
    exact = [Fraction(str(float(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * scale) for weight in exact]
    total = sum(integers) // math.gcd(*integers)
    if total >> _WEIGHT_BITS:
        integers = [max(1, ((weight << (_WEIGHT_BITS + 1)) // sum(integers) + 1) >> 1) for weight in integers]
    return integers


@dataclass(frozen=True)
class Segment:
    """A stretch of the mixture with constant weights.

    Attributes:
        first: its first pick.
        weights: integers >= 0, one for each dataset, not all 0.
        starts: how many samples each dataset has given before it.
    """

    first: int
    weights: tuple[int, ...]
    starts: tuple[int, ...]

    def picks(self, start: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The picks ``[start, start + count)``, both counted from the segment's first pick.

        Returns:
            dataset int32 ``[count]``; n int64 ``[count]``, the number of the sample, from the dataset's beginning.
        """
        # In units of picks the key of a dataset's m-th sample is (2m + 1) * total / (2 * weight). By the key `low`
        # at most `start` samples were given, by the key `low + span` at least `start + count`: what lies between is
        # `count` samples and a few more. Their keys relative to `low` are quotients of two integers.
        slack = (len(self.weights) + 1) // 2
        low = max(0, start - slack)
        span = start + count + slack - low
        total = sum(self.weights)
        given = [(2 * weight * low + total - 1) // (2 * total) for weight in self.weights]
        numerators = [(2 * m + 1) * total - 2 * weight * low for m, weight in zip(given, self.weights, strict=True)]
        numbers = [
            max(0, -((numerator - 2 * weight * span) // (2 * total)))
            for numerator, weight in zip(numerators, self.weights, strict=True)
        ]
        dataset = np.repeat(np.arange(len(numbers), dtype=np.int32), numbers)
        ends = np.cumsum(numbers)
        step = np.arange(len(dataset)) - np.repeat(ends - numbers, numbers)
        if 2 * total * (span + 1) < _FLOAT_EXACT:
            order = self._sort_floats(numerators, dataset, step, 2 * total)
        else:
            order = self._sort_integers(numerators, dataset, step, 2 * total)
        skipped = start - sum(given)
        order = order[skipped : skipped + count]
        base = np.array([n + m for n, m in zip(self.starts, given, strict=True)], np.int64)
        picked = dataset[order]
        return picked, base[picked] + step[order]

    def _sort_floats(
        self, numerators: list[int], dataset: NDArray[np.int32], step: NDArray[np.int64], stride: int
    ) -> NDArray[np.intp]:
        """Sorts by (key, dataset); numerators and denominators are below 2**53, so that division rounds correctly."""
        numerator = np.array(numerators, np.int64)[dataset] + step * stride
        denominator = np.array([2 * weight for weight in self.weights], np.int64)[dataset]
        key = numerator / denominator
        order = np.argsort(key, kind="stable")
        # Correct rounding keeps the order of different quotients and gives equal ones the same float, in the right
        # (dataset) order. Only different quotients that round to the same float are left to tell apart.
        same = np.flatnonzero(key[order[1:]] == key[order[:-1]])
        if len(same):
            left, right = order[same], order[same + 1]
            # The products may wrap around, their difference cannot: it is below 2**-52 * key * denominators.
            if (numerator[left] * denominator[right] != numerator[right] * denominator[left]).any():
                return self._sort_integers(numerators, dataset, step, stride)
        return order

    def _sort_integers(
        self, numerators: list[int], dataset: NDArray[np.int32], step: NDArray[np.int64], stride: int
    ) -> NDArray[np.intp]:
        """The same with Python's integers: for weights that floats cannot tell apart. A few times slower."""
        # Different quotients with denominators below 2**96 differ by more than 2**-192.
        keys = [
            ((numerators[d] + m * stride) << _EXACT_BITS) // (2 * self.weights[d])
            for d, m in zip(dataset.tolist(), step.tolist(), strict=True)
        ]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.intp)

    def counts(self, count: int) -> list[int]:
        """How many samples each dataset has given after the segment's first ``count`` picks, from its beginning."""
        slack = (len(self.weights) + 1) // 2
        start = max(0, count - slack)
        total = sum(self.weights)
        given = [(2 * weight * start + total - 1) // (2 * total) for weight in self.weights]
        rest = count - sum(given)
        # `given` is what came before the key `start`, a prefix of the sequence: the rest are the picks that follow.
        picked, _ = self.picks(count - rest, rest)
        more = np.bincount(picked, minlength=len(given)).tolist()
        return [n + m + r for n, m, r in zip(self.starts, given, more, strict=True)]

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
        return cls((Segment(0, _reduced(weights), (0,) * len(weights)),))

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
        return Mixture((*kept, Segment(first, _reduced(weights), tuple(self.counts(first)))))

    def picks(self, start: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The picks ``[start, start + count)``: dataset int32 ``[count]``, n int64 ``[count]``."""
        parts = []
        index = self._segment_of(start)
        stop = start + count
        while True:
            segment = self.segments[index]
            following = self.segments[index + 1 : index + 2]
            end = min([stop, *(other.first for other in following)])
            parts.append(segment.picks(start - segment.first, end - start))
            if end == stop:
                break
            start, index = end, index + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

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


def _reduced(weights: Sequence[int]) -> tuple[int, ...]:
    """Without a common divisor: small numbers are fast."""
    divisor = math.gcd(*weights)
    return tuple(weight // divisor for weight in weights)

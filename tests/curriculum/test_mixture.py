from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum import mixture as module
from torchzephon.curriculum.mixture import Mixture, integer_weights

AWKWARD = [1, 2, 3, 7, 10**9 + 7, 10**9 + 9, 2**40 - 1, 2**40, 2**40 + 1]
WEIGHTS = st.lists(st.one_of(st.integers(1, 20), st.sampled_from(AWKWARD)), min_size=1, max_size=6)


def sequence(weights, count, given=None):
    """The rule itself: the next pick is of the dataset with the smallest (n + 1/2) / w."""
    n = [0] * len(weights)
    picks = []
    for _ in range(count):
        candidates = [(Fraction(2 * n[d] + 1, w), d) for d, w in enumerate(weights) if w]
        d = min(candidates)[1]
        picks.append((d, n[d] + (given[d] if given else 0)))
        n[d] += 1
    return picks


def picks(mixture, *windows):
    starts, counts = (np.array(part, np.int64) for part in zip(*windows, strict=True))
    got = mixture.picks(starts, counts)
    assert got.dataset.dtype == np.int32
    assert got.number.dtype == np.int64
    return list(zip(got.dataset.tolist(), got.number.tolist(), strict=True))


@settings(deadline=None, max_examples=150)
@given(weights=WEIGHTS, size=st.integers(1, 60))
def test_windows_tile_the_sequence(weights, size):
    expected = sequence(weights, 120)
    mixture = Mixture.of(weights)
    windows = [(start, min(size, 120 - start)) for start in range(0, 120, size)]
    assert picks(mixture, *windows) == expected
    assert [pick for window in windows for pick in picks(mixture, window)] == expected


@settings(deadline=None, max_examples=100)
@given(weights=WEIGHTS, data=st.data())
def test_windows_with_gaps(weights, data):
    expected = sequence(weights, 200)
    edges = sorted(data.draw(st.lists(st.integers(0, 200), min_size=2, max_size=12)))
    windows = [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    assert picks(Mixture.of(weights), *windows) == [pick for a, n in windows for pick in expected[a : a + n]]


@settings(deadline=None, max_examples=100)
@given(weights=WEIGHTS)
def test_counts_and_positions(weights):
    expected = sequence(weights, 90)
    mixture = Mixture.of(weights)
    for t in range(0, 91, 9):
        assert mixture.counts(t) == [sum(d == pick[0] for pick in expected[:t]) for d in range(len(weights))]
    assert [mixture.position(d, n) for d, n in expected] == list(range(90))


@settings(deadline=None, max_examples=80)
@given(weights=WEIGHTS, start=st.one_of(st.integers(10**12, 10**15), st.integers(2**60, 2**61)))
def test_far_out_it_is_exact(weights, start):
    """Far out, a window is checked against the rule in exact arithmetic, pick by pick."""
    mixture = Mixture.of(weights)
    count = 40
    before, after = mixture.counts(start), mixture.counts(start + count)
    assert sum(before) == start
    n = list(before)
    got = picks(mixture, (start, count))
    for d, number in got:
        assert number == n[d]
        assert min((Fraction(2 * n[e] + 1, w), e) for e, w in enumerate(weights))[1] == d
        assert mixture.position(d, number) == sum(n)
        n[d] += 1
    assert n == after
    assert picks(mixture, (start, 7), (start + 7, count - 7)) == got
    assert picks(mixture, (start, 7), (start + 7 + 10**9, 3))[:7] == got[:7]


@settings(deadline=None, max_examples=100)
@given(weights=WEIGHTS, start=st.integers(0, 10**13))
def test_it_is_always_near_its_target(weights, start):
    total, k = sum(weights), len(weights)
    for weight, count in zip(weights, Mixture.of(weights).counts(start), strict=True):
        share = Fraction(weight, total)
        assert abs(count - start * share) <= Fraction(1, 2) + k * share / 2


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=5), start=st.integers(0, 10**12))
def test_floats_and_integers_sort_alike(weights, start):
    mixture = Mixture.of(integer_weights(weights))
    windows = (start, 50), (start + 1000, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FLOAT_EXACT", 2**80)
        floats = picks(mixture, *windows)
        patch.setattr(module, "_FLOAT_EXACT", 0)
        assert picks(mixture, *windows) == floats


def test_many_datasets():
    weights = [1 + d % 17 for d in range(100)]
    assert picks(Mixture.of(weights), (0, 200), (300, 100)) == [
        pick for a, b in ((0, 200), (300, 400)) for pick in sequence(weights, 400)[a:b]
    ]


def test_windows_too_long_for_int64_are_halved():
    mixture = Mixture.of([2**44, 2**44 - 1])
    start = 10**12
    whole = picks(mixture, (start, 70_000))
    assert whole[:50] == picks(mixture, (start, 50))
    assert whole[-50:] == picks(mixture, (start + 70_000 - 50, 50))


def test_nothing():
    assert picks(Mixture.of([1, 2]), (0, 0)) == []
    assert picks(Mixture.of([1, 2]), (10**12, 0), (10**12, 0)) == []
    assert Mixture.of([1, 2]).counts(0) == [0, 0]


@settings(deadline=None, max_examples=60)
@given(
    first=WEIGHTS.filter(lambda w: len(w) >= 2),
    cuts=st.lists(st.integers(0, 80), min_size=1, max_size=3),
    data=st.data(),
)
def test_segments_continue_the_counts(first, cuts, data):
    """A change of weights skips and repeats nothing; a weight of 0 pauses a dataset."""
    mixture, expected, start, weights = Mixture.of(first), [], 0, first
    given = [0] * len(first)
    for cut in [*sorted(cuts), 120]:
        part = sequence(weights, cut - start, given)
        expected += part
        for d, _ in part:
            given[d] += 1
        if cut < 120:
            weights = data.draw(
                st.lists(st.integers(0, 9), min_size=len(first), max_size=len(first)).filter(any), label="weights"
            )
            mixture = mixture.appended(cut, weights)
            start = cut
    assert picks(mixture, (0, 120)) == expected
    assert picks(mixture, *((s, 8) for s in range(0, 120, 8))) == expected
    assert picks(mixture, (3, 2), (77, 40)) == expected[3:5] + expected[77:117]
    assert [mixture.position(d, n) for d, n in expected] == list(range(120))
    for t in range(0, 121, 10):
        assert mixture.counts(t) == [sum(d == pick[0] for pick in expected[:t]) for d in range(len(first))]


def test_a_dataset_that_is_never_picked_again_has_no_position():
    mixture = Mixture.of([1, 1]).appended(10, [1, 0])
    assert mixture.position(1, 4) == 9
    assert mixture.position(1, 5) is None
    assert mixture.position(0, 5) == 10


def test_a_segment_at_the_same_pick_replaces_the_last():
    assert Mixture.of([1, 1]).appended(10, [1, 2]).appended(10, [3, 2]) == Mixture.of([1, 1]).appended(10, [3, 2])


@pytest.mark.parametrize(
    ("first", "weights", "message"),
    [(5, [1, 1], "before the last"), (20, [1], "2 weights"), (20, [0, 0], "not all 0"), (20, [1, -1], ">= 0")],
)
def test_segments_that_do_not_fit(first, weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture.of([1, 1]).appended(10, [1, 2]).appended(first, weights)


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([0.7, 0.3], [7, 3]),
        ([0.1, 0.2, 0.7], [1, 2, 7]),
        ([1e-3, 0.999], [1, 999]),
        ([2, 4.0], [1, 2]),
        ([10**12, 3 * 10**12], [1, 3]),
        ([np.float64(0.5), np.float32(0.25)], [2, 1]),
        ([1e300, 1e300], [1, 1]),
        ([5e-324, 5e-324], [1, 1]),
        ([0.1], [1]),
    ],
)
def test_weights_mean_what_is_written(weights, integers):
    assert integer_weights(weights) == integers


@settings(deadline=None)
@given(st.lists(st.floats(5e-324, 1e300), min_size=1, max_size=8))
def test_weights_that_need_too_many_digits_are_rounded(weights):
    integers = integer_weights(weights)
    assert min(integers) >= 1
    assert sum(integers) < 2**46
    total = sum(map(Fraction, weights))
    for weight, integer in zip(weights, integers, strict=True):
        assert abs(Fraction(integer, sum(integers)) - Fraction(weight) / total) <= Fraction(len(weights) + 1, 2**40)

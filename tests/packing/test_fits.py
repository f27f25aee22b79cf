import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.packing.best_fit import best_fit
from torchzephon.packing.first_fit import first_fit

pieces = st.integers(1, 40).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), max_size=60))
)


def slow_first_fit(lengths, capacity):
    rooms, chosen = [], []
    for length in lengths:
        at = next((i for i, room in enumerate(rooms) if room >= length), len(rooms))
        if at == len(rooms):
            rooms.append(capacity)
        rooms[at] -= length
        chosen.append(at)
    return chosen


def slow_best_fit(lengths, capacity, waited):
    rooms, chosen = [], [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda i: (i >= waited, -lengths[i], i))
    for i in order:
        fitting = [(room, at) for at, room in enumerate(rooms) if room >= lengths[i]]
        at = min(fitting)[1] if fitting else len(rooms)
        if at == len(rooms):
            rooms.append(capacity)
        rooms[at] -= lengths[i]
        chosen[i] = at
    return chosen


@settings(deadline=None, max_examples=100)
@given(pieces, st.integers(0, 5))
def test_best_fit_is_the_plain_algorithm(case, waited):
    capacity, lengths = case
    waited = min(waited, len(lengths))
    assert best_fit(np.asarray(lengths, np.int64), capacity, waited).tolist() == slow_best_fit(
        lengths, capacity, waited
    )


@settings(deadline=None, max_examples=100)
@given(pieces)
def test_first_fit_is_the_plain_algorithm(case):
    capacity, lengths = case
    assert first_fit(np.asarray(lengths, np.int64), capacity).tolist() == slow_first_fit(lengths, capacity)


@settings(deadline=None, max_examples=100)
@given(pieces, st.sampled_from([best_fit, first_fit]))
def test_no_sequence_overflows_and_none_could_be_joined(case, fit):
    capacity, lengths = case
    chosen = fit(np.asarray(lengths, np.int64), capacity)
    fills = np.bincount(chosen, weights=lengths) if lengths else np.zeros(0)
    assert len(chosen) == len(lengths)
    assert (fills > 0).all()  # numbered without gaps
    assert (fills <= capacity).all()
    assert all(a + b > capacity for a, b in itertools.pairwise(fills))


@pytest.mark.parametrize("fit", [best_fit, first_fit])
def test_a_very_large_window(fit):
    lengths = np.random.default_rng(0).integers(1, 10, 50_000)
    fills = np.bincount(fit(lengths, 8193), weights=lengths)
    assert len(fills) <= -(-int(lengths.sum()) // 8193) + 1


def documents(name, rng, count):
    if name == "prose":
        return rng.lognormal(np.log(1000) - 0.5, 1, count)
    if name == "code":
        return rng.lognormal(np.log(3000) - 1, 1.5, count)
    return 200 * (1 + rng.pareto(1.2, count))


@pytest.mark.parametrize("name", ["prose", "code", "heavy-tailed"])
def test_best_fit_is_dense_on_realistic_lengths(name):
    lengths = np.maximum(documents(name, np.random.default_rng(0), 1024), 1).astype(np.int64) % 2049
    lengths = lengths[lengths > 0]
    sequences = int(best_fit(lengths, 2049).max()) + 1
    assert lengths.sum() / (sequences * 2049) > 0.97
    assert sequences <= -(-int(lengths.sum()) // 2049) * 1.03

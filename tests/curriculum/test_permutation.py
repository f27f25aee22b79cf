import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum.keys import derive, mix, shuffled
from torchzephon.curriculum.permutation import permute


def keys(count, seed=0):
    return mix(np.full(count, derive(seed, "test"), np.uint64), np.arange(count))


def permuted(index, size, key):
    index = np.asarray(index, np.int64)
    return permute(index, np.full_like(index, size), np.full(len(index), key, np.uint64))


@settings(deadline=None, max_examples=200)
@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_it_is_a_permutation(size, key):
    assert sorted(permuted(np.arange(size), size, key).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 66, 100, 255, 256, 257, 4095, 4096, 4097, 10**5])
def test_it_is_a_permutation_of_sizes_on_the_edge(size):
    assert sorted(permuted(np.arange(size), size, 7).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2**31, 10**12, 10**12 + 39, 2**53 + 1, 2**60 - 1, 2**60])
def test_huge_ranges_stay_inside_and_do_not_collide(size):
    index = np.concatenate([np.arange(5000), size - 1 - np.arange(5000), np.arange(1, 5000) * (size // 5001)])
    index = np.unique(index)
    got = permuted(index.astype(np.int64), size, 1)
    assert got.min() >= 0
    assert got.max() < size
    assert len(np.unique(got)) == len(index)
    assert abs(got.mean() / size - 0.5) < 0.02


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 2**62), st.integers(0, 2**64 - 1)), max_size=40))
def test_every_element_has_its_own_size_and_key(elements):
    size = np.array([e[0] for e in elements], np.int64)
    index = np.array([e[1] % e[0] for e in elements], np.int64)
    key = np.array([e[2] for e in elements], np.uint64)
    alone = [int(permute(index[i : i + 1], size[i : i + 1], key[i : i + 1])[0]) for i in range(len(elements))]
    assert permute(index, size, key).tolist() == alone


def chi_square_z(counts):
    """How far counts are from all equal, in standard deviations."""
    expected = counts.sum() / len(counts)
    free = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_permutations_of_a_tiny_range_are_equally_likely(size):
    number = 60_000
    key = keys(number)
    columns = [permute(np.full(number, i), np.full(number, size), key) for i in range(size)]
    codes = sum(column * size**i for i, column in enumerate(columns))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == math.factorial(size)
    assert abs(chi_square_z(counts)) < 4.5


@pytest.mark.parametrize("size", [17, 32, 33, 50, 65, 100])
@pytest.mark.parametrize("pair", [(0, 1), (0, -1), (3, 7), (-2, -1)])
def test_pairs_go_anywhere(size, pair):
    number = 60_000
    key = keys(number, seed=size)
    first, second = (permute(np.full(number, i % size), np.full(number, size), key) for i in pair)
    assert (first != second).all()
    assert abs(chi_square_z(np.bincount(first, minlength=size))) < 4.5
    assert abs(chi_square_z(np.bincount((second - first) % size, minlength=size)[1:])) < 4.5


@pytest.mark.parametrize("size", [1000, 10**6, 10**9])
def test_neighbours_are_torn_apart(size):
    got = permuted(np.arange(1000), size, 3)
    steps = np.diff(got) % size
    assert abs(np.mean(steps / size) - 0.5) < 0.05
    assert abs(np.corrcoef(got[1:], got[:-1])[0, 1]) < 0.12


@pytest.mark.parametrize("size", [10, 1000, 10**9])
def test_another_key_is_an_unrelated_permutation(size):
    index = np.arange(min(size, 1000))
    same = [np.mean(permuted(index, size, key) == permuted(index, size, key + 1)) for key in range(100)]
    assert np.mean(same) < 2.0 / min(size, 1000) + 0.01


def test_shuffled_is_a_permutation_and_read_only():
    order = shuffled(1000, 5)
    assert sorted(order.tolist()) == list(range(1000))
    assert not order.flags.writeable
    assert shuffled(0, 5).tolist() == []
    assert shuffled(1000, 6).tolist() != order.tolist()


def test_shuffles_of_three_are_equally_likely():
    _, counts = np.unique([shuffled(3, int(key)) for key in keys(6000)], axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(chi_square_z(counts)) < 4.5


def test_results_never_change():
    """A change here silently reorders the data of every run that resumes."""
    assert derive(42, "a", 1) == 0xCA66DD1A157D986F
    assert mix(np.array([1, 2**63], np.uint64), np.array([0, 5])).tolist() == [6238072747940578789, 903114586442990803]
    assert permuted([0, 1, 2], 3, 11).tolist() == [1, 0, 2]
    assert permuted(range(6), 1000, 11).tolist() == [473, 904, 608, 596, 123, 507]
    assert permuted([0, 1, 10**12], 10**12 + 1, 11).tolist() == [507950843661, 379161669416, 605623876146]
    assert shuffled(8, 11).tolist() == [6, 4, 1, 0, 3, 5, 2, 7]


def test_labels_are_not_confused():
    assert len({derive(1, "a", "b"), derive(1, "ab"), derive(1, "a", "b", ""), derive(1, "1"), derive(1, 1)}) == 5
    assert derive(-1) != derive(1)
    assert derive(2**200) != derive(0)

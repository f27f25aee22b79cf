import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum.order import Orders, Shuffling

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)
OPTIONS = st.builds(
    Shuffling,
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 40), st.just("auto"), st.just("global")),
)


def make(sizes, shuffling, *, seed=0, reshuffle=None, names=None):
    names = names or [f"d{i}" for i in range(len(sizes))]
    return Orders(names, [np.array(s, np.int64) for s in sizes], seed, shuffling, reshuffle or [True] * len(sizes))


def read(orders, dataset, n, cycle=0):
    """-> (epoch, shard, row) of samples."""
    n = np.asarray(n, np.int64)
    work = orders.locate(np.full(len(n), dataset, np.int32), n, cycle)
    assert [a.dtype for a in (work.dataset, work.epoch, work.shard, work.row)] == [
        np.int32,
        np.int64,
        np.int32,
        np.int64,
    ]
    return list(zip(work.epoch.tolist(), work.shard.tolist(), work.row.tolist(), strict=True))


def epoch(orders, dataset, size, number=0, cycle=0):
    """-> (shard, row) of the samples of one epoch."""
    pointers = read(orders, dataset, range(number * size, (number + 1) * size), cycle)
    assert {p[0] for p in pointers} == {number}
    return [p[1:] for p in pointers]


def all_rows(sizes):
    return [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]


@settings(deadline=None, max_examples=150)
@given(sizes=st.lists(SIZES, min_size=1, max_size=3), shuffling=OPTIONS, seed=st.integers(0, 2**80), data=st.data())
def test_every_epoch_has_every_row_once(sizes, shuffling, seed, data):
    orders = make(sizes, shuffling, seed=seed)
    for d, shards in enumerate(sizes):
        size = sum(shards)
        for number in (0, 1, data.draw(st.integers(2, 10**9))):
            assert sorted(epoch(orders, d, size, number)) == all_rows(shards)


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(SIZES, min_size=1, max_size=4), shuffling=OPTIONS, data=st.data())
def test_any_samples_can_be_asked_for_together(sizes, shuffling, data):
    orders = make(sizes, shuffling, reshuffle=[i % 2 == 0 for i in range(len(sizes))])
    asked = data.draw(st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, 200)), max_size=30))
    dataset = np.array([a[0] for a in asked], np.int32)
    n = np.array([a[1] for a in asked], np.int64)
    work = orders.locate(dataset, n, 2)
    together = list(zip(work.epoch.tolist(), work.shard.tolist(), work.row.tolist(), strict=True))
    assert together == [read(orders, d, [m], 2)[0] for d, m in asked]
    assert work.dataset.tolist() == dataset.tolist()


def test_no_shuffling_is_file_order():
    sizes = [3, 0, 2, 5]
    orders = make([sizes], Shuffling(shards=False))
    assert epoch(orders, 0, 10) == epoch(orders, 0, 10, 7) == all_rows(sizes)


def test_shuffled_shards_stay_whole():
    sizes = [4, 0, 2, 7, 1, 5]
    orders = make([sizes], Shuffling())
    orders_seen = set()
    for number in range(30):
        rows = epoch(orders, 0, sum(sizes), number)
        shards = list(dict.fromkeys(shard for shard, _ in rows))
        assert rows == [(shard, row) for shard in shards for row in range(sizes[shard])]
        orders_seen.add(tuple(shards))
    assert len(orders_seen) > 20


def test_shuffling_within_shards_keeps_the_shards_together():
    sizes = [50, 40, 60]
    plain, within = make([sizes], Shuffling()), make([sizes], Shuffling(within_shard=True))
    for number in range(3):
        a, b = epoch(plain, 0, 150, number), epoch(within, 0, 150, number)
        assert [shard for shard, _ in a] == [shard for shard, _ in b]
        assert a != b
    rows = [row for shard, row in epoch(within, 0, 150) if shard == 0]
    assert rows != [row for shard, row in epoch(within, 0, 150, 1) if shard == 0]


@pytest.mark.parametrize("within", [False, True])
def test_blocks_are_shuffled_in_themselves(within):
    sizes = [10] * 12
    plain = make([sizes], Shuffling(within_shard=within))
    mixed = make([sizes], Shuffling(within_shard=within, block_size=32))
    a, b = epoch(plain, 0, 120), epoch(mixed, 0, 120)
    for start in range(0, 120, 32):
        assert sorted(a[start : start + 32]) == sorted(b[start : start + 32])
        assert a[start : start + 32] != b[start : start + 32]
    assert epoch(mixed, 0, 120, 1) != b


def test_auto_is_eight_times_the_largest_shard_of_all():
    sizes = [[2] * 100, [3] * 40]
    auto, explicit = make(sizes, Shuffling(block_size="auto")), make(sizes, Shuffling(block_size=24))
    assert epoch(auto, 0, 200) == epoch(explicit, 0, 200)
    assert epoch(auto, 1, 120) == epoch(explicit, 1, 120)


def test_a_block_as_large_as_the_dataset_is_global():
    sizes = [[5] * 10]
    whole = epoch(make(sizes, Shuffling(block_size="global")), 0, 50)
    assert whole == epoch(make(sizes, Shuffling(block_size=50)), 0, 50)
    assert whole == epoch(make(sizes, Shuffling(block_size=10**9, within_shard=True)), 0, 50)
    assert whole != epoch(make(sizes, Shuffling(block_size=49)), 0, 50)


def test_blocks_of_one_are_none():
    assert epoch(make([[5] * 4], Shuffling(block_size=1)), 0, 20) == epoch(make([[5] * 4], Shuffling()), 0, 20)


@pytest.mark.parametrize(
    "shuffling",
    [
        Shuffling(),
        Shuffling(True, True),
        Shuffling(False, True),
        Shuffling(block_size=7),
        Shuffling(block_size="global"),
    ],
)
def test_reshuffle_cycle_and_seed(shuffling):
    sizes = [[6] * 9, [6] * 9]
    orders = make(sizes, shuffling, reshuffle=[True, False])
    assert epoch(orders, 0, 54, 0) != epoch(orders, 0, 54, 1)
    assert epoch(orders, 1, 54, 0) == epoch(orders, 1, 54, 1)
    assert epoch(orders, 1, 54, 0) != epoch(orders, 1, 54, 0, cycle=1)
    assert epoch(orders, 0, 54) != epoch(orders, 1, 54)
    assert epoch(make(sizes, shuffling, seed=1), 0, 54) != epoch(orders, 0, 54)


def test_other_datasets_do_not_change_a_dataset():
    sizes = [6] * 9
    shuffling = Shuffling(within_shard=True, block_size=10)
    alone = make([sizes], shuffling, names=["b"])
    among = make([[3, 4], sizes, [5]], shuffling, names=["a", "b", "c"])
    assert epoch(alone, 0, 54) == epoch(among, 1, 54)


def test_a_trillion_samples():
    """Ten thousand shards of a hundred million rows: no epoch is ever laid out."""
    sizes = np.full(10_000, 10**8, np.int64)
    for shuffling in (Shuffling(True, True), Shuffling(block_size="auto"), Shuffling(block_size="global")):
        orders = make([sizes], shuffling)
        n = 3 * 10**12 + np.arange(0, 10**12, 10**9 + 7)
        pointers = read(orders, 0, n)
        assert len(set(pointers)) == len(n)
        assert all(e == 3 and 0 <= shard < 10_000 and 0 <= row < 10**8 for e, shard, row in pointers)
        assert len({shard for _, shard, _ in pointers}) > 500


def test_every_row_can_come_first():
    orders = make([[1] * 4], Shuffling())
    first = Counter(read(orders, 0, [4 * number])[0][1] for number in range(400))
    assert min(first.values()) > 60


def test_pickle():
    orders = make([[6] * 9], Shuffling(True, True, 10))
    assert epoch(pickle.loads(pickle.dumps(orders)), 0, 54) == epoch(orders, 0, 54)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_a_dataset_without_samples_is_refused(sizes):
    with pytest.raises(ValueError, match="dataset 'd1' has no samples"):
        make([[1], sizes], Shuffling())

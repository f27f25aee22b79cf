import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum.curriculum import Curriculum
from torchzephon.curriculum.order import Shuffling
from torchzephon.curriculum.stopping import Stopping


def make(sizes, weights=None, *, seed=0, shuffling=None, stopping=None):
    names = [f"d{i}" for i in range(len(sizes))]
    return Curriculum(
        names,
        [np.array(s, np.int64) for s in sizes],
        weights,
        seed,
        shuffling or Shuffling(),
        [True] * len(sizes),
        stopping or Stopping(None, (1,) * len(sizes)),
    )


def pointers(work):
    columns = work.dataset, work.epoch, work.shard, work.row
    return list(zip(*(column.tolist() for column in columns), strict=True))


def lane(curriculum, index, num_lanes, chunk_size=None, cycle=0, stop=10**6):
    return pointers(curriculum.work(curriculum.deal(num_lanes, chunk_size, cycle), index, 0, stop))


@settings(deadline=None, max_examples=100)
@given(
    sizes=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any), min_size=1, max_size=3),
    num_lanes=st.integers(1, 40),
    chunk_size=st.one_of(st.none(), st.integers(1, 50)),
    within=st.booleans(),
    block=st.one_of(st.none(), st.integers(1, 30), st.sampled_from(["auto", "global"])),
)
def test_every_sample_exactly_once(sizes, num_lanes, chunk_size, within, block):
    curriculum = make(sizes, shuffling=Shuffling(within_shard=within, block_size=block))
    lanes = [lane(curriculum, index, num_lanes, chunk_size) for index in range(num_lanes)]
    everything = [(d, 0, s, row) for d, shards in enumerate(sizes) for s, n in enumerate(shards) for row in range(n)]
    assert sorted(p for part in lanes for p in part) == everything
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


def test_one_lane_is_the_sequence_and_lanes_partition_it():
    curriculum = make([[5, 5], [7]], [0.7, 0.3], stopping=Stopping(3, (None, None)))
    whole = lane(curriculum, 0, 1)
    assert len(whole) == curriculum.total
    parts = [lane(curriculum, index, 4) for index in range(4)]
    assert sorted(p for part in parts for p in part) == sorted(whole)
    counts = np.bincount([p[0] for p in whole]).tolist()
    assert counts == curriculum.samples_per_dataset()
    assert curriculum.planned_epochs() == [counts[0] / 10, counts[1] / 7]
    assert min(curriculum.planned_epochs()) == 3


def test_a_lane_can_be_read_in_any_pieces():
    curriculum = make([[100] * 10, [30]], [1, 2], stopping=Stopping(None, (None, None)))
    deal = curriculum.deal(8, 5, 0)
    whole = lane(curriculum, 3, 8, 5, stop=200)
    assert len(whole) == 200
    pieces = [pointers(curriculum.work(deal, 3, start, start + 7)) for start in range(0, 200, 7)]
    assert [p for piece in pieces for p in piece][:200] == whole


def test_small_datasets_reach_every_lane_in_every_epoch():
    curriculum = make([[60], [1000]], [0.1, 0.9], stopping=Stopping(None, (None, None)))
    lanes = [lane(curriculum, index, 8, stop=2000) for index in range(8)]
    assert all(sum(p[0] == 0 for p in part) > 150 for part in lanes)
    epochs = [{p[1] for p in part[1000:1100] if p[0] == 1} for part in lanes]
    assert max(max(e) for e in epochs) - min(min(e) for e in epochs) <= 2


def test_lanes_do_not_resonate_with_the_mixture():
    curriculum = make([[10], [10]], [1, 1], stopping=Stopping(None, (None, None)))
    for index in range(2):
        share = np.mean([p[0] for p in lane(curriculum, index, 2, 1, stop=2000)])
        assert 0.45 < share < 0.55


def test_cycles_and_seeds_differ_but_cover_the_same():
    first = make([[40, 30, 20]])
    orders = [
        lane(curriculum, 0, 2, cycle=cycle) + lane(curriculum, 1, 2, cycle=cycle)
        for curriculum, cycle in ((first, 0), (first, 1), (make([[40, 30, 20]], seed=1), 0))
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({tuple(order) for order in orders}) == 3


def test_endless():
    curriculum = make([[3], [4]], [1, 1], stopping=Stopping(None, (None, None)))
    assert curriculum.total is None
    assert curriculum.samples_per_dataset() is None
    assert curriculum.planned_epochs() == [math.inf, math.inf]
    assert curriculum.picks_per_pass == 8
    assert len(lane(curriculum, 0, 1, stop=1000)) == 1000


@pytest.mark.parametrize(
    ("stopping", "picks"),
    [(Stopping(1, (None, None)), 2000), (Stopping(5, (None, None)), 2000), (Stopping(None, (1, 1)), 20)],
)
def test_picks_per_pass_is_a_pass_over_the_slowest_or_all_there_is(stopping, picks):
    assert abs(make([[10], [1000]], [1, 1], stopping=stopping).picks_per_pass - picks) <= 1


def test_a_trillion_samples():
    curriculum = make([np.full(1000, 10**9)], shuffling=Shuffling(True, True))
    assert curriculum.total == 10**12
    deal = curriculum.deal(4096, None, 0)
    end = deal.samples(17)
    assert end in (10**12 // 4096, 10**12 // 4096 + 1)
    assert len(curriculum.work(deal, 17, end - 10, end + 10)) == 10
    assert len(curriculum.work(deal, 17, end, end + 10)) == 0


def test_it_is_shared_by_lanes_and_travels_to_workers():
    curriculum = make([[40, 30, 20]])
    assert copy.deepcopy(curriculum) is curriculum
    assert copy.deepcopy({"lanes": [curriculum]})["lanes"][0] is curriculum
    there = pickle.loads(pickle.dumps(curriculum))
    assert lane(there, 1, 3) == lane(curriculum, 1, 3)


def test_threads():
    curriculum = make([[10] * 50, [3] * 7], [1, 5], stopping=Stopping(4, (None, None)), shuffling=Shuffling(True, True))
    expected = [lane(curriculum, index, 16) for index in range(16)]
    fresh = pickle.loads(pickle.dumps(curriculum))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: lane(fresh, index, 16), range(16))) == expected


def test_results_never_change():
    """A change here silently reorders the data of every run that resumes."""
    curriculum = make(
        [[4, 3], [9]], [0.7, 0.3], seed=11, shuffling=Shuffling(True, True, 4), stopping=Stopping(1, (None, None))
    )
    assert lane(curriculum, 1, 3, 2) == [
        (0, 0, 0, 0),
        (1, 0, 0, 7),
        (0, 0, 1, 0),
        (0, 0, 1, 2),
        (0, 1, 0, 1),
        (0, 1, 0, 2),
        (0, 2, 0, 1),
        (1, 0, 0, 6),
        (1, 0, 0, 3),
        (0, 2, 1, 0),
    ]

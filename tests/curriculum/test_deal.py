import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum.deal import Deal, default_chunk_size


def picks(deal, lane, start, stop):
    windows = deal.windows(lane, start, stop)
    return [t for s, n in zip(windows.starts.tolist(), windows.counts.tolist(), strict=True) for t in range(s, s + n)]


@settings(deadline=None, max_examples=100)
@given(
    total=st.integers(0, 500), num_lanes=st.integers(1, 40), chunk_size=st.integers(1, 30), seed=st.integers(-5, 2**70)
)
def test_every_pick_goes_to_one_lane_and_lanes_are_even(total, num_lanes, chunk_size, seed):
    deal = Deal(total, num_lanes, chunk_size, seed, 0)
    dealt = [picks(deal, lane, 0, total + 10) for lane in range(num_lanes)]
    assert sorted(t for lane in dealt for t in lane) == list(range(total))
    assert [len(lane) for lane in dealt] == [deal.samples(lane) for lane in range(num_lanes)]
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@settings(deadline=None, max_examples=100)
@given(
    total=st.one_of(st.none(), st.integers(0, 400)),
    num_lanes=st.integers(1, 9),
    chunk_size=st.integers(1, 12),
    data=st.data(),
)
def test_a_lane_can_be_read_in_any_pieces(total, num_lanes, chunk_size, data):
    deal = Deal(total, num_lanes, chunk_size, 3, 1)
    lane = data.draw(st.integers(0, num_lanes - 1))
    whole = picks(deal, lane, 0, 100)
    start = data.draw(st.integers(0, 110))
    stop = data.draw(st.integers(start, 110))
    assert picks(deal, lane, start, stop) == picks(deal, lane, 0, 110)[start:stop]
    assert whole == sorted(whole)


def test_a_group_gives_every_lane_one_whole_chunk():
    deal = Deal(None, 8, 16, 5, 0)
    for group in (0, 1, 10**9):
        starts = [picks(deal, lane, group * 16, group * 16 + 16)[0] for lane in range(8)]
        assert sorted(starts) == [group * 128 + 16 * place for place in range(8)]
    assert deal.samples(3) is None


def test_groups_cycles_and_seeds_differ():
    def places(seed, cycle, group):
        deal = Deal(None, 64, 1, seed, cycle)
        return tuple(picks(deal, lane, group, group + 1)[0] - group * 64 for lane in range(64))

    assert len({places(0, 0, 0), places(0, 0, 1), places(0, 1, 0), places(1, 0, 0)}) == 4


def test_far_out():
    deal = Deal(10**15 + 1, 4096, 1024, 0, 0)
    samples = [deal.samples(lane) for lane in (0, 17, 4095)]
    assert all(n in ((10**15 + 1) // 4096, (10**15 + 1) // 4096 + 1) for n in samples)
    last = picks(deal, 17, samples[1] - 1, samples[1] + 5)
    assert len(last) == 1
    assert 0 <= 10**15 - last[0] < 4096 * 1024


def test_windows_beyond_the_end_are_empty():
    deal = Deal(100, 4, 8, 0, 0)
    assert picks(deal, 0, 10**6, 10**6 + 5) == []
    assert picks(Deal(0, 4, 8, 0, 0), 0, 0, 5) == []


@pytest.mark.parametrize(
    ("picks_per_pass", "num_lanes", "size"),
    [(10**9, 64, 1024), (10_000, 32, 39), (100, 64, 1), (1, 1, 1), (8 * 1024, 1, 1024), (8 * 1024 - 8, 1, 1023)],
)
def test_default_chunk_size(picks_per_pass, num_lanes, size):
    assert default_chunk_size(picks_per_pass, num_lanes) == size


def test_windows_are_int64():
    windows = Deal(None, 3, 5, 0, 0).windows(1, 0, 12)
    assert windows.starts.dtype == windows.counts.dtype == np.int64

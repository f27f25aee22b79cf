"""Decoding ahead: what the next block needs is in the pool before it is asked for, and nothing else changes."""

import logging
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torchzephon as tz
from torchzephon.data.background import Task
from torchzephon.data.formats import parquet_file
from torchzephon.nodes import decode_ahead


def make(tmp_path, rows=400, group=20):
    table = pa.table({"ids": [[row] * 100 for row in range(rows)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group, compression="none", use_dictionary=False)
    return tz.Dataset("tokens", str(tmp_path))


def reader(dataset, **options):
    node = tz.Reader(tz.MixtureWorkSource([dataset], block_size=20, exhausted_policy="stop"), **options)
    node.reset()
    return node


def settle():
    done = threading.Event()  # to ask for the result would be to do it here
    Task(done.set, "decoder")
    assert done.wait(10)


@pytest.fixture
def one_group_a_unit(monkeypatch):
    monkeypatch.setattr(parquet_file, "UNIT_BYTES", 1)


def test_the_next_block_is_decoded_before_it_is_asked_for(tmp_path, one_group_a_unit, monkeypatch):
    by = []
    decode = parquet_file.RowGroups.decode

    def noting(*args):
        by.append(threading.current_thread().name)
        return decode(*args)

    monkeypatch.setattr(parquet_file.RowGroups, "decode", noting)
    node = reader(make(tmp_path), memory=10**8 + 1)
    rows = []
    for block in node:
        rows += [int(ids[0]) for ids in block.columns["ids"]]
        settle()
    assert rows == list(range(400))
    assert sorted(by) == ["MainThread"] + ["torchzephon-decoder"] * 19


@pytest.mark.parametrize("resumed", [False, True])
def test_what_the_next_lanes_read_first_is_decoded_when_one_begins(tmp_path, one_group_a_unit, resumed):
    dataset = make(tmp_path, rows=1000)
    lanes = []
    for lane in range(10):
        source = tz.MixtureWorkSource([dataset], block_size=20, chunk_size=100, exhausted_policy="stop")
        source.bind_lane(lane, 10)
        lanes.append(tz.Reader(source, memory=10**8 + 5))
        lanes[-1].reset({"source": {"cycle": 0, "position": 60}, "used": 10} if resumed else None)
    pool, rows = lanes[0]._pool, []
    assert pool.stats.loads == 0
    for begun, lane in enumerate(lanes, 1):
        rows += [int(ids[0]) for ids in next(lane).columns["ids"]][:1]
        settle()
        assert pool.stats.loads == 1 + min(1 + 4 * begun, 10) + begun  # the footer; what is first; what is second
    assert [row % 100 for row in rows] == [70 if resumed else 0] * 10


def test_who_begins_again_and_again_is_waited_for_once(tmp_path):
    dataset = make(tmp_path)
    nodes = [reader(dataset, memory=10**8 + 7) for _ in range(10)]
    for _ in range(5):
        for node in nodes:
            node.reset()
    pool, beginning = nodes[0]._pool, nodes[0]._working_set._beginning
    assert len(beginning) == 10
    next(nodes[0])
    assert len(beginning) == 5
    del node
    nodes.clear()
    again = reader(dataset, memory=10**8 + 7)
    assert again._pool is pool
    next(again)
    assert not beginning  # those that are gone are not waited for


def test_loaders_with_other_numbers_of_lanes_share_a_pool(tmp_path):
    dataset = make(tmp_path)
    nodes = []
    for lane, num_lanes in ((7, 8), (0, 2)):
        source = tz.MixtureWorkSource([dataset], block_size=20, exhausted_policy="stop")
        source.bind_lane(lane, num_lanes)
        nodes.append(tz.Reader(source, memory=10**8 + 8))
        nodes[-1].reset()
    assert len(next(nodes[1])) == 20


def test_a_lane_that_is_gone_before_it_begins_is_forgotten(tmp_path, one_group_a_unit):
    for name in "ab":
        (tmp_path / name).mkdir()
    gone = reader(make(tmp_path / "a"), memory=10**8 + 6)
    pool = gone._pool
    del gone
    assert len(next(reader(make(tmp_path / "b"), memory=10**8 + 6))) == 20
    settle()
    assert pool.stats.loads == 3


def test_nothing_is_decoded_ahead_where_memory_is_short(tmp_path, one_group_a_unit, monkeypatch, caplog):
    monkeypatch.setattr(decode_ahead, "Task", pytest.fail)
    with caplog.at_level(logging.WARNING):
        assert sum(map(len, reader(make(tmp_path), memory=12_000))) == 400


def test_samples_in_memory_need_no_decoding(monkeypatch):
    monkeypatch.setattr(decode_ahead, "Task", pytest.fail)
    dataset = tz.Dataset.from_samples("m", [{"i": i} for i in range(100)])
    assert sum(map(len, reader(dataset, memory=10**8 + 2))) == 100


def test_what_goes_wrong_ahead_is_raised_when_it_is_read(tmp_path, one_group_a_unit):
    dataset = make(tmp_path)
    node = reader(dataset, memory=10**8 + 3)
    first = next(node)
    settle()
    next(node)  # was decoded ahead
    (tmp_path / "a.parquet").unlink()
    given = iter(lambda: (next(node), settle())[0], None)
    with pytest.raises(tz.DataError, match=r"a\.parquet"):
        list(given)
    assert len(first) == 20


def test_a_slow_storage_is_read_while_the_consumer_works(tmp_path, one_group_a_unit, monkeypatch):
    decode = parquet_file.RowGroups.decode

    def slow(*args):
        time.sleep(0.05)
        return decode(*args)

    monkeypatch.setattr(parquet_file.RowGroups, "decode", slow)
    node = reader(make(tmp_path), memory=10**8 + 4)
    next(node)
    waited = 0.0
    for _ in range(10):
        time.sleep(0.1)  # a training step
        begin = time.perf_counter()
        assert len(next(node)) == 20
        waited += time.perf_counter() - begin
    assert waited < 10 * 0.05 / 2


def test_upcoming_is_what_comes_and_changes_nothing():
    source = tz.MixtureWorkSource(
        [tz.Dataset.from_samples("m", [{"i": i} for i in range(3000)])], block_size=7, exhausted_policy="stop"
    )
    source.bind_lane(1, 3)
    source.reset()
    while len(upcoming := source.upcoming()):
        state = source.state_dict()
        assert source.state_dict() == state
        assert np.array_equal(upcoming.row, next(source).row)
    with pytest.raises(StopIteration):
        next(source)

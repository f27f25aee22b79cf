import copy
import json
import logging
import pickle
import textwrap

import numpy as np
import pytest
from torchdata.nodes import Loader

from torchzephon.curriculum.work import Work
from torchzephon.data.dataset import Dataset
from torchzephon.errors import StateError
from torchzephon.nodes import work_source
from torchzephon.nodes.work_source import WorkSource


def example():
    """The class in the docstring of WorkSource."""
    code = WorkSource.__doc__.split("to the lanes in turn::\n\n")[1].split("\n\n    A source that")[0]
    names = {"WorkSource": WorkSource, "Work": Work, "np": np, "__name__": __name__}
    exec(textwrap.dedent(code), names)
    return names["InTurn"]


InTurn = example()


def samples(count, name="a"):
    return Dataset.from_samples(name, [{"id": i} for i in range(count)])


def rows(source):
    return [row for work in source for row in work.row.tolist()]


@pytest.mark.parametrize("block_size", [None, 1, 7])
@pytest.mark.parametrize("num_lanes", [1, 3, 30])
def test_lanes_of_a_curriculum_of_ones_own(num_lanes, block_size):
    lanes = []
    for lane in range(num_lanes):
        source = InTurn(samples(20), block_size=block_size)
        source.bind_lane(lane, num_lanes)
        lanes.append(rows(source))
    assert lanes == [list(range(20))[lane::num_lanes] for lane in range(num_lanes)]


def test_unbound_it_is_lane_0_of_1():
    source = InTurn(samples(5))
    assert (source.lane, source.num_lanes, source.is_finite, source.total) == (None, None, True, 5)
    assert rows(source) == [0, 1, 2, 3, 4]


def test_it_resumes_anywhere_at_any_block_size():
    for cut in range(7):
        source = InTurn(samples(20), block_size=3)
        seen = [row for _ in range(cut) for row in next(source).row.tolist()]
        state = json.loads(json.dumps(source.state_dict()))
        assert state == {"cycle": 0, "position": min(3 * cut, 20)}
        assert source.position == state["position"]
        other = InTurn(samples(20), block_size=4)
        other.reset(state)
        assert seen + rows(other) == list(range(20))


def test_the_end_stays_the_end():
    source = InTurn(samples(3))
    rows(source)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(source)
    other = InTurn(samples(3))
    other.reset(source.state_dict())
    with pytest.raises(StopIteration):
        next(other)
    source.reset()
    source.reset()
    assert rows(source) == [0, 1, 2]


def test_states_are_fresh():
    source = InTurn(samples(3), block_size=1)
    state = source.state_dict()
    next(source)
    assert state == {"cycle": 0, "position": 0}
    assert state is not source.state_dict()


def test_cycles():
    class Cycles(InTurn):
        def pointers(self, lane, num_lanes, cycle, start, stop):
            work = super().pointers(lane, num_lanes, cycle, start, stop)
            return Work(work.dataset, work.epoch, work.shard, (work.row + cycle) % 5)

    source = Cycles(samples(5), block_size=2)
    source.start_cycle(3)
    source.reset(None)
    assert next(source).row.tolist() == [3, 4]
    state = source.state_dict()
    assert state == {"cycle": 3, "position": 2}
    other = Cycles(samples(5))
    other.reset(state)
    assert other.cycle == 3
    assert rows(other) == [0, 1, 2]
    with pytest.raises(ValueError, match="cycle must be at least 0"):
        source.start_cycle(-1)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"cycle": 0},
        {"cycle": 0, "position": -1},
        {"cycle": -1, "position": 0},
        {"cycle": 0, "position": 1.5},
        {"cycle": 0, "position": True},
        {"cycle": 0, "position": "1"},
        {"cycle": 0, "position": 1, "more": 2},
        {"source": {}},
        [0, 1],
        "state",
    ],
)
def test_states_that_are_none(state):
    with pytest.raises(StateError, match="state of InTurn"):
        InTurn(samples(3)).reset(state)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0), ValueError, "num_lanes must be at least 1"),
        ((-1, 4), ValueError, "lane must be at least 0"),
        ((4, 4), ValueError, "lane must be below num_lanes=4, got 4"),
        ((1.0, 4), TypeError, "lane must be an int"),
        ((0, "4"), TypeError, "num_lanes must be an int"),
        ((True, 4), TypeError, "lane must be an int"),
    ],
)
def test_lanes_that_are_none(arguments, error, message):
    with pytest.raises(error, match=message):
        InTurn(samples(3)).bind_lane(*arguments)


def test_a_source_that_was_iterated_is_not_bound():
    source = InTurn(samples(3))
    source.bind_lane(0, 2)
    source.bind_lane(1, 2)
    next(source)
    with pytest.raises(ValueError, match=r"iterated already.*fresh graph"):
        source.bind_lane(0, 2)


@pytest.mark.parametrize(
    ("datasets", "error", "message"),
    [
        (samples(3), TypeError, r"write \[a\] for one dataset"),
        ([], ValueError, "datasets is empty"),
        (["a"], TypeError, "list of Dataset, got str"),
        ([samples(3), samples(4)], ValueError, r"names must differ.*\['a'\]"),
    ],
)
def test_datasets(datasets, error, message):
    with pytest.raises(error, match=message):
        WorkSource(datasets)


@pytest.mark.parametrize("argument", ["block_size", "block_bytes"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_block_arguments(argument, value, error):
    with pytest.raises(error, match=argument):
        InTurn(samples(3), **{argument: value})


@pytest.mark.parametrize(("num_lanes", "size"), [(1, 256), (32, 256), (128, 64), (4096, 16)])
def test_many_lanes_have_small_blocks(num_lanes, size):
    source = InTurn(samples(3))
    source.bind_lane(0, num_lanes)
    assert source.block_size == size
    fixed = InTurn(samples(3), block_size=100)
    fixed.bind_lane(0, num_lanes)
    assert fixed.block_size == 100


def test_a_source_that_goes_on_without_delivering_warns(monkeypatch, caplog):
    monkeypatch.setattr(work_source, "_FIRST_WARNING", 10)
    source = InTurn(samples(100), block_size=5)
    source.bind_lane(0, 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            next(source)
            source.note_delivery()
        assert caplog.records == []
        source.reset()
        for _ in range(20):
            next(source)
    assert [record.args[1] for record in caplog.records] == [10, 20, 40, 80]
    assert "lane 0 has read 10 samples and yielded nothing" in caplog.text
    assert "'a'" in caplog.text


def test_what_it_tells_about_itself():
    source = InTurn(samples(20))
    assert json.loads(json.dumps(source.describe())) == {
        "datasets": [{"name": "a", "shards": 1, "samples": 20, "digest": source.datasets[0].digest}]
    }
    estimate = source.estimate(None)
    assert (estimate.samples, estimate.items, estimate.tokens) == (20, 20 / 256, 0)
    assert estimate.bytes == source.datasets[0].num_bytes
    assert source.last is None
    work = next(source)
    assert source.last is work
    assert source.describe_work(work) == "dataset 'a', in memory, row 0 to row 19"
    assert source.describe_work(work[:1]) == "dataset 'a', in memory, row 0"
    assert source.describe_work(work[:0]) == "nothing"
    source.total = None
    assert source.estimate(None) is None


def test_copies_and_pickles_are_independent():
    source = InTurn(samples(6), block_size=2)
    next(source)
    for other in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert rows(other) == [2, 3, 4, 5]
    assert source.position == 2


def test_it_works_in_a_loader():
    loader = Loader(InTurn(samples(6), block_size=2))
    assert [work.row.tolist() for work in loader] == [[0, 1], [2, 3], [4, 5]]


def test_pointers_must_be_written():
    with pytest.raises(NotImplementedError, match="WorkSource must implement pointers"):
        next(WorkSource([samples(3)]))

import copy
import itertools
import json
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import BaseNode, Loader

from torchzephon.data.block import Block
from torchzephon.data.dataset import Dataset
from torchzephon.errors import StateError
from torchzephon.nodes.buffered import BufferedNode
from torchzephon.nodes.mixture import MixtureWorkSource


class Texts(BaseNode):
    """Items cut from `count` samples; the state is an ordinal."""

    def __init__(self, count, sizes=(4,), make=Block.from_samples):
        super().__init__()
        self.samples = [{"id": i, "text": "x" * (i * 7919 % 101)} for i in range(count)]
        self.sizes, self.make = sizes, make
        self.pulls = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.at = 0 if initial_state is None else initial_state["at"]
        self.cycle = itertools.cycle(self.sizes)

    def next(self):
        if self.at >= len(self.samples):
            raise StopIteration
        self.pulls += 1
        rows = self.samples[self.at : self.at + next(self.cycle)]
        self.at += len(rows)
        return self.make(rows)

    def get_state(self):
        return {"at": self.at}


class SortByLength(BufferedNode):
    """The example of the class's docstring, with a window of 10."""

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.window = []
        self.at = 0 if initial_state is None else initial_state["at"]

    def next(self):
        if not self.window:
            self.window = sorted(self.take(10), key=lambda sample: len(sample["text"]))
            if not self.window:
                raise StopIteration
        sample = self.window[self.at]
        self.at += 1
        if self.at == len(self.window):
            self.release(self.at)
            self.window, self.at = [], 0
        return sample

    def get_state(self):
        return {**super().get_state(), "at": self.at}


class Neighbours(BufferedNode):
    """Overlapping windows: each three neighbouring samples."""

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.held = deque()

    def next(self):
        self.held.extend(self.take(3 - len(self.held)))
        if len(self.held) < 3:
            raise StopIteration
        result = [sample["id"] for sample in self.held]
        self.held.popleft()
        self.release(1)
        return result


class Chunks(BufferedNode):
    """Uses blocks as they come, but cuts its items by ordinals: sums of six ids."""

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.ids = []

    def next(self):
        while len(self.ids) < 6:
            self.ids += [sample["id"] for sample in self.pull()]
        self.release(6)
        head, self.ids = self.ids[:6], self.ids[6:]
        return sum(head)


sizes_of = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)
nodes = st.sampled_from([SortByLength, Neighbours, Chunks])


@settings(deadline=None, max_examples=80)
@given(nodes, st.integers(0, 45), st.data())
def test_exact_across_saves_and_loads_with_other_block_sizes(node_type, count, data):
    expected = list(node_type(Texts(count)))
    got, state, ended = [], None, False
    while not ended:
        node = node_type(Texts(count, data.draw(sizes_of)))
        node.reset(state)
        steps = data.draw(st.integers(0, 9))
        part = list(itertools.islice(node, steps))
        got += part
        ended = len(part) < steps
        state = json.loads(json.dumps(node.state_dict()))
    assert got == expected
    for _ in range(2):
        node = node_type(Texts(count, data.draw(sizes_of)))
        node.reset(state)
        assert list(node) == []
        state = json.loads(json.dumps(node.state_dict()))


def test_what_the_docstring_example_does():
    node = SortByLength(Texts(25))
    samples = list(node)
    assert [sample["id"] for sample in samples[:3]] != [0, 1, 2]
    for start in (0, 10, 20):
        window = samples[start : start + 10]
        assert sorted(sample["id"] for sample in window) == list(range(start, min(start + 10, 25)))
        assert [len(sample["text"]) for sample in window] == sorted(len(sample["text"]) for sample in window)


@pytest.mark.parametrize(
    "make",
    [
        Block.from_samples,
        list,
        lambda rows: rows[0] if len(rows) == 1 else rows,
        lambda rows: [Block.from_samples(rows)],
    ],
)
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (5, 0, 2)])
def test_sources_of_all_kinds(make, sizes):
    expected = list(Chunks(Texts(30)))
    assert list(Chunks(Texts(30, sizes, make))) == expected


def test_the_state_is_the_oldest_anchor_and_the_samples_used_since():
    node = Neighbours(Texts(20, (4,)))
    assert node.state_dict() == {"source": {"at": 0}, "used": 0}
    states = [node.state_dict() for _ in itertools.islice(node, 5)]
    assert states == [
        {"source": {"at": 0}, "used": 1},
        {"source": {"at": 0}, "used": 2},
        {"source": {"at": 0}, "used": 3},
        {"source": {"at": 4}, "used": 0},
        {"source": {"at": 4}, "used": 1},
    ]


@settings(deadline=None, max_examples=60)
@given(nodes, sizes_of, st.integers(0, 20))
def test_a_resumed_node_pulls_no_more_than_the_blocks_still_held(node_type, sizes, steps):
    node = node_type(Texts(60, sizes))
    list(itertools.islice(node, steps))
    state = node.state_dict()
    again = node_type(Texts(60, sizes))
    again.reset(state)
    assert again.source.pulls == 0
    first, second = list(itertools.islice(node, 1)), list(itertools.islice(again, 1))
    assert first == second
    if first:  # it is now where the first node is, and had to read only what that one held or has read since
        assert again.source.at - state["source"]["at"] <= 60
        assert again.state_dict()["used"] <= 10


def test_anchors_do_not_pile_up():
    node = Neighbours(Texts(500, (2, 0, 0, 0)))
    for _ in node:
        assert len(node._anchors) <= 3


def test_reset_goes_back_to_the_beginning_and_may_come_twice():
    node = SortByLength(Texts(30))
    expected = list(node)
    node.reset()
    list(itertools.islice(node, 7))
    state = node.state_dict()
    node.reset()
    node.reset()
    assert list(node) == expected
    node.reset(state)
    node.reset(state)
    assert list(node) == expected[7:]


def test_a_loader_around_it():
    def loader():
        return Loader(SortByLength(Texts(30, (7,))))

    expected = list(loader())
    first = loader()
    got = list(itertools.islice(first, 13))
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    assert got + list(second) == expected


def test_after_the_end_the_source_is_left_alone():
    class Twice(Texts):
        def next(self):
            try:
                return super().next()
            except StopIteration:
                self.at = 0
                raise

    node = Chunks(Twice(12))
    assert len(list(node)) == 2
    assert list(node) == []


def test_a_state_is_a_snapshot():
    node = SortByLength(Texts(30))
    list(itertools.islice(node, 3))
    state = node.state_dict()
    kept = copy.deepcopy(state)
    list(node)
    assert state == kept
    node.reset(state)
    list(node)
    assert state == kept


def test_push_back_gives_the_samples_again():
    node = Chunks(Texts(9))
    node.reset()
    block = node.pull()
    node.push_back(block[1:])
    assert [sample["id"] for sample in node.take(5)] == [1, 2, 3, 4, 5]
    assert [sample["id"] for sample in node.pull()] == [6, 7]
    assert [sample["id"] for sample in node.take(5)] == [8]
    assert node.take(5) == []


@pytest.mark.parametrize("count", [5, -1])
def test_releasing_what_is_not_held_is_an_error(count):
    node = Chunks(Texts(9))
    node.reset()
    node.pull()
    with pytest.raises(ValueError, match=f"Chunks: cannot release {count} samples: 4 are held"):
        node.release(count)


def test_bad_sources_and_states():
    with pytest.raises(TypeError, match="Chunks: source must be a torchdata node, got list"):
        Chunks([])
    with pytest.raises(TypeError, match="expected a Block, a sample dict or a list of sample dicts, got int"):
        next(Chunks(Texts(5, make=len)))
    with pytest.raises(TypeError, match="expected samples, got Work, which only points to them: put a Reader between"):
        next(Chunks(MixtureWorkSource([Dataset.from_samples("a", [{"text": "x"}])])))
    with pytest.raises(StateError, match=r"Chunks: the state lacks \['used'\]: it has \['at', 'source'\]"):
        Chunks(Texts(5)).reset({"source": {"at": 0}, "at": 1})


def test_data_that_became_shorter_is_noticed():
    node = Chunks(Texts(4))
    node.reset({"source": {"at": 0}, "used": 7})
    with pytest.raises(StateError, match="the source ended 3 samples before the place that the state was saved at"):
        next(node)


@pytest.mark.parametrize("node_type", [SortByLength, Neighbours, Chunks])
def test_an_error_of_the_source_passes_through_and_can_be_tried_again(node_type):
    class Flaky(Texts):
        failures = 2

        def next(self):
            if self.at == 4 and self.failures:
                self.failures -= 1
                raise OSError("no route to host")
            return super().next()

    node = node_type(Flaky(20))
    got = []
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            got.extend(node)
    assert got + list(node) == list(node_type(Texts(20)))

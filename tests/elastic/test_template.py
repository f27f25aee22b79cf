"""What graphs may stand in a lane, and that their copies share nothing that moves."""

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import documents, plain, through_json, token_graph
from torchdata.nodes import (
    BaseNode,
    Batcher,
    IterableWrapper,
    Mapper,
    MultiNodeWeightedSampler,
    ParallelMapper,
    Prefetcher,
    Unbatcher,
)

import torchzephon as tz
from torchzephon.elastic.template import dump_root, load_root

DOCS = documents(40, seed=1)
LANES = 3


def source(**options):
    return tz.MixtureWorkSource(
        [tz.Dataset.from_samples("a", DOCS)], exhausted_policy="repeat", chunk_size=4, **options
    )


def batches(node):
    return tz.TrainingBatcher(tz.SequencePacker(node, 8), 2)


class Join(BaseNode):
    """Two sources in turn."""

    def __init__(self, source, other):
        super().__init__()
        self.source, self.other = source, other


class Parts(BaseNode):
    def __init__(self, sources):
        super().__init__()
        self.sources = sources


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: 3, TypeError, "needs the root node of a torchdata graph, or a function that builds one, got int"),
        (lambda: lambda: 3, TypeError, "or a function that builds one, got int"),
        (list, TypeError, "got list"),
        (lambda: IterableWrapper([1]), TypeError, "leaf of the graph, IterableWrapper, is not lane-aware.*WorkSource"),
        (lambda: Batcher(IterableWrapper([1]), 2), TypeError, "IterableWrapper, is not lane-aware"),
        (lambda: Join(source(), source()), ValueError, r"more than one leaf \(MixtureWorkSource, MixtureWorkSource\)"),
        (lambda: Parts({"a": source(), "b": source()}), ValueError, r"more than one leaf \(MixtureWorkSource, Mixt"),
        (lambda: batches(Parts([source()])), TypeError, "Parts has no attribute 'source'.*way to MixtureWorkSource"),
        (
            lambda: MultiNodeWeightedSampler({"a": source(), "b": source()}, {"a": 1.0, "b": 1.0}),
            TypeError,
            "MultiNodeWeightedSampler cannot stand in a lane.*mix the datasets in one MixtureWorkSource",
        ),
        (
            lambda: Prefetcher(MultiNodeWeightedSampler({"a": source()}, {"a": 1.0}), 2),
            TypeError,
            "MultiNodeWeightedSampler cannot stand in a lane",
        ),
        (
            lambda: batches(ParallelMapper(tz.Reader(source()), plain, num_workers=2, in_order=False)),
            ValueError,
            r"in_order=False.*in_order=True",
        ),
        (
            lambda: batches(tz.Lanes(batches(tz.Reader(source())), 2, dp=(0, 1))),
            TypeError,
            "Lanes cannot stand in a lane",
        ),
    ],
)
def test_what_cannot_be_elastic_is_refused(build, error, match):
    with pytest.raises(error, match=match):
        tz.Lanes(build(), LANES, dp=(0, 1))


def test_a_graph_that_was_iterated_is_refused():
    node = batches(tz.Reader(source()))
    next(node)
    with pytest.raises(ValueError, match=r"iterated already \(\w+ is past its reset\).*Build a fresh graph"):
        tz.Lanes(node, LANES, dp=(0, 1))
    node = tz.Reader(source())
    next(node)
    with pytest.raises(ValueError, match="iterated already"):
        tz.Lanes(batches(node), LANES, dp=(0, 1))


def test_a_graph_that_cannot_be_copied_names_the_way_out():
    lock = threading.Lock()

    def build():
        return batches(tz.SampleMapper(tz.Reader(source()), Holder(lock)))

    with pytest.raises(TypeError, match=r"cannot be copied for each lane.*pass Lanes a function that builds the graph"):
        next(tz.Lanes(build(), LANES, dp=(0, 1)))
    next(tz.Lanes(build, LANES, dp=(0, 1), num_threads=0))


class Holder:
    def __init__(self, lock):
        self.lock = lock

    def __call__(self, sample):
        return sample


@pytest.mark.parametrize("what", ["graph", "leaf"])
def test_a_function_that_gives_the_same_graph_again_is_refused(what):
    """The lanes would read from under each other."""
    leaf = source()
    graph = batches(tz.Reader(leaf))

    def build():
        return graph if what == "graph" else batches(tz.Reader(leaf))

    with pytest.raises(ValueError, match=r"the function that builds the graph gave the same one again.*a new graph"):
        next(tz.Lanes(build, LANES, dp=(0, 1), num_threads=0))


def test_the_template_itself_never_runs():
    node = batches(tz.Reader(source()))
    lanes = tz.Lanes(node, LANES, dp=(0, 1), num_threads=0)
    first = [plain(next(lanes)) for _ in range(LANES)]
    assert first == [plain(next(lanes)) for lanes in [tz.Lanes(node, LANES, dp=(0, 1), num_threads=0)] for _ in first]
    assert node.source.source.source.last is None


def test_modules_go_by_name_when_a_graph_is_pickled():
    node = batches(Mapper(tz.Reader(source()), dict_of_all))
    again = load_root(dump_root(node))
    assert plain(next(again)) == plain(next(batches(Mapper(tz.Reader(source()), dict_of_all))))


def dict_of_all(block):
    return [dict(sample) for sample in block]


# -- any stack of stock nodes is elastic -------------------------------------------------------------------------------


def mark(value):
    return value


def take_turns(samples):
    return list(samples)[::-1]


@st.composite
def stacks(draw):
    """Functions that put stock nodes on a node of blocks, so that a list of samples comes out."""
    steps = draw(
        st.lists(st.sampled_from(["map", "threads", "prefetch", "rebatch", "reverse", "prebatch"]), max_size=4)
    )
    numbers = [draw(st.integers(1, 4)) for _ in steps]

    def build():
        node = Mapper(tz.Reader(source(block_size=8)), list)
        for step, number in zip(steps, numbers, strict=True):
            if step == "map":
                node = Mapper(node, mark)
            elif step == "threads":
                node = ParallelMapper(node, mark, num_workers=2)
            elif step == "prefetch":
                node = Prefetcher(node, number, snapshot_frequency=number)
            elif step == "rebatch":
                node = Batcher(Unbatcher(node), number, drop_last=False)
            elif step == "reverse":
                node = Mapper(node, take_turns)
            else:
                node = Batcher(ParallelMapper(Unbatcher(node), mark, num_workers=1, prebatch=number), 3)
        return batches(node)

    return build


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(stacks(), st.lists(st.integers(0, 7), min_size=1, max_size=2))
def test_any_stack_of_stock_nodes_resumes_anywhere(build, stops):
    def open_lanes():
        return tz.Lanes(build(), 2, dp=(0, 1), num_threads=0)

    total = sum(stops) + 4
    node = open_lanes()
    expected = [plain(batch) for batch in itertools.islice(node, total)]
    got, state = [], None
    for stop in [*stops, 4]:
        node = open_lanes()
        if state is not None:
            node.reset(state)
        got += [plain(batch) for batch in itertools.islice(node, stop)]
        state = through_json(node.state_dict())
    assert got == expected


def test_our_own_graph_is_a_template_too():
    lanes = tz.Lanes(token_graph(DOCS), LANES, dp=(0, 1), num_threads=0)
    copies = [plain(next(lanes)) for _ in range(LANES)]
    assert len({str(batch) for batch in copies}) == LANES

"""States of what may stand around Lanes: Loader, stock nodes, StatefulDataLoader."""

import itertools

import pytest
from support.graphs import documents, plain, through_json, token_graph
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, Unbatcher
from torchdata.stateful_dataloader import StatefulDataLoader

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 4
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def lanes(dp=(0, 1)):
    return tz.Lanes(token_graph(DOCS, chunk_size=4), LANES, dp=dp, num_threads=0)


def take(iterable, count):
    return [plain(batch) for batch in itertools.islice(iterable, count)]


EXPECTED = take(lanes(), 6 * LANES)


def mapped(batch):
    return {**batch, "seen": True}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda node: Prefetcher(node, 3),
        lambda node: Mapper(node, mapped),
        lambda node: ParallelMapper(node, mapped, num_workers=2),
        lambda node: Prefetcher(Mapper(Prefetcher(node, 2), mapped), 2),
    ],
    ids=["prefetcher", "mapper", "parallel mapper", "three"],
)
def test_stock_nodes_above_lanes(wrap):
    def strip(batches):
        return [{name: value for name, value in batch.items() if name != "seen"} for batch in batches]

    loaders = [Loader(wrap(lanes(dp=(rank, 2)))) for rank in range(2)]
    for loader in loaders:
        got = strip(take(loader, 5))
        assert got[0] in EXPECTED
    states = [through_json(loader.state_dict()) for loader in loaders]
    merged = tz.merge_states(states[::-1])
    loader = Loader(wrap(lanes()))
    loader.load_state_dict(merged)
    iterator = iter(loader)
    # Each rank gave lanes 0, 1, 0, 1, 0 of its own.
    expected = [EXPECTED[2 * LANES + lane] for lane in (1, 3)] + EXPECTED[3 * LANES : 4 * LANES]
    assert strip(take(iterator, 2 + LANES)) == expected


@pytest.mark.parametrize(
    ("wrap", "match"),
    [
        (lambda node: Prefetcher(node, 3, snapshot_frequency=4), "saved 2 items after its snapshot .steps_since_snap"),
        (
            lambda node: Unbatcher(Batcher(node, 3)),
            "saved 2 items after its snapshot .batch_idx, by an Unbatcher above",
        ),
    ],
    ids=["snapshots", "unbatcher"],
)
def test_counters_of_wrappers_cannot_be_merged(wrap, match):
    loader = Loader(wrap(lanes()))
    take(loader, 2)
    with pytest.raises(tz.StateError, match=match):
        tz.merge_states([loader.state_dict()])
    with pytest.raises(tz.StateError, match="take it out, or use ElasticDataLoader"):
        tz.ElasticDataLoader(lanes()).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_of_a_stateful_dataloader(num_workers):
    def loader(dp):
        return StatefulDataLoader(tz.as_dataset(lanes(dp)), batch_size=None, num_workers=num_workers)

    states = []
    for rank in range(2):
        one = loader((rank, 2))
        iterator = iter(one)
        take(iterator, 4)
        states.append(through_json(one.state_dict()))
        del iterator
    merged = tz.merge_states(states[::-1])
    assert list(merged) == ["torchzephon", "graph", "round", "num_lanes", "lanes"]
    elastic = tz.ElasticDataLoader(lanes())
    elastic.load_state_dict(merged)
    assert take(elastic, LANES) == EXPECTED[2 * LANES : 3 * LANES]


def test_snapshots_of_a_stateful_dataloader_must_be_of_every_step():
    loader = StatefulDataLoader(tz.as_dataset(lanes()), batch_size=None, num_workers=2, snapshot_every_n_steps=3)
    iterator = iter(loader)
    take(iterator, 4)
    with pytest.raises(tz.StateError, match="_steps_since_snapshot, by a StatefulDataLoader"):
        tz.merge_states([loader.state_dict()])


def test_the_states_of_several_workers_are_not_one():
    loader = StatefulDataLoader(tz.as_dataset(lanes()), batch_size=None, num_workers=2)
    iterator = iter(loader)
    take(iterator, 4)
    state = loader.state_dict()
    with pytest.raises(tz.StateError, match=r"found the states of 2 workers .*: merge_states\(\) joins them"):
        tz.ElasticDataLoader(lanes()).load_state_dict(state)
    elastic = tz.ElasticDataLoader(lanes())
    elastic.load_state_dict(tz.merge_states([state]))
    assert take(elastic, LANES) == EXPECTED[LANES : 2 * LANES]


@pytest.mark.parametrize(("value", "keys"), [({}, r"\[\]"), ({"model": {}}, r"\['model'\]"), (None, "NoneType")])
def test_what_holds_no_state_says_what_to_pass(value, keys):
    advice = r"pass what state_dict\(\) gave, or a dict that holds it"
    with pytest.raises(tz.StateError, match=rf"found no state of torchzephon \(keys: {keys}\): {advice}"):
        tz.ElasticDataLoader(lanes()).load_state_dict(value)


def test_any_kind_of_state_loads_into_an_elastic_loader():
    loader = Loader(Prefetcher(lanes(), 2))
    iterator = iter(loader)
    take(iterator, LANES)
    for state in (loader.state_dict(), {"app": {"data": loader.state_dict(), "step": 7}}):
        elastic = tz.ElasticDataLoader(lanes())
        elastic.load_state_dict(state)
        assert take(elastic, LANES) == EXPECTED[LANES : 2 * LANES]

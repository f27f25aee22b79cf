"""ElasticDataLoader: its arguments, its iterators, its states."""

import itertools

import pytest
from support.children import worker_processes
from support.graphs import documents, lane_streams, plain, through_json, token_graph
from torch.utils.data import DataLoader
from torchdata.nodes import Loader

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 3
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def lanes(**options):
    return tz.Lanes(token_graph(DOCS, chunk_size=4), LANES, dp=(0, 1), **options)


def finite():
    return tz.Lanes(token_graph(DOCS, chunk_size=4, exhausted_policy="stop"), LANES, dp=(0, 1))


def take(iterable, count):
    return [plain(batch) for batch in itertools.islice(iterable, count)]


STREAMS = lane_streams(lambda: token_graph(DOCS, chunk_size=4), LANES, 6)
EXPECTED = [stream[r] for r in range(6) for stream in STREAMS]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((token_graph(DOCS),), {}, TypeError, "needs a Lanes or a Rounds, got TrainingBatcher"),
        ((Loader(lanes()),), {}, TypeError, "needs a Lanes or a Rounds, got Loader"),
        ((lanes(), -1), {}, ValueError, "num_workers must be at least 0, got -1"),
        ((lanes(), 2.0), {}, TypeError, "num_workers must be an int, got 2.0"),
        ((lanes(), True), {}, TypeError, "num_workers must be an int, got True"),
        ((lanes(), 0), {"prefetch_factor": 2}, TypeError, "'prefetch_factor'. are options of worker processes"),
        ((lanes(), 2), {"batch_size": 4}, TypeError, "'batch_size'. cannot be given: the graph decides"),
        ((lanes(), 2), {"shuffle": True, "sampler": None}, TypeError, "'sampler', 'shuffle'. cannot be given"),
        ((lanes(), 0), {"collate_fn": list}, TypeError, "'collate_fn'. cannot be given"),
        ((lanes(), 2), {"in_order": False}, TypeError, "'in_order'. cannot be given"),
        ((lanes(), 2), {"snapshot_every_n_steps": 5}, TypeError, "'snapshot_every_n_steps'. cannot be given"),
        ((lanes(), 2), {"workers": 5}, TypeError, r"unknown options \['workers'\].*'persistent_workers'"),
        ((lanes(), 2), {"prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1, got 0"),
    ],
)
def test_arguments_are_checked_where_they_enter(arguments, options, error, match):
    with pytest.raises(error, match=match):
        tz.ElasticDataLoader(*arguments, **options)


def test_it_is_no_dataloader():
    """Accelerate and Lightning re-shard every DataLoader they are handed."""
    assert not isinstance(tz.ElasticDataLoader(lanes()), DataLoader)


def test_an_old_iterator_is_over():
    loader = tz.ElasticDataLoader(lanes())
    old = iter(loader)
    take(old, 2)
    new = iter(loader)
    with pytest.raises(
        RuntimeError, match="the loader was iterated anew or loaded a state since: this iterator is over"
    ):
        next(old)
    assert take(new, 2) == EXPECTED[:2]
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(new)
    del old, new
    assert take(loader, 2) == EXPECTED[2:4]


def test_a_fresh_loader_gives_a_template_of_its_state_and_starts_nothing():
    loader = tz.ElasticDataLoader(lanes(), 2)
    state = loader.state_dict()
    assert list(state["lanes"]) == ["00000", "00001", "00002"]
    assert worker_processes() == []
    loader.load_state_dict(through_json(state))
    assert worker_processes() == []
    with loader:
        assert take(loader, 4) == EXPECTED[:4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_asked_for_at_any_time_is_that_of_the_last_batch(num_workers):
    with tz.ElasticDataLoader(lanes(), num_workers) as loader:
        iterator = iter(loader)
        for count in range(5):
            state = through_json(loader.state_dict())
            other = tz.ElasticDataLoader(lanes(num_threads=0))
            other.load_state_dict(state)
            assert other.state_dict() == state  # before it is iterated, too
            assert take(other, 2) == EXPECTED[count : count + 2]
            next(iterator)


def test_loading_again_and_again():
    with tz.ElasticDataLoader(lanes(), 1) as loader:
        take(loader, 4)
        four = through_json(loader.state_dict())
        for _ in range(3):
            loader.load_state_dict(four)
            assert take(loader, 2) == EXPECTED[4:6]


def test_a_refused_state_leaves_the_loader_as_it_was():
    loader = tz.ElasticDataLoader(lanes(num_threads=0))
    iterator = iter(loader)
    got = take(iterator, 4)
    state = loader.state_dict()
    with pytest.raises(tz.StateError):
        loader.load_state_dict({**state, "num_lanes": 9})
    assert loader.state_dict() == state
    assert got + take(iterator, 4) == EXPECTED[:8]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_iteration_after_the_end_is_the_next_cycle(num_workers):
    with tz.ElasticDataLoader(finite(), num_workers) as loader:
        cycles = [take(loader, 999) for _ in range(3)]
    assert [len(cycle) > LANES for cycle in cycles] == [True] * 3
    assert cycles[0] != cycles[1] != cycles[2]
    node = finite()
    for cycle in cycles:
        node.reset(None)
        assert take(node, 999) == cycle


def test_lanes_without_workers_after_lanes_with_workers():
    node = lanes()
    with tz.ElasticDataLoader(node, 2) as loader:
        assert take(loader, 2) == EXPECTED[:2]
    loader = tz.ElasticDataLoader(node, 0)
    iterator = iter(loader)
    assert take(iterator, 2) == EXPECTED[2:4]  # the lanes stand where they were left
    assert worker_processes() == []
    loader.close()


def test_the_loader_is_a_context_that_closes():
    with tz.ElasticDataLoader(lanes(), 1) as loader:
        iterator = iter(loader)
        next(iterator)
        assert worker_processes()
    assert worker_processes() == []

"""as_dataset and fit_state: a plain StatefulDataLoader over lanes."""

import itertools
import json
import multiprocessing
import pickle
import re
import signal

import pytest
from support.children import wait_for_no_workers
from support.graphs import documents, is_blank, plain, through_json, token_graph
from torchdata.nodes import ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 4
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This DataLoader will create")


def endless():
    return token_graph(DOCS, chunk_size=4)


def finite():
    return token_graph(DOCS, exhausted_policy="stop", chunk_size=4, shuffle_within_shard=True)


def lanes(build=endless, num_lanes=LANES, dp=(0, 1), **options):
    return tz.Lanes(build(), num_lanes, dp=dp, **options)


def open_loader(num_workers=0, state=None, persistent=False, **options):
    loader = StatefulDataLoader(
        tz.as_dataset(lanes(**options)), batch_size=None, num_workers=num_workers, persistent_workers=persistent
    )
    if state is not None:
        loader.load_state_dict(through_json(state))
    return loader


def take(iterable, count):
    return [plain(batch) for batch in itertools.islice(iterable, count)]


def real(batches):
    return [batch for batch in batches if any(x != -100 for row in batch["labels"] for x in row)]


EXPECTED = take(lanes(), 8 * LANES)


def refused(match, *args, **options):
    """That a worker refuses to start; torch leaves the others waiting."""
    message = "was not refused"
    try:
        next(iter(open_loader(*args, **options)))
    except ValueError as error:
        message = str(error)
    # Torch's handler would raise for the killed ones wherever this process is by then.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    signal.signal(signal.SIGCHLD, handler)
    assert re.search(match, message)


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert wait_for_no_workers() == []


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_workers_that_divide_the_lanes_keep_their_order(num_workers):
    loader = open_loader(num_workers)
    iterator = iter(loader)
    assert take(iterator, 2 * LANES + 3) == EXPECTED[: 2 * LANES + 3]
    state = loader.state_dict()
    del iterator
    again = open_loader(num_workers, state)
    assert take(again, LANES + 2) == EXPECTED[2 * LANES + 3 : 3 * LANES + 5]


def test_workers_that_do_not_are_refused():
    refused(r"num_workers=3 workers in turn.*divides 4, or ElasticDataLoader", 3)


def test_padded_ranks_count_their_blank_places():
    """Rank 0 of 3 owns one lane of five, and has two places."""
    loader = open_loader(2, num_lanes=5, dp=(0, 3))
    got = list(itertools.islice(loader, 6))
    assert [is_blank(batch) for batch in got] == [False, True] * 3
    state = loader.state_dict()
    assert all(map(is_blank, itertools.islice(open_loader(2, state, num_lanes=5, dp=(0, 3)), 1, 4, 2)))
    refused("divides 1", 2, num_lanes=5, dp=(0, 3), uneven="allow")


def test_a_graph_with_processes_is_refused_in_workers():
    def build():
        return ParallelMapper(endless(), plain, num_workers=1, method="process")

    refused("a worker process cannot start processes of its own", 1, build=build)


def test_only_lanes_make_a_dataset():
    with pytest.raises(TypeError, match="as_dataset needs a Lanes, got Rounds"):
        tz.as_dataset(tz.Rounds(lanes()))


@pytest.mark.parametrize("given", [0, 6, 9])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_a_merged_state_is_fitted_to_any_number_of_workers(num_workers, given):
    node = lanes()
    take(node, given)
    merged = tz.merge_states([through_json(node.state_dict())])
    fitted = tz.fit_state(merged, num_workers=num_workers, dp=(0, 1))
    assert json.loads(json.dumps(fitted)) == fitted
    loader = open_loader(num_workers, fitted)
    iterator = iter(loader)
    assert take(iterator, LANES + 3) == EXPECTED[given : given + LANES + 3]
    state = tz.merge_states([loader.state_dict()])  # and on: its own states are good
    elastic = tz.ElasticDataLoader(lanes())
    elastic.load_state_dict(state)
    assert take(elastic, 3) == EXPECTED[given + LANES + 3 : given + LANES + 6]


@pytest.mark.parametrize("uneven", ["pad", "allow"])
def test_a_state_from_the_middle_of_a_round_fits_ranks_in_step(uneven):
    node = lanes()
    take(node, LANES + 1)
    merged = tz.merge_states([node.state_dict()])
    for rank in range(2):
        reference = lanes(dp=(rank, 2), uneven=uneven)
        reference.reset(merged)
        fitted = tz.fit_state(merged, num_workers=2, dp=(rank, 2), uneven=uneven)
        loader = open_loader(2, fitted, dp=(rank, 2), uneven=uneven)
        assert take(loader, 5) == take(reference, 5)
        reference.close()


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_each_iteration_is_another_cycle(num_workers, persistent):
    node = lanes(finite)
    cycles = [real(take(node, 999))]
    for _ in range(2):
        node.reset(None)
        cycles.append(real(take(node, 999)))
    assert cycles[0] != cycles[1]
    loader = open_loader(num_workers, build=finite, persistent=persistent)
    for cycle in cycles:
        assert real(take(loader, 999)) == cycle
    state = loader.state_dict()
    again = open_loader(num_workers, state, build=finite)
    assert '"cycle":0' not in json.dumps(again.state_dict()).replace("\\", "")
    node.reset(None)
    assert real(take(again, 999)) == real(take(node, 999))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_a_loop_replays_the_cycle(num_workers):
    loader = open_loader(num_workers, build=finite)
    first = take(loader, 999)
    begun = take(loader, 5)
    second = take(loader, 999)
    assert first != second
    assert begun == second[:5]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_state_at_the_very_end_is_fitted_into_the_next_cycle(num_workers):
    node = lanes(finite)
    take(node, 999)
    merged = tz.merge_states([node.state_dict()])
    loader = open_loader(num_workers, tz.fit_state(merged, num_workers=num_workers, dp=(0, 1)), build=finite)
    node.reset(None)
    assert real(take(loader, 999)) == real(take(node, 999))


def test_workers_cannot_agree_on_dropping():
    assert take(open_loader(1, build=finite, end="drop"), 999) == take(lanes(finite, end="drop"), 999)
    refused(r"end='drop' with 2 workers.*ElasticDataLoader", 2, build=finite, end="drop")


def test_a_dataset_can_be_sent_to_a_spawned_worker():
    sent = pickle.loads(pickle.dumps(tz.as_dataset(lanes())))
    assert take(iter(sent), LANES) == EXPECTED[:LANES]


def test_arguments_of_fit_state():
    merged = lanes().state_dict()
    with pytest.raises(ValueError, match="num_workers must be at least 0, got -1"):
        tz.fit_state(merged, num_workers=-1)
    with pytest.raises(TypeError, match="num_workers must be an int"):
        tz.fit_state(merged, num_workers="2")
    with pytest.raises(ValueError, match="9 data-parallel ranks"):
        tz.fit_state(merged, num_workers=1, dp=(0, 9))
    with pytest.raises(ValueError, match=r"num_workers=3.*divides 4"):
        tz.fit_state(merged, num_workers=3, dp=(0, 1))
    with pytest.raises(tz.StateError, match="no state of torchzephon"):
        tz.fit_state({}, num_workers=1)
    with pytest.raises(tz.StateError, match=r"lacks lanes \[0, 1\]"):
        tz.fit_state(lanes(dp=(1, 2)).state_dict(), num_workers=1, dp=(0, 2))

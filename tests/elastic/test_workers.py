"""Worker processes: the same batches, errors at once, nothing left behind."""

import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.children import open_files, wait_for_no_workers, worker_processes
from support.graphs import documents, is_blank, lane_streams, owned, plain, through_json, token_graph
from torchdata.nodes import ParallelMapper

import torchzephon as tz
from torchzephon.elastic import transport

DOCS = documents(60, seed=1)
MANY = documents(400, seed=2)
LANES = 4
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert wait_for_no_workers() == []


def endless(**options):
    return token_graph(DOCS, chunk_size=4, **options)


def finite(**options):
    return token_graph(DOCS, exhausted_policy="stop", chunk_size=4, **options)


def open_loader(build=endless, num_lanes=LANES, num_workers=2, dp=(0, 1), state=None, lanes=None, **options):
    loader = tz.ElasticDataLoader(tz.Lanes(build(), num_lanes, dp=dp, **(lanes or {})), num_workers, **options)
    if state is not None:
        loader.load_state_dict(through_json(state))
    return loader


def take(iterable, count):
    return [plain(batch) for batch in itertools.islice(iterable, count)]


def expected(build, num_lanes, rounds):
    streams = lane_streams(build, num_lanes, rounds)
    return [stream[r] for r in range(rounds) for stream in streams]


# -- the same batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 4, 5])
def test_any_number_of_workers_gives_the_same_batches(num_workers):
    with open_loader(num_workers=num_workers) as loader:
        assert take(loader, 6 * LANES + 1) == expected(endless, LANES, 7)[: 6 * LANES + 1]


def test_workers_beyond_the_lanes_are_not_started():
    with open_loader(num_lanes=2, num_workers=5) as loader:
        iterator = iter(loader)
        next(iterator)
        assert len(worker_processes()) == 2


@pytest.mark.parametrize(
    ("context", "build", "num_workers"), [("fork", endless, 3), ("spawn", finite, 1), ("forkserver", endless, 2)]
)
def test_every_way_to_start_processes(build, context, num_workers):
    with open_loader(build, num_workers=0) as loader:
        take(loader, LANES)
        state = loader.state_dict()
    with open_loader(build, num_workers=num_workers, multiprocessing_context=context, state=state) as loader:
        assert take(loader, 2 * LANES) == expected(build, LANES, 3)[LANES:]


def test_a_function_that_builds_the_graph_runs_in_the_workers():
    with tz.ElasticDataLoader(tz.Lanes(endless, LANES, dp=(0, 1)), 2, multiprocessing_context="fork") as loader:
        assert take(loader, 2 * LANES) == expected(endless, LANES, 2)


def test_a_lambda_cannot_be_spawned_and_the_way_out_is_named():
    def build():
        return endless(wrap=lambda node: tz.SampleMapper(node, lambda sample: sample))

    loader = open_loader(build, multiprocessing_context="spawn")
    with pytest.raises(TypeError, match=r"cannot be sent to a worker process.*instead of lambdas.*'fork'"):
        next(iter(loader))
    with open_loader(build, multiprocessing_context="fork") as loader:
        assert take(loader, 3) == expected(endless, LANES, 1)[:3]


@pytest.mark.parametrize("end", ["pad", "drop", "ragged"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_finite_data_ends_as_in_process(end, num_workers):
    with open_loader(finite, num_workers=0, lanes={"end": end}) as loader:
        reference = [take(loader, 999), take(loader, 999)]
    with open_loader(finite, num_workers=num_workers, lanes={"end": end}) as loader:
        assert [take(loader, 999), take(loader, 999)] == reference
        assert worker_processes() == []  # they stop with the data


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_chains_of_worker_and_rank_counts_are_exact(data):
    num_lanes = data.draw(st.integers(1, 5), "lanes")
    got, state = [[] for _ in range(num_lanes)], None
    for _ in range(data.draw(st.integers(1, 3), "steps")):
        world_size = data.draw(st.integers(1, min(num_lanes, 2)), "ranks")
        states = []
        for rank in range(world_size):
            num_workers = data.draw(st.integers(0, 3), "workers")
            with open_loader(num_lanes=num_lanes, num_workers=num_workers, dp=(rank, world_size), state=state,
                             lanes={"uneven": "allow"}) as loader:  # fmt: skip
                mine = owned(rank, world_size, num_lanes)
                for batch in take(loader, data.draw(st.integers(0, 9), "batches")):
                    lane = min(mine, key=lambda lane: (len(got[lane]), lane))
                    got[lane].append(batch)
                states.append(loader.state_dict())
        state = tz.merge_states(states, allow_skew=True)
    streams = lane_streams(endless, num_lanes, max(map(len, got)))
    assert got == [stream[: len(mine)] for stream, mine in zip(streams, got, strict=True)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_rounds_of_padded_ranks(num_workers):
    loaders = [
        tz.ElasticDataLoader(tz.Rounds(tz.Lanes(endless(), 5, dp=(rank, 3)), micro_batch_size=2), num_workers)
        for rank in range(3)
    ]
    streams = lane_streams(endless, 5, 3)
    iterators = [iter(loader) for loader in loaders]
    for r in range(3):
        shares = [next(iterator) for iterator in iterators]
        assert [len(share) for share in shares] == [2, 2, 2]
        real = [plain(batch) for share in shares for batch in share if not is_blank(batch)]
        assert real == [stream[r] for stream in streams]
    for loader in loaders:
        loader.close()


# -- persistent workers ------------------------------------------------------------------------------------------------


def shuffled():
    return finite(shuffle_within_shard=True)


@pytest.mark.parametrize("cycles", ["reshuffle", "same"])
def test_persistent_workers_live_on_through_cycles_breaks_and_loads(cycles):
    options = {"build": shuffled, "lanes": {"cycles": cycles}}
    with open_loader(num_workers=0, **options) as loader:
        reference = [take(loader, 999) for _ in range(3)]
        assert (reference[0] == reference[1]) is (cycles == "same")
    with open_loader(persistent_workers=True, **options) as loader:
        assert take(loader, 999) == reference[0]
        pids = worker_processes()
        assert len(pids) == 2
        assert take(loader, 5) == reference[1][:5]  # broken off: the cycle is replayed
        assert take(loader, 999) == reference[1]
        assert worker_processes() == pids
        iterator = iter(loader)
        assert take(iterator, 7) == reference[2][:7]
        state = loader.state_dict()
        loader.load_state_dict(through_json(state))
        assert take(loader, 999) == reference[2][7:]
        assert worker_processes() != pids  # in the middle of a cycle they begin anew
    assert wait_for_no_workers() == []


def test_persistent_workers_that_never_started_need_no_care():
    open_loader(persistent_workers=True).close()


# -- errors ------------------------------------------------------------------------------------------------------------


def faulty(fn, **source):
    """A graph whose function meets one sample in the midst of the data."""

    def build():
        return token_graph(MANY, chunk_size=4, block_size=2, wrap=lambda node: tz.SampleMapper(node, fn), **source)

    return build


def harmless(sample):
    return sample


def is_it(sample):
    return sample["id"] == 231


def explode(sample):
    if is_it(sample):
        raise KeyError("boom")
    return sample


def die(sample):
    if is_it(sample):
        os._exit(7)
    return sample


def quit_quietly(sample):
    if is_it(sample):
        os._exit(0)
    return sample


def pause(sample):
    time.sleep(0.002)
    return sample


def given_in(loader):
    return sum(json.loads(text)["given"] for text in loader.state_dict()["lanes"].values())


def assert_last_state_is_good(loader, got, num_workers=0):
    """The state after an error continues with the batch after the last one that was delivered."""
    assert given_in(loader) == len(got)
    streams = expected(faulty(harmless), LANES, len(got) // LANES + 2)
    assert got == streams[: len(got)]
    state = tz.merge_states([through_json(loader.state_dict())], accept={"fn"})
    with open_loader(faulty(harmless), num_workers=num_workers, state=state) as again:
        assert take(again, LANES) == streams[len(got) : len(got) + LANES]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_names_lane_node_and_samples_at_once(num_workers, persistent):
    loader = open_loader(faulty(explode), num_workers=num_workers, persistent_workers=persistent)
    iterator, got = iter(loader), []
    with pytest.raises(tz.LaneError, match=r"lane \d, node SampleMapper, while it made batch \d+.*boom") as caught:
        got.extend(map(plain, iterator))
    assert re.match(r"lane \d, node SampleMapper", str(caught.value))  # as without workers: no traceback in it
    assert "last read: dataset 'a', in memory, row" in str(caught.value)
    assert worker_processes() == []  # while the exception is still held
    with pytest.raises(tz.LaneError, match="boom"):
        next(iterator)  # again, and not what comes after
    assert len(got) > 10
    assert_last_state_is_good(loader, got, num_workers=1)
    assert take(loader, 9) == got[:9]  # from the start
    loader.close()


@pytest.mark.parametrize("end", ["pad", "drop", "ragged"])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_an_error_comes_in_its_lanes_turn(num_workers, end):
    """Wherever the other lanes' workers are by then."""
    outcomes = []
    for workers in (0, num_workers):
        with open_loader(faulty(explode, exhausted_policy="stop"), num_workers=workers, lanes={"end": end}) as loader:
            got = []
            with pytest.raises(tz.LaneError, match="boom") as caught:
                got.extend(map(plain, loader))
            outcomes.append((got, str(caught.value), loader.state_dict()))
    assert outcomes[0] == outcomes[1]
    got = outcomes[0][0]
    assert len(got) > 10
    assert got == expected(faulty(harmless), LANES, len(got) // LANES + 1)[: len(got)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_is_left_before_an_errors_turn_stops_everything(num_workers):
    """At once, without the garbage collector: an error that is known already must not keep the iterator."""
    build = faulty(explode, exhausted_policy="stop")
    options = {"num_threads": 0, "end": "ragged"}  # which looks at all lanes of a round first
    got = []
    with open_loader(build, num_workers=0, lanes=options) as loader, pytest.raises(tz.LaneError, match="boom"):
        got.extend(loader)
    assert len(got) % LANES
    loader = open_loader(build, num_workers=num_workers, lanes=options)
    gc.disable()
    try:
        assert len(list(itertools.islice(loader, len(got) // LANES * LANES + 1))) > 10
        assert not loader.lanes._running
    finally:
        gc.enable()
    assert worker_processes() == []


def test_a_worker_that_exits_is_named_with_its_code():
    loader = open_loader(faulty(die))
    got = []
    match = r"worker \d \(pid \d+, lanes \d-\d\) ended with exit code 7; .*state_dict"
    with pytest.raises(tz.WorkerError, match=match):
        got.extend(map(plain, loader))
    assert worker_processes() == []
    assert_last_state_is_good(loader, got)


def test_a_worker_that_exits_without_a_code_is_named():
    loader = open_loader(faulty(quit_quietly))
    with pytest.raises(tz.WorkerError, match=r"worker \d \(pid \d+, lanes \d-\d\) ended with exit code 0"):
        take(loader, 999)


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (signal.SIGKILL, r"signal 9 \(SIGKILL, often the system running out of memory\)"),
        (signal.SIGSEGV, r"signal 11 \(SIGSEGV\)"),
        (signal.SIGBUS, r"signal 7 \(SIGBUS, often a full /dev/shm: .*--shm-size.*prefetch_factor\)"),
    ],
)
def test_a_worker_that_is_killed_is_named_with_its_signal(number, match):
    loader = open_loader(faulty(pause), prefetch_factor=1)
    iterator = iter(loader)
    got = take(iterator, 2)
    thread = threading.Timer(0.2, os.kill, (worker_processes()[1], number))
    thread.start()
    start = time.monotonic()
    with pytest.raises(tz.WorkerError, match=rf"worker \d \(pid \d+, lanes \d-\d\) died of {match}"):
        got.extend(map(plain, iterator))
    assert time.monotonic() - start < 30
    thread.join()
    assert worker_processes() == []
    assert_last_state_is_good(loader, got)


def test_a_worker_killed_while_the_consumer_is_busy():
    """What torch raises in the middle of the consumer's work is not wanted: the next batches say it."""
    loader = open_loader()
    iterator = iter(loader)
    next(iterator)
    os.kill(worker_processes()[0], signal.SIGKILL)
    time.sleep(0.5)
    with pytest.raises(tz.WorkerError, match="SIGKILL"):
        take(iterator, 10**6)


def fail_at_start(worker):
    if worker == 1:
        raise OSError("no disk here")


def exit_at_start(worker):
    if worker == 1:
        os._exit(3)


def test_a_worker_that_fails_at_its_start_leaves_nothing_behind():
    loader = open_loader(worker_init_fn=fail_at_start)
    with pytest.raises(OSError, match="no disk here") as caught:
        next(iter(loader))
    assert worker_processes() == []  # while the exception is still held
    assert caught.value is not None
    loader = open_loader(worker_init_fn=exit_at_start)
    with pytest.raises(tz.WorkerError, match=r"worker 1 \(pid \d+, lanes 2-3\) ended with exit code 3"):
        next(iter(loader))
    assert worker_processes() == []


def test_a_script_that_workers_import_and_that_does_all_again_is_told(tmp_path):
    """The mistake that everybody makes once: no `if __name__ == "__main__":`."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torchzephon as tz\n"
        "samples = [{'input_ids': [1, 2, 3]}] * 100\n"
        "source = tz.MixtureWorkSource([tz.Dataset.from_samples('a', samples)])\n"
        "lanes = tz.Lanes(tz.TrainingBatcher(tz.SequencePacker(tz.Reader(source), 8), 2), 2)\n"
        "loader = tz.ElasticDataLoader(lanes, num_workers=1, multiprocessing_context='spawn')\n"
        "for batch in loader:\n"
        "    pass\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1
    assert re.search(
        r"WorkerError: worker 0 \(pid \d+, lanes 0-1\) ended with exit code 1; nothing has come from the workers yet, "
        r"and 'spawn' has each of them import the script: is all .* below `if __name__ == \"__main__\":`",
        ran.stderr,
    ), ran.stderr


def test_a_damaged_state_is_a_state_error_from_workers_too():
    with open_loader() as loader:
        take(loader, 2 * LANES)
        state = loader.state_dict()
    state["lanes"]["00001"] = state["lanes"]["00001"].replace("token", "tokem")
    loader = open_loader(state=state)
    with pytest.raises(tz.StateError, match=r"lane 1, node SequencePacker, while it was reset"):
        next(iter(loader))
    assert worker_processes() == []


def test_processes_in_a_lane_cannot_run_in_a_worker():
    node = ParallelMapper(endless(), plain, num_workers=1, method="process")
    lanes = tz.Lanes(node, 2, dp=(0, 1))
    with pytest.raises(
        ValueError, match=r"method='process'.*cannot start processes.*method='thread', or num_workers=0"
    ):
        tz.ElasticDataLoader(lanes, 1)
    tz.ElasticDataLoader(lanes, 0)


# -- nothing is left behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "with", "forget"])
@pytest.mark.parametrize("persistent", [False, True])
def test_stopping_early_leaves_no_process(how, persistent):
    loader = open_loader(persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    assert len(worker_processes()) == 2
    if how == "close":
        loader.close()
    elif how == "with":
        with loader:
            pass
    else:
        del loader, iterator
    assert wait_for_no_workers(3) == []


def test_a_loop_that_is_left_stops_the_workers():
    loader = open_loader()
    for _ in loader:
        break
    assert worker_processes() == []
    assert take(loader, 2) == expected(endless, LANES, 1)[:2]


def test_a_closed_loader_goes_on_where_it_was():
    loader = open_loader()
    iterator = iter(loader)
    got = take(iterator, 6)
    loader.close()
    assert worker_processes() == []
    got += take(iterator, 6)
    assert got == expected(endless, LANES, 3)
    loader.close()


def test_two_loaders_at_once_one_with_threads_one_with_workers():
    """The workers are forked while the lane threads of the other loader run."""
    train = open_loader(num_workers=0, lanes={"num_threads": 2, "prefetch": 4})
    running = iter(train)
    got = take(running, 3)
    evals = [open_loader(build, num_workers=2) for build in (finite, endless)]
    for build, loader in zip((finite, endless), evals, strict=True):
        with loader:
            assert take(loader, 2 * LANES) == expected(build, LANES, 2)
            got += take(running, 1)
    got += take(running, 3)
    assert got == expected(endless, LANES, 2)
    train.close()


def test_two_worker_loaders_take_turns():
    with open_loader() as one, open_loader(finite, num_workers=3) as two:
        pairs = [(plain(a), plain(b)) for a, b in itertools.islice(zip(one, two, strict=False), 8)]
    assert [a for a, _ in pairs] == expected(endless, LANES, 2)
    assert [b for _, b in pairs] == expected(finite, LANES, 2)


def resident_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


def test_neither_files_nor_memory_pile_up():
    def build():
        return tz.TrainingBatcher(endless().source, 2, cu_seqlens=True)

    with tz.ElasticDataLoader(tz.Rounds(tz.Lanes(build(), LANES, dp=(0, 1))), 2) as loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(30)]
        files, pages = open_files(), resident_pages()
        kept += [next(iterator) for _ in range(300)]  # a consumer may hold on to them
        assert open_files() <= files + 8
        assert resident_pages() - pages < 5000  # 20 MB
    assert len(kept) == 330


# -- what is in a batch ------------------------------------------------------------------------------------------------


def test_batches_with_bounds_of_documents_travel():
    def build():
        return tz.TrainingBatcher(endless().source, 2, cu_seqlens=True)

    with open_loader(build, num_workers=2) as loader:
        got = take(loader, 4 * LANES)
    assert got == expected(build, LANES, 4)
    assert len({len(batch["cu_seqlens"]) for batch in got}) > 1


def test_items_that_are_no_batches_of_tensors_travel():
    def build():
        return tz.Reader(tz.MixtureWorkSource([tz.Dataset.from_samples("a", DOCS)], exhausted_policy="repeat"))

    reference = [[dict(sample) for sample in block] for block in itertools.islice(tz.Lanes(build(), 2, dp=(0, 1)), 6)]
    with open_loader(build, num_lanes=2) as loader:
        got = [[dict(sample) for sample in block] for block in itertools.islice(loader, 6)]
    assert got == reference


def test_batches_are_made_in_shared_memory(monkeypatch):
    """All but those of the first rounds, which tell how much memory is needed."""
    copy, copied = transport.Sender._copy, []

    def counted(self, batches, groups):
        copied.append(1)
        assert len(copied) <= 1, "copied"
        return copy(self, batches, groups)

    monkeypatch.setattr(transport.Sender, "_copy", counted)
    with open_loader(multiprocessing_context="fork") as loader:
        assert len(take(loader, 10 * LANES)) == 10 * LANES

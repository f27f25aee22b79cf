"""Lanes on simulated ranks: rounds, blanks, ends, cycles, errors."""

import gc
import json
import logging
import os
import threading
import time
from itertools import count, islice

import pytest
from support.graphs import documents, is_blank, lane_streams, open_ranks, plain, through_json, token_graph
from support.interrupts import interrupt_at
from torchdata.nodes import BaseNode, Loader, Mapper, Prefetcher

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 4


def finite(**options):
    return token_graph(DOCS, exhausted_policy="stop", chunk_size=4, **options)


def endless(**options):
    return token_graph(DOCS, chunk_size=4, **options)


def lanes(build=endless, num_lanes=LANES, dp=(0, 1), **options):
    return tz.Lanes(build(), num_lanes, dp=dp, **options)


def run(node):
    return [plain(batch) for batch in node]


def lane_threads():
    gc.collect()  # torchdata's Loader and its iterator refer to each other
    return [thread for thread in threading.enumerate() if thread.name.startswith("torchzephon-lanes")]


# -- rounds ----------------------------------------------------------------------------------------------------------


def test_batches_come_round_robin_in_lane_order():
    streams = lane_streams(endless, LANES, 3)
    node = lanes()
    assert [plain(next(node)) for _ in range(3 * LANES)] == [
        streams[lane][r] for r in range(3) for lane in range(LANES)
    ]
    assert node.round == 3
    node.close()


def test_a_function_may_build_the_graph_of_each_lane():
    expected = [plain(next(node)) for node in [lanes()] for _ in range(8)]
    node = tz.Lanes(endless, LANES, dp=(0, 1))
    assert [plain(next(node)) for _ in range(8)] == expected


def test_uneven_ranks_are_padded_allowed_or_refused():
    padded = [lanes(num_lanes=5, dp=(rank, 3)) for rank in range(3)]
    assert [len(node.owned) for node in padded] == [1, 2, 2]
    shares = [[is_blank(next(node)) for _ in range(4)] for node in padded]
    assert shares == [[False, True] * 2, [False] * 4, [False] * 4]
    allowed = lanes(num_lanes=5, dp=(0, 3), uneven="allow")
    assert not any(is_blank(next(allowed)) for _ in range(4))
    with pytest.raises(ValueError, match=r"3 ranks do not divide num_lanes=5; use uneven='pad'"):
        lanes(num_lanes=5, dp=(0, 3), uneven="error")
    lanes(num_lanes=6, dp=(0, 3), uneven="error")


def test_blanks_have_the_shape_of_batches_and_nothing_to_learn_from():
    node = lanes(num_lanes=3, dp=(0, 2))
    real, blank = next(node), next(node)
    assert {name: (v.shape, v.dtype) for name, v in real.items()} == {n: (v.shape, v.dtype) for n, v in blank.items()}
    assert is_blank(blank)


def test_a_root_without_blank_is_refused_where_one_could_be_needed():
    def reader(**source):
        return tz.Reader(tz.MixtureWorkSource([tz.Dataset.from_samples("a", DOCS)], **source))

    endless_source = {"exhausted_policy": "repeat"}
    with pytest.raises(ValueError, match=r"Reader has no blank\(\) to pad the rounds.*uneven='allow'"):
        tz.Lanes(reader(**endless_source), 3, dp=(0, 2))
    with pytest.raises(ValueError, match=r"finite.*Reader has no blank\(\).*end='ragged'.*end='drop'"):
        tz.Lanes(reader(), 2, dp=(0, 1))
    tz.Lanes(reader(**endless_source), 4, dp=(0, 2))
    tz.Lanes(reader(), 1, dp=(0, 1))
    tz.Lanes(reader(), 2, dp=(0, 1), end="drop")


def test_blanks_pass_through_stock_nodes():
    def build():
        return Mapper(Prefetcher(endless(), 2), shout)

    node = tz.Lanes(build(), 3, dp=(0, 2))
    real, blank = next(node), next(node)
    assert real["loud"]
    assert blank["loud"]
    assert is_blank(blank)
    node.close()


def shout(batch):
    return {**batch, "loud": True}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"num_lanes": 0}, ValueError, "num_lanes must be at least 1, got 0"),
        ({"num_lanes": 2**40}, ValueError, "num_lanes must be at most 1000000, got 1099511627776"),
        ({"num_lanes": 2.0}, TypeError, "num_lanes must be an int"),
        ({"num_lanes": True}, TypeError, "num_lanes must be an int"),
        ({"uneven": "ignore"}, ValueError, "uneven must be one of 'pad', 'allow', 'error'"),
        ({"end": "stop"}, ValueError, "end must be one of"),
        ({"cycles": "other"}, ValueError, "cycles must be one of"),
        ({"num_threads": -1}, ValueError, "num_threads must be at least 0"),
        ({"prefetch": 0}, ValueError, "prefetch must be at least 1"),
        ({"dp": (3, 3)}, ValueError, "rank 3 of 3 does not exist"),
        ({"dp": (0, 9)}, ValueError, "9 data-parallel ranks .* cannot share num_lanes=4 lanes"),
        ({"dp": "WORLD"}, TypeError, "dp must be a DeviceMesh"),
    ],
)
def test_arguments_are_checked_where_they_enter(options, error, match):
    with pytest.raises(error, match=match):
        lanes(**options)


# -- the end of finite data --------------------------------------------------------------------------------------------


def real(batches):
    return [batch for batch in batches if any(x != -100 for row in batch["labels"] for x in row)]


def test_pad_loses_nothing_and_ends_when_all_lanes_are_dry():
    streams = lane_streams(finite, LANES, 999)
    lengths = [len(stream) for stream in streams]
    assert len(set(lengths)) > 1
    got = run(lanes(finite))
    assert len(got) == LANES * max(lengths)
    for lane, stream in enumerate(streams):
        assert real(got[lane::LANES]) == real(stream)


def test_drop_ends_before_the_first_round_that_some_lane_cannot_fill(caplog):
    streams = lane_streams(finite, LANES, 999)
    got = run(lanes(finite, end="drop"))
    shortest = min(map(len, streams))
    assert got == [streams[lane][r] for r in range(shortest) for lane in range(LANES)]
    longer = [lane for lane in range(LANES) if len(streams[lane]) > shortest]
    assert f"the data ends after round {shortest}, before what lanes {longer} still had was used" in caplog.text


def test_ragged_runs_each_lane_to_its_own_end():
    streams = lane_streams(finite, LANES, 999)
    got = run(lanes(finite, end="ragged"))
    assert sorted(map(str, got)) == sorted(str(batch) for stream in streams for batch in stream)


def test_finite_data_on_ranks_without_a_process_group_runs_ragged_with_a_warning(caplog):
    got = [batch for rank in range(3) for batch in run(lanes(finite, dp=(rank, 3), uneven="allow"))]
    assert sorted(map(str, got)) == sorted(str(b) for stream in lane_streams(finite, LANES, 999) for b in stream)
    assert "no process group stands behind the ranks (dp=(rank, size))" in caplog.text


def test_an_endless_curriculum_cut_short_by_a_node_is_refused_on_several_ranks():
    def build():
        return Take(endless(), 2)

    node = tz.Lanes(build(), LANES, dp=(0, 1), end="ragged")
    assert len(run(node)) == 2 * LANES
    node = tz.Lanes(build(), LANES, dp=(0, 2))
    with pytest.raises(tz.LaneError, match="lane 0 ended after 2 batches although its curriculum is endless"):
        run(node)


class Take(BaseNode):
    def __init__(self, source, count):
        super().__init__()
        self.source, self.count = source, count

    def blank(self):
        return self.source.blank()

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.given = 0 if initial_state is None else initial_state["given"]
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self):
        if self.given == self.count:
            raise StopIteration
        self.given += 1
        return next(self.source)

    def get_state(self):
        return {"given": self.given, "source": self.source.state_dict()}


def test_after_the_end_next_keeps_raising():
    node = lanes(finite)
    run(node)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(node)
    assert not lane_threads()


# -- cycles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cycles", ["reshuffle", "same"])
def test_iterating_again_after_the_end_is_the_next_cycle(cycles):
    def build():
        return finite(shuffle_within_shard=True)

    node = lanes(build, cycles=cycles)
    first = run(node)
    node.reset(None)
    second = run(node)
    assert (first == second) is (cycles == "same")
    assert second == run_cycle(build, 0 if cycles == "same" else 1)


def run_cycle(build, cycle):
    streams = lane_streams(build, LANES, 999, cycle=cycle)
    blank = plain(build().blank())
    return [s[r] if r < len(s) else blank for r in range(max(map(len, streams))) for s in streams]


@pytest.mark.parametrize("make_loader", [Loader, tz.ElasticDataLoader])
def test_a_state_saved_at_the_very_end_resumes_into_the_next_cycle(make_loader):
    def build():
        return finite(shuffle_within_shard=True)

    expected = run_cycle(build, 1)
    loader = make_loader(lanes(build))
    count = sum(1 for _ in loader)
    at_end = through_json(loader.state_dict())
    loader = make_loader(lanes(build))
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    before_end_is_noticed = through_json(loader.state_dict())
    for state in (at_end, before_end_is_noticed):
        loader = make_loader(lanes(build))
        loader.load_state_dict(state)
        assert run(loader) == expected
        assert '"cycle":1' in json.dumps(loader.state_dict()).replace("\\", "")


@pytest.mark.parametrize(("batches", "warnings"), [(5, (0, 0, 1, 2)), (2 * LANES, (0, 1, 2, 3))])
def test_breaking_out_replays_the_cycle_and_says_so(caplog, batches, warnings):
    """Unless only the first round was looked at, once."""
    loader = Loader(lanes())
    expected = [lane_streams(endless, LANES, 4)[i % LANES][i // LANES] for i in range(batches)]
    for expected_warnings in warnings:
        assert [plain(batch) for batch, _ in zip(loader, range(batches), strict=False)] == expected
        assert caplog.text.count("replays it from its start") == expected_warnings


def test_the_collector_does_not_wait_for_ever_for_a_thread(monkeypatch):
    """It may run in a thread that holds what the lanes' thread waits for."""
    monkeypatch.setattr("torchzephon.elastic.lanes._PATIENCE_S", 0.05)
    begun, stands, go = threading.Event(), threading.Event(), threading.Event()

    def stand(sample):
        if begun.is_set() and threading.current_thread() is not threading.main_thread():
            stands.set()
            go.wait(20)
        return sample

    node = lanes(lambda: token_graph(DOCS, wrap=lambda source: tz.SampleMapper(source, stand)), num_threads=1)
    next(node)
    begun.set()
    assert stands.wait(10)
    begin = time.monotonic()
    del node
    gc.collect()
    waited = time.monotonic() - begin
    go.set()
    assert waited < 10
    assert eventually(lambda: not lane_threads())


def test_a_pump_can_be_closed_wherever_closing_was_interrupted():
    for line in count(1):
        node = lanes()
        next(node)
        pump = node._supply
        was_interrupted = interrupt_at(line, "close", pump.close)
        pump.close()
        assert eventually(lambda: not lane_threads())
        if not was_interrupted:
            break
    assert line > 5


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_cycle_without_a_batch_says_so(caplog, is_empty):
    samples = [{"input_ids": [1, 2]}] * (3 if is_empty else 30)
    source = tz.MixtureWorkSource([tz.Dataset.from_samples("a", samples)])
    node = tz.Lanes(tz.SequencePacker(tz.Reader(source), 8, drop_last=True), 1, dp=(0, 1))
    assert (list(node) == []) is is_empty
    assert ("cycle 0 has ended without a single batch" in caplog.text) is is_empty


def test_a_rank_that_is_dry_at_load_does_not_start_over_alone():
    """Loader resets a root that gives nothing after a load; other ranks may still have data."""
    loaders, iterators = open_ranks(finite, 2, LANES, uneven="allow", end="ragged")
    done = list(iterators[0])
    states = [loader.state_dict() for loader in loaders]
    assert done
    state = tz.merge_states(states, allow_skew=True)
    loaders, iterators = open_ranks(finite, 2, LANES, state, uneven="allow", end="ragged")
    assert list(iterators[0]) == []
    assert len(list(iterators[1])) > 0
    assert list(iter(loaders[0])) != []  # the next iteration is the next cycle


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_state_in_mid_round_keeps_padded_ranks_in_step():
    node = lanes()
    for _ in range(LANES + 1):
        next(node)
    state = through_json(node.state_dict())
    assert state["round"] == 1
    streams = lane_streams(endless, LANES, 3)
    nodes = [lanes(dp=(rank, 2)) for rank in range(2)]
    for rank_node in nodes:
        rank_node.reset(state)
    shares = [[plain(next(rank_node)) for _ in range(4)] for rank_node in nodes]
    blank = plain(endless().blank())
    assert shares[0] == [blank, streams[1][1], streams[0][2], streams[1][2]]
    assert shares[1] == [streams[2][1], streams[3][1], streams[2][2], streams[3][2]]


@pytest.mark.parametrize("num_lanes", [3, 4, 7])
def test_a_blank_batch_that_was_given_is_not_given_again(num_lanes):
    docs = [{"input_ids": [i] * 8} for i in range(1, 2 * num_lanes - 1)]  # the last lanes end before the others
    build = lambda: token_graph(docs, seq_len=7, batch_size=1, exhausted_policy="stop", chunk_size=1)  # noqa: E731
    node = tz.Lanes(build(), num_lanes, num_threads=0)
    states, expected = [node.state_dict()], []
    for batch in node:
        expected.append(plain(batch))
        states.append(through_json(node.state_dict()))
    assert sum(all(label == -100 for label in batch["labels"][0]) for batch in expected) == 2
    for given, state in enumerate(states[:-1]):
        again = tz.Lanes(build(), num_lanes, num_threads=0)
        again.reset(state)
        assert run(again) == expected[given:]


def test_a_state_in_mid_round_needs_no_blanks_on_one_rank():
    node = lanes()
    for _ in range(LANES + 1):
        next(node)
    alone = lanes()
    alone.reset(through_json(node.state_dict()))
    assert [plain(next(alone)) for _ in range(2 * LANES)] == [plain(next(node)) for _ in range(2 * LANES)]


def test_a_fresh_state_is_the_beginning():
    node = lanes()
    state = node.state_dict()
    assert not lane_threads()
    other = lanes()
    other.reset(through_json(state))
    assert plain(next(other)) == plain(next(node))


def test_batches_made_ahead_are_not_counted():
    node = lanes(num_threads=2, prefetch=4)
    next(node)
    given = [json.loads(text)["given"] for text in node.state_dict()["lanes"].values()]
    assert given == [1, 0, 0, 0]
    node.close()


def test_closing_pauses():
    node = lanes()
    expected = lane_streams(endless, LANES, 3)
    got = [plain(next(node)) for _ in range(5)]
    node.close()
    assert not lane_threads()
    got += [plain(next(node)) for _ in range(7)]
    assert got == [expected[lane][r] for r in range(3) for lane in range(LANES)]
    node.close()


def test_threads_end_with_the_node():
    node = lanes(num_threads=3)
    next(node)
    assert lane_threads()
    del node
    assert not lane_threads()


def test_the_garbage_collector_may_find_the_node_in_one_of_its_threads(monkeypatch):
    complaints = []
    started, entered, dropped, collected = (threading.Event() for _ in range(4))
    monkeypatch.setattr("sys.unraisablehook", complaints.append)

    def collect(sample):
        if started.is_set() and not collected.is_set():
            entered.set()
            dropped.wait(10)
            gc.collect()
            collected.set()
        return sample

    def build():
        return token_graph(DOCS, block_size=1, wrap=lambda node: tz.SampleMapper(node, collect))

    node = lanes(build, num_threads=1, prefetch=100)
    next(node)
    started.set()
    assert entered.wait(10)
    cycle = [node]
    cycle.append(cycle)
    gc.disable()
    try:
        del node, cycle
        dropped.set()
        assert collected.wait(10)
    finally:
        gc.enable()
    deadline = time.monotonic() + 10
    while lane_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lane_threads()
    assert not complaints


# -- errors ------------------------------------------------------------------------------------------------------------


def explode(sample):
    if sample["id"] == 31:
        raise KeyError("boom")
    return sample


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_an_exception_names_lane_node_and_samples_and_keeps_the_last_good_state(num_threads):
    def build():
        return token_graph(DOCS, wrap=lambda node: tz.SampleMapper(node, explode), block_size=2)

    node = lanes(build, num_threads=num_threads)
    got = []
    with pytest.raises(tz.LaneError, match=r"lane \d, node SampleMapper, while it made batch \d+.*boom") as caught:
        got.extend(map(plain, node))
    assert "last read: dataset 'a', in memory" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not lane_threads()
    with pytest.raises(tz.LaneError, match="boom"):
        next(node)  # again, and not what comes after
    state = through_json(node.state_dict())
    given = [json.loads(text)["given"] for text in state["lanes"].values()]
    assert sum(given) == len(got)
    streams = lane_streams(endless_all, LANES, max(given) + 1)
    assert got == [streams[i % LANES][i // LANES] for i in range(len(got))]
    fixed = lanes(lambda: token_graph(DOCS, wrap=lambda n: tz.SampleMapper(n, lenient)), num_threads=num_threads)
    with pytest.raises(tz.StateError, match=r"SampleMapper\.fn"):
        fixed.reset(state)
    fixed.reset(tz.merge_states([state], accept={"fn"}))
    rest = [plain(next(fixed)) for _ in range(LANES)]
    assert rest == [streams[i % LANES][i // LANES] for i in range(len(got), len(got) + LANES)]
    fixed.close()


def endless_all():
    return token_graph(DOCS)


def lenient(sample):
    return sample


class Quits(BaseNode):
    begun = threading.Event()

    def __init__(self, source):
        super().__init__()
        self.source = source

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(None)

    def next(self):
        if self.begun.is_set() and threading.current_thread() is not threading.main_thread():
            raise SystemExit(3)
        return next(self.source)

    def get_state(self):
        return {}


def eventually(condition):
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_thread_that_is_stopped_tells_the_consumer():
    node = tz.Lanes(Quits(endless()), 1, dp=(0, 1), num_threads=1)
    next(node)
    Quits.begun.set()
    assert eventually(lambda: not lane_threads())
    with pytest.raises(tz.LaneError, match="its thread was stopped by SystemExit: 3"):
        list(islice(node, 10))  # what it had made before comes first


class Counts(Take):
    made = 0

    def next(self):
        type(self).made += 1
        return super().next()


def test_threads_run_ahead_while_the_consumer_is_away_and_not_too_far():
    Counts.made = 0
    node = tz.Lanes(Counts(endless(), 10**6), 3, dp=(0, 1), num_threads=2, prefetch=2)
    streams = lane_streams(endless, 3, 4)
    for taken in range(1, 10):
        assert plain(next(node)) == streams[(taken - 1) % 3][(taken - 1) // 3]
        assert eventually(lambda: Counts.made == taken + 2 * 3)  # noqa: B023 - asked at once
    time.sleep(0.1)
    assert Counts.made == 9 + 2 * 3
    node.close()


class Unplain(Take):
    def get_state(self):
        return {"given": {1, 2}}


def test_a_state_that_is_not_json_names_lane_and_node():
    node = tz.Lanes(Unplain(endless(), 9), 2, dp=(0, 1), num_threads=0)
    with pytest.raises(tz.LaneError, match=r"lane 0.*not JSON serializable: set"):
        next(node)


@pytest.mark.parametrize("num_threads", [0, 1])
def test_consumers_in_several_threads_get_each_batch_once(num_threads):
    for _ in range(10):
        node, found = lanes(num_threads=num_threads), []
        barrier = threading.Barrier(3)

        def consume(node=node, found=found, barrier=barrier):
            barrier.wait()
            for _ in range(8):
                found.append(plain(next(node)))

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state = through_json(node.state_dict())
        node.close()
        other = lanes(num_threads=0)
        expected = [plain(next(other)) for _ in range(24)]
        assert sorted(map(str, found)) == sorted(map(str, expected))
        assert state == through_json(other.state_dict())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_fork_cannot_go_on_with_its_parents_lanes(num_workers):
    """It has no threads, and their locks may be held; the parent's workers are the parent's."""
    options = {"multiprocessing_context": "fork"} if num_workers else {}
    with tz.ElasticDataLoader(lanes(), num_workers, **options) as loader:
        batches = iter(loader)
        expected = [plain(next(batches))]
        state = loader.state_dict()
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                told = [loader.state_dict() == state]
                for use in (lambda: next(batches), lambda: loader.load_state_dict(state)):
                    try:
                        use()
                    except RuntimeError as error:
                        told.append("make a loader in this process" in str(error))
                fresh = tz.ElasticDataLoader(lanes())
                fresh.load_state_dict(state)
                told.append(plain(next(iter(fresh))))
                os.write(writer, json.dumps(told).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = json.loads(pipe.read())
        os.waitpid(child, 0)
        expected += [plain(next(batches)) for _ in range(20)]
    assert told == [True, True, True, expected[1]]
    with tz.ElasticDataLoader(lanes(), 0) as other:
        assert [plain(batch) for batch in islice(other, 21)] == expected


def test_one_log_line_tells_what_runs(caplog):
    with caplog.at_level(logging.INFO, logger="torchzephon"):
        node = lanes(finite)
        next(node)
        next(node)
    lines = [record.getMessage() for record in caplog.records if "owns lanes" in record.getMessage()]
    assert len(lines) == 1
    assert "rank 0 of 1 owns lanes 0-3 of 4" in lines[0]
    assert "60 samples" in lines[0]
    assert "rounds a cycle" in lines[0]


def test_estimates_are_near_the_truth():
    node = lanes(finite)
    estimate = node.estimate_rounds()
    rounds = len(run(node)) / LANES
    assert rounds / 3 < estimate < rounds * 3
    assert lanes().estimate_rounds() is None

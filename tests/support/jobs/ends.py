"""Where finite data ends on several ranks, and how it goes on."""

import gc
import itertools
import random
import sys

import pytest
import torch
import torch.distributed as dist
from support.graphs import documents, is_blank, plain, through_json, token_graph
from support.ranks import Scenarios, gathered
from torchdata.nodes import Loader

import torchzephon as tz
from torchzephon.elastic.connections import Connections

scenario = Scenarios()
DOCS = documents(60, seed=1)
_groups = {}


def group_of(world_size):
    """The process group of the first ranks; every rank calls this in the same order."""
    if world_size not in _groups:
        _groups[world_size] = dist.new_group(list(range(world_size)))
    return _groups[world_size]


def graph(docs=DOCS, **options):
    return token_graph(docs, **{"exhausted_policy": "stop", "chunk_size": 4, **options})


def open_loader(num_lanes, dp, build=graph, **options):
    return tz.ElasticDataLoader(tz.Rounds(tz.Lanes(build(), num_lanes, dp=dp, **options)))


def real(batches):
    return [plain(batch) for batch in batches if not is_blank(batch)]


def joined(shares):
    """The rounds of all ranks, from each rank's; ranks that ran unequal numbers of rounds are an error."""
    return [list(itertools.chain(*share)) for share in zip(*shares, strict=True)]


def drained(node):
    while True:
        try:
            yield next(node)
        except StopIteration:
            return


def check_ends_alike(world_size, num_lanes, build=graph, *, rounds=True, cycles=1, **options):
    """All ranks' rounds are the rounds of one rank alone, to the end, for some cycles."""
    group = group_of(world_size)
    if dist.get_rank() >= world_size:
        return
    alone = open_loader(num_lanes, (0, 1), build, **options)
    loader = open_loader(num_lanes, group, build, **options)
    lanes = loader.lanes
    for cycle in range(cycles):
        expected = [real(share) for share in alone]
        if rounds:
            got, counts = [], set()
            for share in loader:
                got.append(real(share))
                counts.add(len(share))
        else:
            if cycle == 0:
                loader = Loader(lanes)
            flat, counts = list(loader), set()
            per_round = lanes.assignment.most_owned if lanes.pads else len(lanes.owned)
            got = [real(flat[i : i + per_round]) for i in range(0, len(flat), per_round)]
        where = f"{world_size=} {num_lanes=} {rounds=} {cycle=} {options}"
        everybody = gathered(got, group)
        assert len(set(map(len, everybody))) == 1, f"{list(map(len, everybody))} rounds: {where}"
        assert joined(everybody) == expected, where
        if lanes.pads:
            assert counts <= {-(-num_lanes // world_size)}, where
    lanes.close()


@scenario
def every_world_size_ends_after_the_same_round(out):
    choices = itertools.cycle([(1, 0), (3, 1), (1, 1), (3, 0), (2, 1)])
    for world_size, num_lanes, uneven, end in itertools.product((2, 3, 4), (5, 8), ("pad", "allow"), ("pad", "drop")):
        prefetch, num_threads = next(choices)
        options = {"uneven": uneven, "end": end, "prefetch": prefetch, "num_threads": num_threads}
        check_ends_alike(world_size, num_lanes, rounds=prefetch != 2, **options)


@scenario
def random_cases_end_after_the_same_round(out):
    rng = random.Random(5)
    for case in range(40):
        docs = documents(rng.choice([1, 2, 3, 10, 40]), seed=case, longest=rng.choice([1, 8, 60]))
        shape = {"seq_len": rng.randint(1, 12), "batch_size": rng.randint(1, 3), "chunk_size": rng.choice([None, 1, 7])}
        num_lanes = rng.randint(4, 9)
        check_ends_alike(
            rng.randint(2, 4),
            num_lanes,
            lambda docs=docs, shape=shape: graph(docs, **shape),
            rounds=rng.random() < 0.7,
            cycles=rng.randint(1, 3),
            uneven=rng.choice(["pad", "allow"]),
            end=rng.choice(["pad", "pad", "drop"]),
            prefetch=rng.randint(1, 4),
            num_threads=rng.randint(0, 2),
        )


@scenario
def no_token_of_ten_thousand_documents_is_lost(out):
    docs = documents(10_000, seed=2, longest=30)
    node = tz.Reader(tz.MixtureWorkSource([tz.Dataset.from_samples("a", docs)]))
    lanes = tz.Lanes(tz.SequencePacker(node, 128), 32)
    shares = list(tz.ElasticDataLoader(tz.Rounds(lanes)))
    tokens = [t for share in shares for s in share for t in s["input_ids"][: s["num_tokens"]].tolist()]
    everybody = gathered((len(shares), tokens))
    assert len({rounds for rounds, _ in everybody}) == 1
    assert sorted(t for _, tokens in everybody for t in tokens) == sorted(t for d in docs for t in d["input_ids"])


@scenario
def the_next_cycle_follows_on_all_ranks_alike(out):
    check_ends_alike(4, 6, cycles=3)
    loader = open_loader(4, None, cycles="same")
    first, second = list(map(real, loader)), list(map(real, loader))
    assert first == second


@scenario
def a_state_in_the_middle_of_the_last_round_ends_on_all_ranks_alike(out):
    """Ranks whose lanes have given their part of it already give nothing more, and must not go on by themselves."""
    alone = tz.ElasticDataLoader(tz.Lanes(graph(), 4, dp=(0, 1)))
    first, second = list(alone), real(alone)
    for given, make_loader in itertools.product((1, 3), (Loader, tz.ElasticDataLoader)):
        saved = Loader(tz.Lanes(graph(), 4, dp=(0, 1)))
        assert len(list(itertools.islice(saved, len(first) - 4 + given))) == len(first) - 4 + given
        loader = make_loader(tz.Lanes(graph(), 4, uneven="allow"))
        loader.load_state_dict(through_json(saved.state_dict()))
        rest, after = list(loader), real(loader)
        assert len(rest) == (dist.get_rank() >= given)
        assert list(itertools.chain(*gathered(real(rest)))) == real(first[len(first) - 4 + given :])
        shares = gathered(after)
        assert sorted(map(str, itertools.chain(*shares))) == sorted(map(str, second))


@scenario
def a_state_saved_at_the_very_end_resumes_into_the_next_cycle(out):
    alone = open_loader(5, (0, 1))
    first, second = list(map(real, alone)), list(map(real, alone))
    for seen, world_size, end in itertools.product((True, False), (2, 3), ("pad", "drop")):
        loader = open_loader(5, None, end=end)
        expected = second if end == "pad" else second[: len(list(open_loader(5, None, end="drop")))]
        iterator = iter(loader)
        rounds = len(first) if end == "pad" else sum(1 for _ in open_loader(5, None, end="drop"))
        for _ in range(rounds):
            next(iterator)
        if seen:
            with pytest.raises(StopIteration):
                next(iterator)
        state = tz.gather_state(loader)
        del iterator
        group = group_of(world_size)
        if dist.get_rank() < world_size:
            resumed = open_loader(5, group, end=end)
            resumed.load_state_dict(through_json(state))
            got = joined(gathered(list(map(real, resumed)), group))
            assert got[: len(expected)] == expected[: len(got)], (seen, world_size, end)
            assert got or end == "drop"
        dist.barrier()


@scenario
def ranks_that_start_within_one_round_agree_where(out):
    """Plain lanes saved in mid-round, where ranks own unequal numbers of lanes; each rank has its own lanes only."""
    for uneven, batches in (("allow", 3), ("pad", 3), ("pad", 2), ("allow", 1)):
        lanes = tz.Lanes(graph(), 6, uneven=uneven)
        given = [next(lanes) for _ in range(batches)]
        state = through_json(lanes.get_state())
        state["round"] = gathered(state["round"])[3]  # what DCP may keep of the ranks' equal keys
        lanes.close()
        resumed = tz.Lanes(graph(), 6, uneven=uneven)
        resumed.reset(state)
        got = sorted(map(str, itertools.chain(*gathered(real([*given, *drained(resumed)])))))
        assert got == sorted(str(b) for share in open_loader(6, (0, 1)) for b in real(share)), (uneven, batches)


@scenario
def ranks_in_different_cycles_are_told(out):
    loader = open_loader(4, None)
    if dist.get_rank() == 1:
        state = {"given": 0, "cycle": 1}
        whole = through_json(loader.state_dict())
        whole["lanes"] = {name: str(state).replace("'", '"') for name in whole["lanes"]}
        loader.load_state_dict(whole)
    with pytest.raises(RuntimeError, match=r"another one stopped iterating, failed, or is elsewhere"):
        next(iter(loader))


@scenario
def a_lane_that_cannot_go_on_from_its_state_is_missed_at_once(out):
    for num_workers in (0, 1):
        loader = tz.ElasticDataLoader(tz.Lanes(graph(), 4), num_workers)
        assert len(list(itertools.islice(loader, 2))) == 2
        state = tz.gather_state(loader)
        loader.close()
        state["lanes"]["00001"] = state["lanes"]["00001"].replace("token", "tokem")
        loader.load_state_dict(state)
        with pytest.raises((tz.StateError, RuntimeError)) as caught:
            list(loader)
        names = gathered(type(caught.value).__name__)
        assert names == ["RuntimeError", "StateError", "RuntimeError", "RuntimeError"]


@scenario
def a_rank_that_did_not_load_the_checkpoint_is_told(out):
    for rounds in (2, 5):
        loader = open_loader(4, None)
        iterator = iter(loader)
        for _ in range(rounds):
            next(iterator)
        state = tz.gather_state(loader)
        del iterator
        loader = open_loader(4, None)
        if dist.get_rank() != 1:
            loader.load_state_dict(state)
        iterator = iter(loader)
        for _ in range(2):  # and it stays so
            with pytest.raises(RuntimeError, match=rf"one begins with round 0 of .* another one with round {rounds}"):
                next(iterator)
        loader.load_state_dict(state)
        assert joined(gathered(list(map(real, loader)))) == list(map(real, open_loader(4, (0, 1))))[rounds:]


@scenario
def ranks_that_were_made_otherwise_are_told(out):
    rank = dist.get_rank()
    for build, num_lanes, options in (
        (lambda: graph(seed=rank), 4, {}),
        (lambda: graph(DOCS[rank == 2 :]), 4, {}),
        (lambda: graph(seq_len=8 + (rank == 3)), 4, {}),
        (graph, 4 + rank // 2, {}),
        (graph, 4, {"prefetch": 1 + rank // 3}),
        (graph, 4, {"end": "pad" if rank else "drop"}),
        (graph, 5, {"uneven": "pad" if rank else "allow"}),
    ):
        loader = open_loader(num_lanes, None, build, **options)
        with pytest.raises(RuntimeError, match=r"do not read the same data: they were made with other graphs"):
            next(iter(loader))


@scenario
def all_ranks_leave_after_the_same_round_and_iterate_again(out):
    loader = open_loader(5, None)
    expected = list(map(real, open_loader(5, (0, 1))))
    for leave in (0, 1, 3, 4):
        got = [real(share) for share in itertools.islice(loader, leave)]
        assert joined(gathered(got)) == expected[:leave]
    assert joined(gathered(list(map(real, loader)))) == expected


def alike(wrap=None):
    """A graph in which every rank reaches the same sample at the same time."""
    docs = [{"input_ids": [i] * 9} for i in range(1, 65)]
    return token_graph(docs, seq_len=8, batch_size=1, chunk_size=1, block_size=1, exhausted_policy="stop", wrap=wrap)


@scenario
def ranks_that_are_interrupted_in_a_round_go_on_with_it(out):
    for at, (num_lanes, rounds, end) in itertools.product(
        (1, 5, 9, 14), [(4, True, "pad"), (4, False, "pad"), (8, True, "drop")]
    ):
        calls = itertools.count(1)

        def interrupt(sample, at=at, calls=calls):
            if next(calls) == at:
                raise KeyboardInterrupt
            return sample

        expected = [batch for share in open_loader(num_lanes, (0, 1), alike, end=end) for batch in share]
        root = alike(lambda node, interrupt=interrupt: tz.SampleMapper(node, interrupt))
        lanes = tz.Lanes(root, num_lanes, end=end, num_threads=0)
        loader = tz.ElasticDataLoader(tz.Rounds(lanes) if rounds else lanes)
        iterator, got, interrupts = iter(loader), [], 0
        while True:
            try:
                item = next(iterator)
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
            else:
                got += item if rounds else [item]
        everybody = gathered((interrupts, len(got), real(got)))
        assert {count for count, _, _ in everybody} == {1}
        assert len({count for _, count, _ in everybody}) == 1
        batches = sorted(str(batch) for _, _, batches in everybody for batch in batches)
        assert batches == sorted(str(batch) for batch in real(expected)), (at, num_lanes, rounds, end)


@scenario
def a_rank_that_leaves_early_is_missed_at_once(out):
    for prefetch in (1, 3):
        loader = open_loader(5, None, prefetch=prefetch)
        if dist.get_rank() == 1:
            for number, _ in enumerate(loader):
                if number == 2:
                    break
        else:
            with pytest.raises(
                RuntimeError, match=r"another one stopped iterating.*leave the loop after the same round"
            ):
                list(loader)
        dist.barrier()


def with_bad(*numbers, block_size=1):
    """The graph over documents of which some cannot be packed."""
    docs = [doc if i not in numbers else {"id": i, "input_ids": "not tokens"} for i, doc in enumerate(DOCS)]
    return lambda: graph(docs, block_size=block_size)


@scenario
def a_rank_whose_lane_fails_is_missed_at_once(out):
    loader = open_loader(4, None, with_bad(40, block_size=None))
    with pytest.raises((tz.LaneError, RuntimeError)) as caught:
        list(loader)
    names = gathered(type(caught.value).__name__)
    assert sorted(names) == ["LaneError", "RuntimeError", "RuntimeError", "RuntimeError"]
    with pytest.raises((tz.LaneError, RuntimeError)):  # and no hang either when one of them tries again
        next(iter(loader) if names[dist.get_rank()] == "LaneError" else loader.node)


def until_error(loader):
    """-> (what comes, the name of the error after it)"""
    shares = []
    try:
        shares.extend(map(real, loader))  # what came before an error stays
    except RuntimeError as error:
        return shares, type(error).__name__
    return shares, None


@scenario
def a_bad_sample_is_met_in_its_turn_or_dropped_on_all_ranks_alike(out):
    """Ranks ask for batches rounds ahead, and must neither raise too soon nor for what never takes place."""
    seen = set()
    prefetches = itertools.cycle([1, 2, 3])
    for number, end, num_lanes in itertools.product(range(20, 60, 3), ("pad", "drop"), (4, 8)):
        prefetch = next(prefetches)
        where = f"{number=} {end=} {num_lanes=} {prefetch=}"
        expected, alone = until_error(open_loader(num_lanes, (0, 1), with_bad(number), end=end))
        loader = open_loader(num_lanes, None, with_bad(number), end=end, prefetch=prefetch)
        shares, names = zip(*gathered(until_error(loader)), strict=True)
        rounds = min(map(len, shares))
        assert joined([share[:rounds] for share in shares]) == expected[:rounds], where
        seen.add((end, alone))
        if alone is None:
            assert set(names) == {None}, where
            assert {len(share) for share in shares} == {len(expected)}, where
            continue
        assert "LaneError" in names, where
        assert len(shares[names.index("LaneError")]) == len(expected), where
        if end == "drop" or num_lanes == 4:  # then a rank looks at all that it has ahead of time, and tells the others
            assert sorted(names) == ["LaneError", *["RuntimeError"] * 3], where
            assert {len(share) for share in shares} == {len(expected)}, where
            state = tz.gather_state(loader)
            again = open_loader(num_lanes, None, with_bad(number), end=end)
            again.load_state_dict(through_json(state))
            assert sorted(gathered(until_error(again)[1])) == sorted(names), where
    assert seen == {("pad", "LaneError"), ("drop", "LaneError"), ("drop", None)}


@scenario
def ranks_iterate_anew_after_an_error(out):
    for prefetch, end, numbers in itertools.product((1, 2, 3), ("pad", "drop"), ([35], [24, 41])):
        loader = open_loader(8, None, with_bad(*numbers), end=end, prefetch=prefetch)
        attempts = [gathered(until_error(loader)[1]) for _ in range(4)]
        where = f"{prefetch=} {end=} {numbers=}: {attempts}"
        assert "LaneError" in attempts[0], where
        assert len(numbers) > 1 or attempts == attempts[:1] * 4, where
        # When several ranks failed each by itself, the next attempt may do no more than tell so.
        assert not any(set(one) | set(other) == {"RuntimeError"} for one, other in itertools.pairwise(attempts)), where


@scenario
def loaders_come_and_go_in_any_order(out):
    """Each rank keeps and drops loaders as it likes: connections are made in step, and go alone."""
    rng = random.Random(dist.get_rank())
    kept = []
    for number in range(12):
        loader = open_loader(4, None, prefetch=1 + number % 3)
        assert len(list(itertools.islice(loader, 2))) == 2
        kept.append(loader)
        if rng.random() < 0.5:
            kept.clear()
            gc.collect()
    del loader
    kept.clear()
    gc.collect()
    dist.barrier()
    open_loader(4, None)
    assert len(Connections._open) < 6  # those of scenarios that left at different rounds


@scenario
def worker_processes_end_after_the_same_round(out):
    lanes = tz.Lanes(graph(), 5)
    loader = tz.ElasticDataLoader(tz.Rounds(lanes), num_workers=2, persistent_workers=True)
    alone = open_loader(5, (0, 1))
    for _ in range(2):
        assert joined(gathered(list(map(real, loader)))) == list(map(real, alone))
    assert len(list(itertools.islice(loader, 2))) == 2
    loader.close()


@scenario
def gathered_states_are_equal_and_load_anywhere(out):
    loader = open_loader(5, None)
    expected = list(map(real, open_loader(5, (0, 1))))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = tz.gather_state(loader)
    assert gathered(state) == [state] * 4
    if dist.get_rank() == 0:
        torch.save(state, out / "state.pt")
    dist.barrier()
    loaded = torch.load(out / "state.pt", weights_only=True)
    alone = open_loader(5, (0, 1))
    alone.load_state_dict(loaded)
    assert list(map(real, alone)) == expected[3:]
    assert joined(gathered(list(map(real, iterator)))) == expected[3:]


@scenario
def iterating_goes_on_after_destroy_process_group(out):
    """The last one. A loader that is still there when the interpreter ends must not complain."""
    global survivor
    survivor = open_loader(5, None)
    iterator = iter(survivor)
    next(iterator)
    dist.barrier()
    dist.destroy_process_group()
    next(iterator)


if __name__ == "__main__":
    scenario.run(sys.argv[1])

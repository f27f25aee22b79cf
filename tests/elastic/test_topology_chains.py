"""The central promise, over random topologies: every lane's stream is exact, whatever was saved and loaded where."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import documents, is_blank, lane_streams, open_ranks, owned, plain, through_json, token_graph

import torchzephon as tz

CHAIN = settings(deadline=None, max_examples=180, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw, finite):
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=3))
    docs = {f"d{i}": documents(size, seed=i) for i, size in enumerate(sizes)}
    source = {
        "seed": draw(st.integers(0, 5)),
        "exhausted_policy": "stop" if finite else "repeat",
        "shuffle_within_shard": draw(st.booleans()),
        "chunk_size": draw(st.sampled_from([None, 1, 5, 40])),
    }
    if draw(st.booleans()):
        source["weights"] = {name: draw(st.sampled_from([1, 2, 0.3])) for name in docs}
    packer = {"algorithm": draw(st.sampled_from(["wrap", "best_fit", "first_fit"]))}
    if packer["algorithm"] != "wrap":
        packer["window"] = draw(st.sampled_from([4, 16, 1024]))
    seq_len = draw(st.integers(1, 12))

    def build(batch_size=2, block_size=None):
        return token_graph(docs, seq_len=seq_len, batch_size=batch_size, packer=packer, block_size=block_size, **source)

    return build


@st.composite
def chains(draw):
    num_lanes = draw(st.integers(1, 7))
    steps = [
        {
            "world_size": draw(st.integers(1, num_lanes)),
            "num_threads": draw(st.sampled_from([0, 0, 1, 2])),
            "prefetch": draw(st.integers(1, 3)),
            "block_size": draw(st.sampled_from([None, 1, 3, 50])),
            "batches": draw(st.lists(st.integers(0, 9), min_size=num_lanes, max_size=num_lanes)),
        }
        for _ in range(draw(st.integers(1, 4)))
    ]
    return num_lanes, steps


@CHAIN
@given(graphs(finite=False), chains())
def test_every_lane_continues_exactly_when_ranks_save_anywhere(build, chain):
    num_lanes, steps = chain
    got = [[] for _ in range(num_lanes)]
    state = None
    for step in steps:
        loaders, iterators = open_ranks(
            lambda step=step: build(block_size=step["block_size"]),
            step["world_size"],
            num_lanes,
            state,
            uneven="allow",
            num_threads=step["num_threads"],
            prefetch=step["prefetch"],
        )
        for rank, iterator in enumerate(iterators):
            mine = owned(rank, step["world_size"], num_lanes)
            for _ in range(step["batches"][rank]):
                lane = min(mine, key=lambda lane: (len(got[lane]), lane))
                got[lane].append(plain(next(iterator)))
        state = tz.merge_states([loader.state_dict() for loader in loaders], allow_skew=True)
        for loader in loaders:
            loader.root.close()
    expected = lane_streams(build, num_lanes, max(map(len, got)))
    assert got == [stream[: len(mine)] for stream, mine in zip(expected, got, strict=True)]


@CHAIN
@given(graphs(finite=True), chains())
def test_finite_data_is_exact_and_complete_through_any_chain(build, chain):
    num_lanes, steps = chain
    expected = lane_streams(build, num_lanes, 10**6)
    got = [[] for _ in range(num_lanes)]
    state = None
    last = {**steps[-1], "batches": [10**6] * num_lanes}
    for step in [*steps, last]:
        loaders, iterators = open_ranks(
            lambda step=step: build(block_size=step["block_size"]),
            step["world_size"],
            num_lanes,
            state,
            uneven="allow",
            end="ragged",
            num_threads=step["num_threads"],
            prefetch=step["prefetch"],
        )
        for rank, iterator in enumerate(iterators):
            mine = owned(rank, step["world_size"], num_lanes)
            for _ in range(step["batches"][rank]):
                batch = next(iterator, None)
                if batch is None:
                    break
                open_lanes = [lane for lane in mine if len(got[lane]) < len(expected[lane])]
                assert open_lanes, "a batch beyond the end of the data"
                lane = min(open_lanes, key=lambda lane: (len(got[lane]), lane))
                got[lane].append(plain(batch))
        state = tz.merge_states([loader.state_dict() for loader in loaders], allow_skew=True)
        for loader in loaders:
            loader.root.close()
        if all(len(mine) == len(full) for mine, full in zip(got, expected, strict=True)):
            break
    assert got == expected


@CHAIN
@given(graphs(finite=False), chains(), st.integers(1, 3))
def test_rounds_are_the_same_at_every_world_size(build, chain, micro_batch_size):
    num_lanes, steps = chain
    got, state = [], None
    for step in steps:
        loaders = []
        for rank in range(step["world_size"]):
            lanes = tz.Lanes(
                build(batch_size=micro_batch_size, block_size=step["block_size"]),
                num_lanes,
                dp=(rank, step["world_size"]),
                num_threads=step["num_threads"],
                prefetch=step["prefetch"],
            )
            loader = tz.ElasticDataLoader(tz.Rounds(lanes, micro_batch_size=micro_batch_size))
            if state is not None:
                loader.load_state_dict(through_json(state))
            loaders.append(loader)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(step["batches"][0] // 2):
            shares = [next(iterator) for iterator in iterators]
            assert len({len(share) for share in shares}) == 1
            got.append([plain(batch) for share in shares for batch in share if not is_blank(batch)])
        state = tz.merge_states([loader.state_dict() for loader in loaders])
        for loader in loaders:
            loader.close()
    streams = lane_streams(lambda: build(batch_size=micro_batch_size), num_lanes, len(got))
    # A batch may be blank by itself: sequences of one token have no label.
    expected = [[stream[r] for stream in streams] for r in range(len(got))]
    expected = [[b for b in batches if any(x != -100 for row in b["labels"] for x in row)] for batches in expected]
    assert got == expected

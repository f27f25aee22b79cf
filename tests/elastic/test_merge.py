"""merge_states: what belongs together becomes one, all else is refused with its reason."""

import itertools
import json
import logging

import pytest
from support.graphs import documents, plain, through_json, token_graph
from torchdata.nodes import Loader

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 5


def lanes(num_lanes=LANES, dp=(0, 1), packer=None, batch_size=2, seq_len=8, **source):
    node = token_graph(DOCS, packer=packer, batch_size=batch_size, seq_len=seq_len, chunk_size=4, **source)
    return tz.Lanes(node, num_lanes, dp=dp, num_threads=0, uneven="allow")


def ranks(world_size=2, rounds=3, extra=(), **options):
    """The states of simulated ranks after some rounds; ``extra`` rounds for some of the ranks."""
    states = []
    for rank in range(world_size):
        node = lanes(dp=(rank, world_size), **options)
        for _ in range((rounds + dict(extra).get(rank, 0)) * len(node.owned)):
            next(node)
        states.append(through_json(node.state_dict()))
    return states


def given(state):
    return [json.loads(text)["given"] for text in state["lanes"].values()]


def take(node, count):
    return [plain(batch) for batch in itertools.islice(node, count)]


def after(state, count=2 * LANES, **options):
    node = lanes(**options)
    node.reset(through_json(state))
    return take(node, count)


EXPECTED = take(lanes(), 6 * LANES)


# -- what belongs together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_the_states_does_not_matter(order):
    states = ranks(3)
    merged = tz.merge_states(states[i] for i in order)
    assert merged == tz.merge_states(states)
    assert list(merged["lanes"]) == [f"{lane:05d}" for lane in range(LANES)]
    assert merged["round"] == 3
    assert after(merged) == EXPECTED[3 * LANES : 5 * LANES]


def test_the_states_are_not_changed():
    states = ranks(2)
    before = through_json(states)
    merged = tz.merge_states(states)
    merged["lanes"]["00000"] = "x"
    assert states == before


def test_equal_duplicates_are_those_of_peers():
    states = ranks(2)
    assert tz.merge_states([*states, *through_json(states)]) == tz.merge_states(states)


def test_merging_a_merged_state_changes_nothing():
    merged = tz.merge_states(ranks(2))
    assert tz.merge_states([merged]) == merged


def test_states_of_other_world_sizes_join_where_they_agree():
    two, three = ranks(2), ranks(3)
    assert tz.merge_states([two[0], *three[1:]]) == tz.merge_states(two)


def test_batch_sizes_may_differ_between_the_states():
    assert tz.merge_states([ranks(2)[0], ranks(2, batch_size=2)[1]])


# -- what does not -----------------------------------------------------------------------------------------------------


def test_no_states():
    with pytest.raises(tz.StateError, match="there are no states to merge"):
        tz.merge_states([])


def test_one_state_instead_of_a_list():
    with pytest.raises(
        TypeError, match=r"merge_states needs a list of states, got one: write merge_states\(\[state\]\)"
    ):
        tz.merge_states(ranks(1)[0])


def test_a_lane_at_two_positions():
    early, late = ranks(2, rounds=2), ranks(2, rounds=3)
    with pytest.raises(tz.StateError, match="lane 0 is at two positions: cycle 0 batch 2, and cycle 0 batch 3"):
        tz.merge_states([early[0], *late])
    with pytest.raises(tz.StateError, match="lane 0 is at two positions"):
        tz.merge_states([early[0], *late], allow_skew=True, partial=True)


def test_missing_lanes_are_named_or_accepted():
    first, second = ranks(2)
    with pytest.raises(
        tz.StateError, match=r"3 of 5 lanes are missing \(2, 3, 4\).*all ranks' states, or pass partial"
    ):
        tz.merge_states([first])
    partial = tz.merge_states([second], partial=True)
    assert list(partial["lanes"]) == ["00002", "00003", "00004"]
    assert after(partial, 3, dp=(1, 2)) == EXPECTED[3 * LANES + 2 : 4 * LANES]
    with pytest.raises(tz.StateError, match=r"lacks lanes \[0, 1\] of this rank's 0-4.*merge_states\(\[...\]\)"):
        after(partial)
    assert tz.merge_states([partial, first]) == tz.merge_states([first, second])


def test_a_long_list_of_missing_lanes_is_cut_short():
    node = lanes(num_lanes=1000, dp=(0, 1000))
    with pytest.raises(tz.StateError, match=r"999 of 1000 lanes are missing \(1, 2, .*, 20, \.\.\.\)"):
        tz.merge_states([node.state_dict()])


def test_ranks_that_saved_at_different_steps():
    states = ranks(2, rounds=2, extra=[(1, 2)])
    with pytest.raises(tz.StateError, match="lane 2 has given 4 batches, lane 0 only 2: the ranks saved at different"):
        tz.merge_states(states)
    merged = tz.merge_states(states, allow_skew=True)
    assert given(merged) == [2, 2, 4, 4, 4]
    assert merged["round"] == 2
    laggards = [EXPECTED[r * LANES + lane] for r in (2, 3) for lane in (0, 1)]
    assert after(merged, 4 + LANES) == laggards + EXPECTED[4 * LANES : 5 * LANES]


def test_one_round_apart_is_the_middle_of_a_round():
    merged = tz.merge_states(ranks(2, rounds=2, extra=[(0, 1)]))
    assert merged["round"] == 2
    assert after(merged, 3 + LANES) == EXPECTED[2 * LANES + 2 : 4 * LANES]


def test_states_of_different_cycles():
    def state(cycles, rank):
        node = lanes(dp=(rank, 2), exhausted_policy="stop")
        for _ in range(cycles):
            list(node)
            node.reset(None)
        next(node)
        return node.state_dict()

    with pytest.raises(tz.StateError, match=r"the lanes are in different cycles \[0, 1\]"):
        tz.merge_states([state(0, 0), state(1, 1)], allow_skew=True)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seed": 9}, r"MixtureWorkSource\.seed: one state has 3, another 9"),
        ({"seq_len": 7}, r"SequencePacker\.seq_len: one state has 8, another 7"),
        ({"num_lanes": 6}, "the states have 5 and 6 lanes: they are of different runs"),
        ({"packer": {"algorithm": "best_fit"}}, r"\.algorithm: one state has 'wrap', another 'best_fit'"),
    ],
)
def test_states_of_different_runs(change, match):
    with pytest.raises(tz.StateError, match=match):
        tz.merge_states([ranks(2)[0], ranks(2, **change)[1]])


def test_all_differences_are_listed():
    with pytest.raises(tz.StateError) as caught:
        tz.merge_states([ranks(2)[0], ranks(2, seed=9, shuffle_within_shard=True, seq_len=7)[1]])
    for argument in ("seed", "shuffle_within_shard", "seq_len"):
        assert argument in str(caught.value)
    assert str(caught.value).endswith(
        "\nThe ranks of a run have one graph: merge the states that they saved at the same step"
    )


# -- accept ------------------------------------------------------------------------------------------------------------


def test_an_accepted_difference_is_recorded_when_it_is_loaded_and_kept(caplog):
    merged = tz.merge_states(ranks(2), accept={"seq_len"})
    with pytest.raises(tz.StateError, match=r"SequencePacker\.pad_token_id: saved 0, now 5"):
        after(merged, packer={"pad_token_id": 5})
    node = lanes(seq_len=5)
    with caplog.at_level(logging.WARNING):
        node.reset(through_json(merged))
    change = "SequencePacker.seq_len: saved 8, now 5"
    assert f"accepted differences: {change}" in caplog.text
    first = next(node)
    assert first["input_ids"].shape == (2, 5)
    for _ in range(2):  # it survives further saves and merges
        state = tz.merge_states([through_json(node.state_dict())])
        assert json.loads(state["graph"])["history"] == [{"round": 3, "changes": [change]}]
        node = lanes(seq_len=5)
        node.reset(state)
        next(node)
    with pytest.raises(tz.StateError, match=r"seq_len: saved 5, now 8"):  # accepted once, not for ever
        after(state)
    back = tz.merge_states([state], accept=["SequencePacker.seq_len"])
    node = lanes()
    node.reset(back)
    history = json.loads(node.state_dict()["graph"])["history"]
    assert [entry["changes"] for entry in history] == [[change], ["SequencePacker.seq_len: saved 5, now 8"]]


def test_tokens_go_on_where_they_were_when_seq_len_changes():
    merged = tz.merge_states(ranks(1), accept={"seq_len"})
    node = lanes(seq_len=4)
    node.reset(merged)
    tokens = next(node)["input_ids"][0].tolist()
    assert tokens == EXPECTED[3 * LANES]["input_ids"][0][:4]


def test_what_was_accepted_but_does_not_differ_is_forgotten():
    merged = tz.merge_states(ranks(2), accept={"seq_len", "window"})
    node = lanes()
    node.reset(merged)
    graph = json.loads(node.state_dict()["graph"])
    assert "accept" not in graph
    assert "history" not in graph


@pytest.mark.parametrize(
    ("argument", "build"),
    [
        ("seed", lambda: token_graph(DOCS, chunk_size=4, seed=9)),
        ("MixtureWorkSource.seed", lambda: token_graph(DOCS, chunk_size=4, seed=9)),
        ("chunk_size", lambda: token_graph(DOCS, chunk_size=7)),
        ("datasets", lambda: token_graph(DOCS[:50], chunk_size=4)),
        ("shuffle_within_shard", lambda: token_graph(DOCS, chunk_size=4, shuffle_within_shard=True)),
    ],
)
def test_the_curriculum_can_never_be_accepted(argument, build):
    merged = tz.merge_states(ranks(2), accept={argument})
    node = tz.Lanes(build(), LANES, dp=(0, 1))
    with pytest.raises(
        tz.StateError, match=rf"(?s){argument}: .*Use the saved values: .* can never be accepted"
    ) as caught:
        node.reset(merged)
    assert "merge_states" not in str(caught.value)


def test_another_graph_cannot_be_accepted():
    merged = tz.merge_states(ranks(2))
    node = token_graph(DOCS, chunk_size=4, wrap=lambda source: tz.SampleMapper(source, dict))
    match = (
        r"(?s)nodes: saved .*Reader -> SequencePacker.*now .*SampleMapper.*nodes or the curriculum can never be accept"
    )
    with pytest.raises(tz.StateError, match=match) as caught:
        tz.Lanes(node, LANES, dp=(0, 1)).reset(merged)
    assert "merge_states" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"seq_len": 5}, 'merge_states([state], accept={"seq_len"})'),
        ({"seq_len": 5, "packer": {"pad_token_id": 4}}, 'accept={"seq_len", "pad_token_id"})'),
        (
            {"seq_len": 5, "seed": 9},
            'accept={"seq_len"}); a difference in the nodes or the curriculum can never be accepted, since positions '
            "would mean other samples",
        ),
    ],
)
def test_what_can_be_accepted_is_named(change, advice):
    with pytest.raises(tz.StateError) as caught:
        after(tz.merge_states(ranks(2)), **change)
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize("name", ["seqlen", "nodes", "node", "Packer.seq_len"])
def test_a_name_that_the_graph_does_not_have_is_a_slip(name):
    with pytest.raises(
        ValueError,
        match=rf"accept names \['{name}'\], which .* are \['algorithm', 'cu_seqlens', .*'seq_len', 'window'\]",
    ):
        tz.merge_states(ranks(2), accept={"seq_len", name})


def test_an_argument_that_the_saved_graph_did_not_have_is_accepted_with_its_node():
    def grown(**arguments):
        def wrap(source):
            node = tz.SampleMapper(source, dict)
            node.describe = lambda: arguments
            return node

        return tz.Lanes(lambda: token_graph(DOCS, chunk_size=4, wrap=wrap), 1, dp=(0, 1), num_threads=0)

    state = grown().state_dict()
    with pytest.raises(tz.StateError, match=r'level: saved None, now 3\n.*accept=\{"SampleMapper.level"\}'):
        grown(level=3).reset(state)
    grown(level=3).reset(tz.merge_states([state], accept={"SampleMapper.level"}))


def test_a_single_string_is_a_slip():
    with pytest.raises(
        TypeError, match=r"must be a collection of argument names, got the string 'seed': use \{'seed'\}"
    ):
        tz.merge_states(ranks(2), accept="seed")


# -- wrappers ----------------------------------------------------------------------------------------------------------


def test_the_wrapper_of_a_loader_is_kept():
    loaders = [Loader(lanes(dp=(rank, 2))) for rank in range(2)]
    for loader in loaders:
        iterator = iter(loader)
        take(iterator, len(loader.root.owned))
    merged = tz.merge_states([loader.state_dict() for loader in loaders])
    assert list(merged) == ["root", "num_yielded"]
    loader = Loader(lanes())
    loader.load_state_dict(through_json(merged))
    assert take(loader, LANES) == EXPECTED[LANES : 2 * LANES]


def test_gathering_without_a_process_group_is_merging_one():
    loader = tz.ElasticDataLoader(lanes())
    take(loader, 7)
    assert tz.gather_state(loader) == tz.merge_states([loader.state_dict()])
    with pytest.raises(tz.StateError, match="missing"):
        tz.gather_state(lanes(dp=(0, 2)))

"""Rounds: the unit of training."""

import itertools

import pytest
import torch
from support.graphs import documents, is_blank, lane_streams, plain, through_json, token_graph
from torchdata.nodes import Loader, Mapper

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 4


def endless(batch_size=2):
    return token_graph(DOCS, chunk_size=4, batch_size=batch_size)


def finite():
    return token_graph(DOCS, chunk_size=4, exhausted_policy="stop")


def lanes(build=endless, dp=(0, 1), num_lanes=LANES, **options):
    return tz.Lanes(build(), num_lanes, dp=dp, num_threads=0, **options)


def rows(share):
    return [row for batch in share for row in plain(batch)["input_ids"]]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_size", [None, 1, 2])
def test_a_round_has_the_same_rows_in_the_same_order(world_size, micro_batch_size):
    streams = lane_streams(endless, LANES, 3)
    nodes = [tz.Rounds(lanes(dp=(rank, world_size)), micro_batch_size) for rank in range(world_size)]
    for r in range(3):
        shares = [next(node) for node in nodes]
        assert all(len(batch["labels"]) == (micro_batch_size or 2) for share in shares for batch in share)
        assert [row for share in shares for row in rows(share)] == [row for s in streams for row in s[r]["input_ids"]]


@pytest.mark.parametrize("micro_batch_size", [4, 8])
def test_rows_of_neighbouring_lanes_are_joined(micro_batch_size):
    streams = lane_streams(endless, LANES, 1)
    (share,) = itertools.islice(tz.Rounds(lanes(), micro_batch_size), 1)
    assert [len(batch["positions"]) for batch in share] == [micro_batch_size] * (8 // micro_batch_size)
    assert rows(share) == [row for stream in streams for row in stream[0]["input_ids"]]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4, 8])
def test_document_bounds_are_those_of_the_microbatch(micro_batch_size, num_workers):
    def with_bounds():
        return tz.TrainingBatcher(endless().source, 2, cu_seqlens=True)

    loader = tz.ElasticDataLoader(tz.Rounds(lanes(with_bounds), micro_batch_size), num_workers=num_workers)
    for share, plain_share in itertools.islice(zip(loader, tz.Rounds(lanes(), micro_batch_size), strict=False), 3):
        assert len(share) == len(plain_share) == 8 // micro_batch_size
        for batch, expected in zip(share, plain_share, strict=True):
            assert list(batch) == [*expected, "cu_seqlens", "max_seqlen"]
            assert all(torch.equal(batch[name], expected[name]) for name in expected)
            bounds, positions = batch["cu_seqlens"], batch["positions"]
            starts = torch.ones_like(positions, dtype=torch.bool)
            starts[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
            assert bounds.dtype == torch.int32
            assert bounds.tolist() == [*starts.flatten().nonzero().flatten().tolist(), positions.numel()]
            assert batch["max_seqlen"] == int(bounds.diff().max())
    loader.close()


@pytest.mark.parametrize(
    ("size", "error", "match"),
    [
        (0, ValueError, "micro_batch_size must be at least 1, got 0"),
        (-2, ValueError, "at least 1, got -2"),
        (2.0, TypeError, "micro_batch_size must be an int, got 2.0"),
        ("2", TypeError, "micro_batch_size must be an int, got '2'"),
        (True, TypeError, "micro_batch_size must be an int, got True"),
    ],
)
def test_the_size_is_checked_where_it_enters(size, error, match):
    with pytest.raises(error, match=match):
        tz.Rounds(lanes(), size)


def test_only_lanes_have_rounds():
    with pytest.raises(TypeError, match="Rounds needs a Lanes, got Loader"):
        tz.Rounds(Loader(lanes()))


@pytest.mark.parametrize("size", [3, 5, 16])
def test_a_size_that_does_not_divide_the_rows(size):
    node = tz.Rounds(lanes(), size)
    with pytest.raises(
        ValueError,
        match=rf"micro_batch_size={size} does not divide this rank's 8 rows of a round .4 la.* choose a divisor of 2, ",
    ):
        next(node)
    assert node.source.round == 0  # nothing was delivered
    assert node.state_dict() == lanes().state_dict()


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda batch: list(batch.values()), "must be dicts of tensors, got list"),
        (lambda batch: {**batch, "n": 3}, "must be dicts of tensors, got dict"),
        (lambda batch: {**batch, "n": torch.tensor(3)}, "must be dicts of tensors"),
        (lambda batch: {**batch, "n": torch.zeros(5)}, r"unequal ones: \{'input_ids': 2, .*'n': 5\}"),
        (lambda batch: {}, "must be dicts of tensors, got an empty dict"),
    ],
    ids=["list", "int", "scalar", "unequal", "empty"],
)
def test_batches_without_rows_cannot_be_cut(fn, match):
    def build():
        return Mapper(endless(), fn)

    node = tz.Rounds(lanes(build), 1)
    with pytest.raises(TypeError, match=match):
        next(node)
    assert len(next(tz.Rounds(lanes(build)))) == LANES


def test_padded_ranks_have_equal_lists():
    nodes = [tz.Rounds(lanes(dp=(rank, 3), num_lanes=5), 1) for rank in range(3)]
    shares = [next(node) for node in nodes]
    assert [len(share) for share in shares] == [4, 4, 4]
    assert [sum(map(is_blank, share)) for share in shares] == [2, 0, 0]


def test_finite_data_ends_with_a_full_round():
    shares = list(tz.Rounds(lanes(finite), 2))
    assert {len(share) for share in shares} == {LANES}
    streams = lane_streams(finite, LANES, 999)
    real = [row for share in shares for batch in share if not is_blank(batch) for row in plain(batch)["input_ids"]]
    labelled = [b for r in range(len(shares)) for s in streams for b in s[r : r + 1]]
    assert real == [row for b in labelled if any(x != -100 for y in b["labels"] for x in y) for row in b["input_ids"]]


def test_the_state_is_that_of_the_lanes_after_whole_rounds():
    node = tz.Rounds(lanes(), 2)
    for _ in range(3):
        next(node)
    state = through_json(node.state_dict())
    assert state["round"] == 3
    again = tz.Rounds(lanes(), 2)
    again.reset(state)
    assert rows(next(again)) == rows(next(node))
    plain_lanes = lanes()
    plain_lanes.reset(state)  # and the other way round
    assert plain(next(plain_lanes)) == plain(lane_streams(endless, LANES, 4)[0][3])


def test_a_state_from_the_middle_of_a_round_gives_the_rest_of_it_first():
    node = lanes()
    for _ in range(LANES + 1):
        next(node)
    again = tz.Rounds(lanes())
    again.reset(through_json(node.state_dict()))
    assert [len(next(again)) for _ in range(2)] == [3, 4]

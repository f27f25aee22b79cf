import copy
import json
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.data.dataset import Dataset
from torchzephon.errors import StateError
from torchzephon.nodes.mixture import MixtureWorkSource


class Sized(Dataset):
    """A dataset of which only the sizes are real."""

    def __init__(self, name, shards):
        self.name = name
        self.columns = None
        self.sizes = shards

    @property
    def shards(self):
        return [SimpleNamespace(num_samples=size) for size in self.sizes]

    num_samples = property(lambda self: sum(self.sizes))
    num_bytes = property(lambda self: 100 * sum(self.sizes))
    digest = property(lambda self: f"digest of {self.name}")

    def locate(self, shard, row):
        return f"dataset {self.name!r}, shard {shard}, row {row}"


def web_and_code():
    return [Sized("web", [400, 500, 97]), Sized("code", [311])]


def pointers(source):
    return [
        p
        for work in source
        for p in zip(work.dataset.tolist(), work.epoch.tolist(), work.shard.tolist(), work.row.tolist(), strict=True)
    ]


def take(source, count):
    seen = []
    while len(seen) < count:
        work = next(source)
        seen += zip(work.dataset.tolist(), work.shard.tolist(), work.row.tolist(), strict=True)
    return seen


def lane(index, num_lanes, *args, **kwargs):
    source = MixtureWorkSource(*args, **kwargs)
    source.bind_lane(index, num_lanes)
    return source


@pytest.mark.parametrize("num_lanes", [1, 2, 7, 100, 3000])
def test_stop_without_weights_reads_everything_once(num_lanes):
    step = max(1, num_lanes // 100)
    seen = [pointers(lane(i, num_lanes, web_and_code(), exhausted_policy="stop")) for i in range(0, num_lanes, step)]
    counts = Counter(p for part in seen for p in part)
    assert set(counts.values()) == {1}
    if step == 1:
        assert len(counts) == 997 + 311
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


@settings(deadline=None, max_examples=40)
@given(
    block_size=st.integers(1, 2000), num_lanes=st.integers(1, 20), chunk_size=st.one_of(st.none(), st.integers(1, 400))
)
def test_block_size_never_changes_the_data(block_size, num_lanes, chunk_size):
    options = {"chunk_size": chunk_size, "stop_after_passes": 2, "shuffle_within_shard": True}
    plain = lane(num_lanes // 2, num_lanes, web_and_code(), **options)
    other = lane(num_lanes // 2, num_lanes, web_and_code(), block_size=block_size, **options)
    assert all(len(work) <= 256 for work in plain)
    plain.reset()
    assert pointers(plain) == pointers(other)


@pytest.mark.parametrize("chunk_size", [None, 1, 16, 10_000])
@pytest.mark.parametrize("cut", [0, 1, 3, 10])
def test_it_resumes_anywhere(chunk_size, cut):
    options = {"chunk_size": chunk_size, "max_repeats": 1, "exhausted_policy": "repeat"}
    expected = pointers(lane(1, 3, web_and_code(), **options))
    source = lane(1, 3, web_and_code(), block_size=17, **options)
    for _ in range(cut):
        next(source)
    state = json.loads(json.dumps(source.state_dict()))
    other = lane(1, 3, web_and_code(), **options)
    other.reset(state)
    assert pointers(other) == expected[17 * cut :]


def test_the_end_is_a_state_and_beyond_it_is_none():
    source = lane(0, 4, web_and_code(), exhausted_policy="stop")
    assert len(pointers(source)) == 327
    other = lane(0, 4, web_and_code(), exhausted_policy="stop")
    other.reset(source.state_dict())
    assert pointers(other) == []
    assert other.position == 327
    with pytest.raises(StateError, match="330 samples into lane 0, which has 327 samples"):
        other.reset({"cycle": 0, "position": 330})


def test_cycles_differ_and_the_state_knows_its_cycle():
    source = lane(0, 1, web_and_code(), exhausted_policy="stop", shuffle_within_shard=True)
    first = pointers(source)
    source.start_cycle(1)
    source.reset()
    second = take(source, 300)
    state = source.state_dict()
    rest = pointers(source)
    assert sorted(first) != first
    assert second != [(d, s, r) for d, _, s, r in first[: len(second)]]
    other = lane(0, 1, web_and_code(), exhausted_policy="stop", shuffle_within_shard=True)
    other.reset(state)
    assert pointers(other) == rest
    source.start_cycle(0)
    source.reset()
    assert pointers(source) == first


def test_the_mixture_is_on_target_at_every_sample():
    source = lane(0, 1, web_and_code(), {"web": 0.7, "code": 0.3}, exhausted_policy="repeat")
    counts = np.cumsum([d == 0 for d, _, _ in take(source, 5000)])
    assert np.abs(counts - 0.7 * np.arange(1, len(counts) + 1)).max() <= 0.5 + 0.7


def test_stop_ends_with_the_first_dataset_that_runs_dry():
    data = [Sized("a", [5]), Sized("b", [500])]
    counts = Counter(p[0] for p in pointers(lane(0, 1, data, {"a": 1, "b": 1}, exhausted_policy="stop")))
    assert counts == {0: 5, 1: 5}


def test_the_default_ends_when_every_dataset_was_seen_once():
    data = [Sized("a", [5]), Sized("b", [50])]
    counts = Counter(pointers(lane(0, 1, data, {"a": 1, "b": 1})))
    assert all(counts[1, 0, 0, row] == 1 for row in range(50))
    assert sum(counts.values()) == 100


def test_by_dataset():
    data = [Sized("a", [5]), Sized("b", [50])]
    options = {
        "exhausted_policy": {"a": "repeat", "b": "stop"},
        "max_repeats": {"a": 100},
        "reshuffle_on_repeat": {"a": False},
        "shuffle_within_shard": True,
    }
    seen = pointers(lane(0, 1, data, {"a": 1, "b": 1}, **options))
    assert sum(p[0] == 1 for p in seen) == 50
    passes = [[p[3] for p in seen if p[:2] == (0, epoch)] for epoch in range(10)]
    assert len({tuple(order) for order in passes}) == 1


def test_trillions():
    data = [Sized("web", [10**9] * 1000), Sized("code", [10**8] * 50)]
    source = lane(63, 64, data, {"web": 0.7, "code": 0.3}, exhausted_policy="repeat", shuffle_block_size="auto")
    source.reset({"cycle": 0, "position": 10**12})
    counts = Counter(d for d, _, _ in take(source, 10_240))
    assert abs(counts[0] - 7168) <= 12


def test_what_a_description_holds():
    source = lane(3, 8, web_and_code(), {"web": 7, "code": 3}, seed=5)
    assert json.loads(json.dumps(source.describe())) == {
        "datasets": [
            {"name": "web", "shards": 3, "samples": 997, "digest": "digest of web"},
            {"name": "code", "shards": 1, "samples": 311, "digest": "digest of code"},
        ],
        "weights": {"web": 0.7, "code": 0.3},
        "seed": 5,
        "shuffle_shards": True,
        "shuffle_within_shard": False,
        "shuffle_block_size": None,
        "reshuffle_on_repeat": True,
        "stop_after_passes": 1,
        "exhausted_policy": "repeat",
        "max_repeats": None,
        "chunk_size": 22,
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"stop_after_passes": 1}),
        ({"exhausted_policy": "stop"}, {"max_repeats": 0}),
        ({"exhausted_policy": "repeat"}, {"exhausted_policy": {"web": "repeat", "code": "repeat"}}),
        ({"max_repeats": 2}, {"max_repeats": {"web": 2, "code": 2}}),
        ({"reshuffle_on_repeat": False}, {"reshuffle_on_repeat": {"web": False, "code": False}}),
        ({"weights": {"web": 0.7, "code": 0.3}}, {"weights": {"web": 7, "code": 3}}),
        ({}, {"block_size": 7, "block_bytes": 8}),
    ],
)
def test_the_same_data_has_the_same_description(one, other):
    assert MixtureWorkSource(web_and_code(), **one).describe() == MixtureWorkSource(web_and_code(), **other).describe()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"weights": {"web": 0.6, "code": 0.4}},
        {"shuffle_shards": False},
        {"shuffle_within_shard": True},
        {"shuffle_block_size": 10},
        {"shuffle_block_size": "auto"},
        {"stop_after_passes": 2},
        {"exhausted_policy": "stop"},
        {"exhausted_policy": {"web": "repeat"}},
        {"max_repeats": {"web": 1}},
        {"reshuffle_on_repeat": {"web": False}},
        {"chunk_size": 3},
    ],
)
def test_other_data_has_another_description(change):
    base, changed = (MixtureWorkSource(web_and_code(), **options).describe() for options in ({}, change))
    different = {key for key in base if base[key] != changed[key]}
    assert set(change) <= different


def test_estimate_and_summary():
    source = lane(0, 8, web_and_code(), {"web": 0.7, "code": 0.3})
    assert source.is_finite
    planned = source.curriculum.samples_per_dataset()
    assert source.total == sum(planned)
    estimate = source.estimate(None)
    assert (estimate.samples, estimate.bytes, estimate.tokens) == (source.total, 100 * source.total, 0)
    assert estimate.items == source.total / 256
    sizes = "web x1.0 (997 samples), code x1.4 (311 samples)"
    assert source.summary() == f"{sizes}, {source.total:,} samples planned, shards shuffled, rows in order"
    endless = lane(0, 8, web_and_code(), {"web": 0.7, "code": 0.3}, exhausted_policy="repeat")
    assert not endless.is_finite
    assert endless.total is None
    assert endless.estimate(None) is None
    assert endless.summary() == "web 70% (997 samples), code 30% (311 samples), endless, shards shuffled, rows in order"


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"shuffle_shards": False}, "rows in order"),
        ({"shuffle_within_shard": True}, "shards shuffled, rows shuffled within shards"),
        ({"shuffle_shards": False, "shuffle_within_shard": True}, "rows shuffled within shards"),
        ({"shuffle_block_size": 5000}, "shards shuffled, every 5,000 neighbours shuffled"),
        ({"shuffle_shards": False, "shuffle_block_size": "auto"}, "neighbours shuffled"),
        ({"shuffle_block_size": "global", "shuffle_within_shard": True}, "all samples of a dataset shuffled"),
    ],
)
def test_the_summary_tells_what_is_shuffled(options, order):
    assert MixtureWorkSource(web_and_code(), **options).summary().endswith(f" samples planned, {order}")


def test_one_shard_has_no_order_to_shuffle():
    assert MixtureWorkSource([Sized("code", [311])]).summary().endswith(" samples planned, rows in order")


def test_lanes_share_the_curriculum():
    source = MixtureWorkSource(web_and_code())
    assert copy.deepcopy(source).curriculum is source.curriculum
    source.bind_lane(2, 5)
    next(source)
    assert pointers(pickle.loads(pickle.dumps(source))) == pointers(copy.deepcopy(source))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": {"web": 0, "code": 1}}, ValueError, "weights must be finite and above 0, got 0 for 'web'"),
        ({"weights": {"web": -1, "code": 1}}, ValueError, "weights must be finite and above 0, got -1"),
        ({"weights": {"web": float("nan"), "code": 1}}, ValueError, "weights must be finite and above 0, got nan"),
        ({"weights": {"web": float("inf"), "code": 1}}, ValueError, "weights must be finite and above 0, got inf"),
        ({"weights": {"web": 10**400, "code": 1}}, ValueError, "weights must be finite and above 0, got 1000"),
        ({"weights": {"web": 1, "code": 1, "math": 1}}, ValueError, r"weights names unknown datasets \['math'\]"),
        ({"weights": {"web": 1}}, ValueError, r"weights lacks the datasets \['code'\]"),
        ({"weights": {}}, ValueError, "weights lacks"),
        ({"weights": [1, 2]}, TypeError, "weights must map dataset names to numbers, got list"),
        ({"weights": {"web": "1", "code": 1}}, TypeError, "weights must be numbers, got '1' for 'web'"),
        ({"weights": {"web": True, "code": 1}}, TypeError, "weights must be numbers"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
        ({"seed": None}, TypeError, "seed must be an int"),
        ({"shuffle_shards": 1}, TypeError, "shuffle_shards must be a bool"),
        ({"shuffle_within_shard": "yes"}, TypeError, "shuffle_within_shard must be a bool"),
        ({"shuffle_block_size": 0}, ValueError, "shuffle_block_size must be at least 1"),
        ({"shuffle_block_size": "all"}, ValueError, "shuffle_block_size must be an int, 'auto', 'global' or None"),
        ({"shuffle_block_size": True}, TypeError, "shuffle_block_size must be an int"),
        ({"reshuffle_on_repeat": "no"}, TypeError, "reshuffle_on_repeat must be a bool"),
        ({"reshuffle_on_repeat": {"math": True}}, ValueError, "reshuffle_on_repeat names unknown datasets"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"chunk_size": 1.0}, TypeError, "chunk_size must be an int"),
        ({"exhausted_policy": "stop", "stop_after_passes": 1}, ValueError, "exhausted_policy"),
        ({"max_repeats": 1, "stop_after_passes": 1}, ValueError, "max_repeats"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        MixtureWorkSource(web_and_code(), **options)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="dataset 'none' has no samples"):
        MixtureWorkSource([Sized("web", [5]), Sized("none", [0, 0])])


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**100, -(2**100)])
def test_any_seed(seed):
    source = MixtureWorkSource(web_and_code(), seed=seed, exhausted_policy="stop")
    assert len(pointers(source)) == 1308
    assert orjson.loads(orjson.dumps(source.describe()))["seed"] in (seed, str(seed))


def test_real_datasets():
    data = [Dataset.from_samples("a", [{"id": i} for i in range(10)])]
    source = MixtureWorkSource(data, shuffle_shards=False, exhausted_policy="stop")
    assert [p[3] for p in pointers(source)] == list(range(10))
    assert "'a'" in source.describe_work(source.last)


def test_a_selection_of_columns_is_part_of_the_description():
    datasets = web_and_code()
    datasets[0].columns = {"text": "content"}
    described = MixtureWorkSource(datasets).describe()["datasets"]
    assert described[0]["columns"] == {"text": "content"}
    assert "columns" not in described[1]

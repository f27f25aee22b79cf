"""The state dict: what it holds, how small it is, and that a damaged one is refused."""

import copy
import json
import pickle

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.graphs import documents, plain, through_json, token_graph
from torchdata.nodes import BaseNode

import torchzephon as tz
from torchzephon.elastic.lane_state import LaneState
from torchzephon.elastic.state import Graph, State, parse_state

DOCS = documents(60, seed=1)
LANES = 3
FUZZ = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def lanes(num_lanes=LANES, dp=(0, 1), packer=None, **source):
    return tz.Lanes(token_graph(DOCS, packer=packer, **source), num_lanes, dp=dp, num_threads=0)


def saved(batches=LANES * 4 + 1, **options):
    node = lanes(**options)
    for _ in range(batches):
        next(node)
    return through_json(node.state_dict())


STATE = saved()
WINDOWS = {"algorithm": "best_fit", "window": 16}
WINDOWS_STATE = saved(packer=WINDOWS)


def load(state, **options):
    node = lanes(**options)
    node.reset(state)
    return [plain(next(node)) for _ in range(2 * LANES)]


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_a_state_has_one_shape():
    assert list(STATE) == ["torchzephon", "graph", "round", "num_lanes", "lanes"]
    assert STATE["torchzephon"] == 1
    assert STATE["round"] == 4
    assert STATE["num_lanes"] == LANES
    assert list(STATE["lanes"]) == ["00000", "00001", "00002"]
    assert [json.loads(text)["given"] for text in STATE["lanes"].values()] == [5, 4, 4]
    assert [node["node"] for node in json.loads(STATE["graph"])["nodes"]] == [
        "MixtureWorkSource",
        "Reader",
        "SequencePacker",
        "TrainingBatcher",
    ]


def test_the_keys_never_vary(tmp_path):
    fresh = lanes().state_dict()
    assert fresh.keys() == STATE.keys()
    assert fresh["lanes"].keys() == STATE["lanes"].keys()
    torch.save(STATE, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == STATE


def test_parsing_and_writing_are_inverse():
    assert parse_state(STATE).to_dict() == STATE
    state = LaneState(3, 1, {"source": {"n": [1, 2.5, None, "x"]}})
    assert LaneState.from_json(state.to_json(), 0) == state
    dry = LaneState(3, 1, dry=True)
    assert LaneState.from_json(dry.to_json(), 0) == dry


def test_a_state_never_aliases_live_objects():
    node = lanes()
    for _ in range(LANES + 1):
        next(node)
    state = node.state_dict()
    before = copy.deepcopy(state)
    for _ in range(LANES):
        next(node)
    assert state == before
    later = node.state_dict()
    state["lanes"].clear()
    assert node.state_dict() == later


def test_asking_for_a_state_calls_no_node(monkeypatch):
    """It is read from strings that were swapped in at delivery: cheap, and safe in a signal handler."""
    node = lanes(num_lanes=64)
    for _ in range(70):
        next(node)
    expected = node.state_dict()

    def refuse(*args):
        raise AssertionError("a node was called")

    for name in ("state_dict", "reset", "__next__"):
        monkeypatch.setattr(BaseNode, name, refuse)
    assert node.get_state() == expected


@pytest.mark.parametrize(
    ("packer", "batches"), [({}, 40), ({"algorithm": "best_fit"}, 40), ({"algorithm": "first_fit", "window": 64}, 40)]
)
def test_a_state_is_small(tokenizer_path, packer, batches):
    """At most 4 KB, and 300 bytes a lane: its size depends on neither tokens nor history."""
    texts = [{"text": "the quick brown fox jumps " * (1 + i % 50)} for i in range(400)]
    datasets = [tz.Dataset.from_samples(f"dataset-{i}", texts) for i in range(3)]
    node = tz.MixtureWorkSource(datasets, exhausted_policy="repeat", shuffle_within_shard=True)
    node = tz.TextTokenizer(tz.Reader(node), tokenizer_path)
    node = tz.TrainingBatcher(tz.SequencePacker(node, 512, **packer), batch_size=2)
    node = tz.Lanes(node, 8, dp=(0, 1), num_threads=0)
    for _ in range(batches):
        next(node)
    state = node.state_dict()
    size = len(json.dumps({**state, "lanes": {}}))
    longest = max(len(json.dumps(text)) for text in state["lanes"].values())
    assert size < 4096
    assert longest < (300 if not packer else 900)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 3, "state", [], [STATE], {}, {"model": 1}, torch.zeros(1)])
def test_what_is_no_state_is_refused(value):
    with pytest.raises(tz.StateError, match=r"not a state of torchzephon: found .*; pass what state_dict\(\) gave"):
        parse_state(value)
    with pytest.raises(tz.StateError, match="not a state of torchzephon"):
        tz.merge_states([value])
    with pytest.raises(tz.StateError, match="no state of torchzephon"):
        tz.ElasticDataLoader(lanes()).load_state_dict(value)


@pytest.mark.parametrize("key", list(STATE)[1:])
def test_a_state_without_one_of_its_keys_is_refused(key):
    state = {name: value for name, value in STATE.items() if name != key}
    with pytest.raises(tz.StateError, match=f"truncated: it lacks \\['{key}'\\]"):
        load(state)


@pytest.mark.parametrize("key", ["nodes"])
def test_a_graph_without_one_of_its_keys_is_refused(key):
    graph = {name: value for name, value in json.loads(STATE["graph"]).items() if name != key}
    with pytest.raises(tz.StateError, match="graph description in the state is damaged"):
        load({**STATE, "graph": json.dumps(graph)})


@pytest.mark.parametrize(
    ("lane", "match"),
    [
        ({"cycle": 0}, "lane 1 is damaged"),
        ({"given": 3}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0}, "lane 1 is damaged"),  # where is it?
        ({"given": 0, "cycle": 0, "node": {}}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "node": {}, "dry": True}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "dry": False}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "dry": 1}, "lane 1 is damaged"),
        ({"given": -1, "cycle": 0, "dry": True}, "lane 1 is damaged"),
        ({"given": 3.0, "cycle": 0, "dry": True}, "lane 1 is damaged"),
        ({"given": True, "cycle": 0, "dry": True}, "lane 1 is damaged"),
        ({"given": 10**30, "cycle": 0, "dry": True}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "node": []}, "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "dry": True, "more": 1}, "lane 1 is damaged"),
        ([], "lane 1 is damaged"),
        (None, "lane 1 is damaged"),
        ("x", "lane 1 is damaged"),
        ({"given": 3, "cycle": 0, "node": {}}, "lane 1.*TrainingBatcher: the state lacks 'source'"),
        ({"given": 3, "cycle": 0, "node": {"source": 4}}, "lane 1.*SequencePacker"),
        ({"given": 3, "cycle": 0, "node": {"source": {"used": 0, "token": 0}}}, r"lane 1.*lacks \['source'\]"),
    ],
)
def test_a_lane_without_one_of_its_keys_is_refused(lane, match):
    state = {**STATE, "lanes": {**STATE["lanes"], "00001": json.dumps(lane)}}
    with pytest.raises(tz.StateError, match=match):
        load(state)


def keys_of(value, path=()):
    if isinstance(value, dict):
        for name, part in value.items():
            yield (*path, name)
            yield from keys_of(part, (*path, name))


@pytest.mark.parametrize(("whole", "packer"), [(STATE, {}), (WINDOWS_STATE, WINDOWS)], ids=["wrap", "best_fit"])
def test_a_lane_that_lacks_any_key_is_refused(whole, packer):
    """Every key in turn; ``waited`` and ``fresh`` go together."""
    lane = json.loads(whole["lanes"]["00001"])
    paths = list(keys_of(lane))
    assert len(paths) > 8
    for path in paths:
        damaged = copy.deepcopy(lane)
        parent = damaged
        for name in path[:-1]:
            parent = parent[name]
        del parent[path[-1]]
        with pytest.raises(tz.StateError, match="lane 1"):
            load({**whole, "lanes": {**whole["lanes"], "00001": json.dumps(damaged)}}, packer=packer)


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_version_is_refused(version):
    with pytest.raises(tz.StateError, match=f"has version {version}, this torchzephon reads versions up to 1"):
        load({**STATE, "torchzephon": version})


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_a_version_that_never_was_is_refused(version):
    with pytest.raises(tz.StateError, match="damaged: its version is"):
        load({**STATE, "torchzephon": version})


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": "4"},
        {"round": True},
        {"num_lanes": 0},
        {"num_lanes": 3.0},
        {"lanes": []},
        {"lanes": {0: STATE["lanes"]["00000"]}},
        {"lanes": {"00000": 5}},
        {"lanes": {"00003": STATE["lanes"]["00000"]}},  # of 3
        {"lanes": {**STATE["lanes"], "0": STATE["lanes"]["00000"]}},  # twice
        {"lanes": {"-0001": STATE["lanes"]["00000"]}},
        {"lanes": {"\u0660\u0660\u0660\u0660\u0661": STATE["lanes"]["00000"]}},  # digits, but not ours
        {"lanes": {"9" * 5000: STATE["lanes"]["00000"]}},
        {"graph": 3},
        {"graph": None},
        {"graph": "{"},
        {"graph": "[]"},
        {"graph": '{"nodes":{}}'},
        {"graph": '{"nodes":[3]}'},
        {"graph": '{"nodes":[{"node":3}]}'},
        {"graph": '{"nodes":[],"accept":"seq_len"}'},
        {"graph": '{"nodes":[],"accept":[3]}'},
        {"graph": '{"nodes":[],"history":3}'},
        {"graph": '{"nodes":[],"history":[3]}'},
        {"graph": '{"nodes":[],"histori":[]}'},
    ],
)
def test_values_of_the_wrong_kind_are_refused(change):
    with pytest.raises(tz.StateError, match="damaged"):
        load({**STATE, **change})


def test_an_absurd_number_of_lanes_is_refused_at_once():
    state = {**STATE, "num_lanes": 10**15}
    with pytest.raises(tz.StateError, match=r"state has 1000000000000000 lanes, this run num_lanes=3"):
        load(state)
    with pytest.raises(tz.StateError, match=r"of 1000000000000000 lanes are missing \(3, 4, "):
        tz.merge_states([state])
    assert tz.merge_states([state], partial=True)["num_lanes"] == 10**15


def test_a_refused_state_changes_nothing():
    node = lanes()
    expected = load(STATE)
    node.reset(STATE)
    first = plain(next(node))
    for bad in ({**STATE, "num_lanes": 4}, {**STATE, "graph": "{"}, {}):
        with pytest.raises(tz.StateError):
            node.reset(bad)
    assert [first, *(plain(next(node)) for _ in range(len(expected) - 1))] == expected


# -- random damage -----------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw, text):
    """The text with a few characters changed, taken out or put in."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text) - 1))
        char = draw(st.one_of(st.sampled_from('{}[]",:0123456789-.etrufalsn \\'), st.characters()))
        kind = draw(st.sampled_from(["change", "remove", "insert", "truncate"]))
        if kind == "truncate" and at > 0:
            text = text[:at]
        text = {"change": text[:at] + char + text[at + 1 :], "remove": text[:at] + text[at + 1 :]}.get(
            kind, text[:at] + char + text[at:]
        )
        assume(text)
    return text


def described(text):
    """An argument that is not there is the same as one that is None."""
    nodes = json.loads(text)["nodes"]
    return [{name: value for name, value in node.items() if value is not None} for node in nodes]


@FUZZ
@given(damaged(STATE["graph"]))
def test_a_damaged_graph_is_refused_or_means_the_same(text):
    """What was described can never silently be something else."""
    try:
        got = load({**STATE, "graph": text})
    except tz.StateError:
        return
    assert described(text) == described(STATE["graph"])
    assert got == load(STATE)


@FUZZ
@given(st.sampled_from([(STATE, {}), (WINDOWS_STATE, WINDOWS)]), st.data())
def test_a_damaged_lane_is_refused_or_a_position(source, data):
    """A digit that became another one is a position like any other; all else is refused."""
    state, packer = source
    text = data.draw(damaged(state["lanes"]["00000"]))
    try:
        load({**state, "lanes": {**state["lanes"], "00000": text}}, packer=packer)
    except tz.StateError:
        return
    original, now = json.loads(state["lanes"]["00000"]), json.loads(text)
    assert list(keys_of(now)) == list(keys_of(original))


KEYS = st.sampled_from([*STATE, "00000", "root", "nodes"])
OTHER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(st.dictionaries(KEYS, OTHER, max_size=6))
def test_any_other_json_is_refused(value):
    with pytest.raises(tz.StateError):
        tz.merge_states([value])
    with pytest.raises(tz.StateError):
        load(value)


# -- a node's own state ------------------------------------------------------------------------------------------------


class Stateless(BaseNode):
    """Forgot its state."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(None)

    def next(self):
        return next(self.source)

    def get_state(self):
        return None

    def blank(self):
        return self.source.blank()


def test_a_root_whose_state_is_no_dict_is_named_when_it_is_asked():
    node = tz.Lanes(Stateless(token_graph(DOCS)), 2, dp=(0, 1), num_threads=0)
    with pytest.raises(tz.LaneError, match=r"lane 0.*state_dict\(\) of the root node must be a dict, got NoneType"):
        next(node)


def test_parsed_states_can_be_pickled():
    state = parse_state(STATE)
    assert isinstance(state, State)
    assert isinstance(state.graph, Graph)
    assert pickle.loads(pickle.dumps(state)) == state

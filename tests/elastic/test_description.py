"""What of a graph travels in the state, and how differences are named."""

import functools
import json
import logging

import pytest
from support.graphs import documents, token_graph
from torchdata.nodes import BaseNode, Batcher, Mapper, ParallelMapper, Prefetcher, Unbatcher

import torchzephon as tz
from torchzephon.elastic.description import describe_graph, find_differences

DOCS = documents(40, seed=1)


def source(docs=DOCS, **options):
    return tz.MixtureWorkSource([tz.Dataset.from_samples("a", docs)], **options)


def names(root):
    return [node["node"] for node in describe_graph(root)]


def differences(saved, current):
    return find_differences(describe_graph(saved), describe_graph(current))[0]


def same(sample):
    return sample


def other(sample):
    return sample


class Callable:
    def __call__(self, sample):
        return sample


def mapped(fn):
    return tz.SampleMapper(tz.Reader(source()), fn)


def test_nodes_from_the_leaf_to_the_root():
    node = tz.TrainingBatcher(Prefetcher(tz.SequencePacker(Unbatcher(tz.Reader(source())), 8), 2), 2)
    assert names(node) == [
        "MixtureWorkSource",
        "Reader",
        "Unbatcher",
        "SequencePacker",
        "Prefetcher",
        "TrainingBatcher",
    ]
    text = json.dumps(describe_graph(node))
    assert json.loads(text) == describe_graph(node)


def test_a_node_of_ones_own_is_named_with_its_module():
    class Own(BaseNode):
        def __init__(self, source, fn):
            super().__init__()
            self.source, self.fn, self.kind = source, fn, dict

    (_, own) = describe_graph(Own(source(), same))
    assert own["node"].endswith("test_a_node_of_ones_own_is_named_with_its_module.<locals>.Own")
    assert list(own) == ["node", "fn"]
    assert own["fn"]["function"].endswith("test_description.same")


@pytest.mark.parametrize(
    ("build", "change", "match"),
    [
        (token_graph, {"seq_len": 9}, "SequencePacker.seq_len: saved 8, now 9"),
        (token_graph, {"packer": {"pad_token_id": 4}}, "SequencePacker.pad_token_id: saved 0, now 4"),
        (token_graph, {"seed": 4}, "MixtureWorkSource.seed: saved 3, now 4"),
        (token_graph, {"shuffle_within_shard": True}, "MixtureWorkSource.shuffle_within_shard: saved False, now True"),
        (token_graph, {"chunk_size": 77}, "MixtureWorkSource.chunk_size: saved "),
        (token_graph, {"exhausted_policy": "stop"}, "MixtureWorkSource.exhausted_policy: saved 'repeat', now 'stop'"),
    ],
)
def test_each_difference_is_named_with_both_values(build, change, match):
    found = differences(build(DOCS), build(DOCS, **change))
    assert any(sentence.startswith(match) for sentence in found.values())


def test_datasets_and_weights_name_the_part_that_differs():
    two = {"a": DOCS, "b": DOCS[:9]}
    found = differences(token_graph(two), token_graph({**two, "b": DOCS[:8]}))
    assert found["MixtureWorkSource.datasets"].startswith(
        "MixtureWorkSource.datasets: [1] samples: saved 9, now 8; digest"
    )
    found = differences(token_graph(two, weights={"a": 1, "b": 1}), token_graph(two, weights={"a": 1, "b": 3}))
    assert found["MixtureWorkSource.weights"] == (
        "MixtureWorkSource.weights: a: saved 0.5, now 0.25; b: saved 0.5, now 0.75"
    )
    found = differences(token_graph(two), token_graph(DOCS))
    assert "MixtureWorkSource.datasets" in found


def test_another_graph_is_one_difference():
    found = differences(mapped(same), tz.Reader(source()))
    assert found == {
        "nodes": "nodes: saved MixtureWorkSource -> Reader -> SampleMapper, now MixtureWorkSource -> Reader"
    }


@pytest.mark.parametrize(
    ("saved", "current", "differ"),
    [
        (same, same, False),
        (same, other, True),
        (Callable(), Callable(), False),
        (functools.partial(same, lower=True), functools.partial(same, lower=True), False),
        (functools.partial(same, lower=True), functools.partial(same, lower=False), True),
        (lambda sample: 1, lambda sample: 1, False),
        (same, lambda sample: sample, True),
        (dict, list, True),
    ],
    ids=["same", "other", "object", "equal partial", "partial", "lambdas", "lambda", "classes"],
)
@pytest.mark.parametrize("node", [tz.SampleMapper, Mapper, functools.partial(ParallelMapper, num_workers=2)])
def test_functions_go_by_their_names(node, saved, current, differ):
    found = differences(node(tz.Reader(source()), saved), node(tz.Reader(source()), current))
    assert bool(found) is differ


def test_a_function_whose_source_changed_is_a_warning(caplog, monkeypatch):
    def lanes():
        return tz.Lanes(tz.TrainingBatcher(tz.SequencePacker(mapped(same), 8), 2), 2, dp=(0, 1), num_threads=0)

    node = lanes()
    next(node)
    state = node.state_dict()
    graph = json.loads(state["graph"])
    described = graph["nodes"][2]["fn"]
    described["source"] = "0" * 16
    state["graph"] = json.dumps(graph)
    node = lanes()
    with caplog.at_level(logging.WARNING):
        node.reset(state)
    assert f"SampleMapper.fn: the source of {described['function']} has changed" in caplog.text
    assert json.loads(node.state_dict()["graph"])["nodes"][2]["fn"]["source"] != "0" * 16
    next(node)


@pytest.mark.parametrize(
    "build",
    [
        lambda size: token_graph(DOCS, batch_size=size),
        lambda size: Prefetcher(token_graph(DOCS, batch_size=size), 2),
        lambda size: Batcher(tz.SequencePacker(tz.Reader(source()), 8), size),
    ],
    ids=["ours", "below a prefetcher", "stock"],
)
def test_the_outermost_batch_size_may_change(build):
    assert differences(build(2), build(5)) == {}


def test_an_inner_batch_size_may_not():
    def build(size):
        return tz.SequencePacker(Batcher(Unbatcher(tz.Reader(source())), size), 8)

    assert differences(build(2), build(5)) == {"Batcher.batch_size": "Batcher.batch_size: saved 2, now 5"}


@pytest.mark.parametrize(
    ("wrap", "counts"),
    [
        (lambda node: node, False),
        (lambda node: Prefetcher(node, 2), False),
        (Unbatcher, True),
        (lambda node: Prefetcher(node, 2, snapshot_frequency=3), True),
        (lambda node: ParallelMapper(node, same, num_workers=1, snapshot_frequency=2), True),
        (lambda node: ParallelMapper(node, same, num_workers=1, prebatch=2), True),
    ],
    ids=["reader", "prefetcher", "unbatcher", "snapshots", "mapper snapshots", "prebatch"],
)
def test_block_size_is_free_unless_rows_of_blocks_are_counted(wrap, counts):
    def build(size):
        return tz.SequencePacker(wrap(tz.Reader(source(block_size=size))), 8)

    found = differences(build(4), build(6))
    assert found == ({"MixtureWorkSource.block_size": "MixtureWorkSource.block_size: saved 4, now 6"} if counts else {})


def test_what_runs_it_is_no_part_of_it():
    def graph(**options):
        return tz.Lanes(token_graph(DOCS), 4, **options).state_dict()["graph"]

    assert graph(dp=(0, 1)) == graph(dp=(1, 2), num_threads=3, prefetch=5, uneven="allow", cycles="same")


def test_arguments_that_are_no_json_are_told_apart():
    class Own(BaseNode):
        def __init__(self, source, value):
            super().__init__()
            self.source, self.value = source, value

        def describe(self):
            return {"value": self.value, "fn": same}

    assert differences(Own(source(), 1), Own(source(), 2)) != {}
    with pytest.raises(TypeError, match=r"Own\.describe\(\) must give JSON values"):
        tz.Lanes(Own(source(), {1, 2}), 1, dp=(0, 1))

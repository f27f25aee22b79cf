"""Small graphs over tokens in memory, and simulated ranks."""

import json
import random

from torchdata.nodes import Loader

import torchzephon as tz


def documents(count, seed=0, longest=40):
    """``count`` documents of 0 to ``longest`` tokens, not all empty; token values tell document and place."""
    rng = random.Random(seed)
    return [
        {"id": i, "input_ids": [i * 100 + k for k in range(rng.randint(0, longest) if i else 7)]} for i in range(count)
    ]


def token_graph(docs, *, seq_len=8, batch_size=2, packer=None, wrap=None, **source):
    """The standard graph without a tokenizer, over one or two datasets; ``wrap`` may add nodes after the reader."""
    docs = docs if isinstance(docs, dict) else {"a": docs}
    source = {"exhausted_policy": "repeat", "seed": 3, **source}
    node = tz.MixtureWorkSource([tz.Dataset.from_samples(name, rows) for name, rows in docs.items()], **source)
    node = tz.Reader(node)
    if wrap is not None:
        node = wrap(node)
    node = tz.SequencePacker(node, seq_len, **(packer or {}))
    return tz.TrainingBatcher(node, batch_size)


def plain(value):
    """Tensors to lists, so that batches can be compared."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def is_blank(batch):
    return bool((batch["labels"] == -100).all())


def through_json(state):
    return json.loads(json.dumps(state))


def open_ranks(build, world_size, num_lanes, state=None, **options):
    """Loaders of simulated ranks, each with its iterator. ``build()`` makes a graph."""
    loaders = [Loader(tz.Lanes(build(), num_lanes, dp=(rank, world_size), **options)) for rank in range(world_size)]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(through_json(state))
    return loaders, [iter(loader) for loader in loaders]


def owned(rank, world_size, num_lanes):
    return range(rank * num_lanes // world_size, (rank + 1) * num_lanes // world_size)


def lane_streams(build, num_lanes, count, **options):
    """The first ``count`` batches of every lane, from lanes run one by one without any machinery of ranks."""
    streams = []
    for lane in range(num_lanes):
        root = build()
        leaf = root
        while hasattr(leaf, "source"):
            leaf = leaf.source
        leaf.bind_lane(lane, num_lanes)
        leaf.start_cycle(options.get("cycle", 0))
        root.reset(None)
        stream = []
        for _ in range(count):
            try:
                stream.append(plain(next(root)))
            except StopIteration:
                break
        streams.append(stream)
    return streams

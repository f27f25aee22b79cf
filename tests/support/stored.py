"""Stored states: each release leaves one behind, and every later one must continue it exactly.

``python tests/support/stored.py`` writes ``tests/elastic/states/v<version>.json`` for the current version of the state
dict: run it once, when that version is released, and never change the file or these graphs afterwards.
"""

import itertools
import json
from pathlib import Path

import torchzephon as tz
from torchzephon.elastic.state import VERSION

STATES = Path(__file__).parents[1] / "elastic" / "states"
LANES = 3


def _samples(name, count):
    """Documents of 1 to 13 tokens, some of them masked."""
    offset = 1000 * (name == "code")
    return [
        {
            "input_ids": [offset + 31 * i + k for k in range(1 + (7 * i) % 13)],
            "learn": [k % 3 > 0 for k in range(1 + (7 * i) % 13)],
        }
        for i in range(count)
    ]


def _lanes(packer):
    datasets = [tz.Dataset.from_samples(name, _samples(name, count)) for name, count in (("web", 40), ("code", 12))]
    node = tz.MixtureWorkSource(
        datasets, {"web": 2, "code": 1}, seed=11, shuffle_within_shard=True, exhausted_policy="stop", chunk_size=5
    )
    node = tz.SequencePacker(tz.Reader(node), 8, loss_mask_field="learn", **packer)
    return tz.Lanes(tz.TrainingBatcher(node, 2), LANES, dp=(0, 1), num_threads=0)


GRAPHS = {
    "wrap": lambda: _lanes({}),
    "best_fit": lambda: _lanes({"algorithm": "best_fit", "window": 8}),
}


def continue_from(name, state):
    """The rest of the cycle: all batches as lists."""
    node = GRAPHS[name]()
    node.reset(state)
    return [{key: tensor.tolist() for key, tensor in batch.items()} for batch in node]


def _save(name, batches):
    node = GRAPHS[name]()
    for _ in itertools.islice(node, batches):
        pass
    state = tz.merge_states([node.state_dict()])
    return {"state": state, "batches": continue_from(name, state)}


if __name__ == "__main__":
    path = STATES / f"v{VERSION}.json"
    cases = {
        f"{name}, batch {batches}": {"graph": name, **_save(name, batches)} for name in GRAPHS for batches in (4, 8)
    }
    path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in cases.items()) + "\n}\n")
    print(path, path.stat().st_size, "bytes")

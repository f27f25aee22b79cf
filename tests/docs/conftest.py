"""The folder in which the snippets of the documentation run."""

import json
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tokenizer_zoo import generated_texts, gpt2, save


def _samples(count, seed):
    return [{"text": text} for text in generated_texts(count, seed, longest=30)]


def _write_jsonl(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def _write_parquet(path, samples, **types):
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([(name, types.get(name, pa.string())) for name in samples[0]])
    pq.write_table(pa.Table.from_pylist(samples, schema), path, row_group_size=64)


@pytest.fixture(scope="session")
def docs_world(tmp_path_factory):
    """A small corpus and tokenizer under the names that the pages use."""
    root = tmp_path_factory.mktemp("docs")
    for i in range(3):
        _write_jsonl(root / "data/web" / f"shard-{i:03d}.jsonl", _samples(1500, seed=i))
        _write_parquet(root / "data/code" / f"shard-{i:03d}.parquet", _samples(500, seed=10 + i))
    _write_jsonl(root / "data/valid/shard-000.jsonl", _samples(150, seed=20))
    rng = np.random.default_rng(0)
    tokens = [{"input_ids": rng.integers(0, 500, rng.integers(1, 200)).tolist()} for _ in range(150)]
    _write_parquet(root / "data/tokens/shard-000.parquet", tokens, input_ids=pa.list_(pa.int32()))
    save(gpt2(), root / "gpt2", eos_token="<|endoftext|>", bos_token="<|begin|>")
    return root


@pytest.fixture
def docs_folder(docs_world, tmp_path, monkeypatch):
    """An empty folder with that corpus in it, in which one process runs as torchrun would start it."""
    for name in ("data", "gpt2"):
        (tmp_path / name).symlink_to(docs_world / name)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path

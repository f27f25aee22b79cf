"""MosaicML Streaming: MDS shards of text, encoded where batches are collated, or of sequences that were packed offline.

It streams samples and does not pack: with text, the collating function joins the encoded samples of a batch, cuts what
fills 8 sequences and keeps the rest for the next batch, as far as a worker can. Pre-tokenized shards hold packed
sequences of 2049 tokens, the layout that its documentation recommends for pretraining.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.corpus import Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream
from benchmarks.straight_line import read_tokens


def prepare(corpus: Corpus) -> None:
    """Writes the corpus as MDS: texts, and packed sequences of int32."""
    from streaming import MDSWriter

    root = corpus.root / "mosaic"
    shutil.rmtree(root, ignore_errors=True)
    with MDSWriter(out=str(root / "text"), columns={"text": "str"}) as writer:
        for shard in corpus.shards("jsonl"):
            for line in shard.read_bytes().splitlines():
                writer.write({"text": orjson.loads(line)["text"]})
    tokens = np.concatenate(list(read_tokens(corpus.shards("tokens"))))
    whole = len(tokens) // (SEQ_LEN + 1)
    with MDSWriter(out=str(root / "packed"), columns={"input_ids": f"ndarray:int32:{SEQ_LEN + 1}"}) as writer:
        for row in tokens[: whole * (SEQ_LEN + 1)].reshape(whole, SEQ_LEN + 1):
            writer.write({"input_ids": row})


class PackText:
    """Collates encoded texts: the ids that fill whole sequences now, the rest with the next texts."""

    def __init__(self, tokenizer: Path) -> None:
        self.path = tokenizer
        self.tokenizer: Any = None
        self.rest = np.empty(0, np.int32)

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """``input_ids`` and ``labels``, int64 ``[n, SEQ_LEN]`` with as many rows as are full."""
        from transformers import AutoTokenizer

        if self.tokenizer is None:
            self.tokenizer = AutoTokenizer.from_pretrained(str(self.path))
        encoded = self.tokenizer([sample["text"] for sample in samples], return_attention_mask=False)["input_ids"]
        parts = [np.asarray([*ids, self.tokenizer.eos_token_id], np.int32) for ids in encoded]
        joined = np.concatenate([self.rest, *parts])
        whole = len(joined) // (SEQ_LEN + 1)
        self.rest = joined[whole * (SEQ_LEN + 1) :]
        return _shifted(torch.from_numpy(joined[: whole * (SEQ_LEN + 1)].reshape(whole, SEQ_LEN + 1)))


def _collate_packed(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return _shifted(torch.from_numpy(np.stack([sample["input_ids"] for sample in samples])))


def _shifted(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    tokens = rows.long()
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


def open_stream(corpus: Corpus, state: Any = None, *, layout: str = "text", num_workers: int = 0) -> Stream:
    """``layout``: ``"text"`` (batches of 8 texts, some 8 to 20 sequences) or ``"packed"`` (8 sequences)."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(corpus.root / "mosaic" / layout), batch_size=BATCH_SIZE, shuffle=True)
    collate = PackText(corpus.tokenizer) if layout == "text" else _collate_packed
    loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=collate)
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Any]:
        yield from loader

    return Stream(batches(), loader.state_dict)


def _contender(layout: str, workers: int) -> Contender:
    name = f"mosaicml-streaming, {layout}, {workers} workers"
    return Contender(name, "benchmarks.rivals.mosaic", {"layout": layout, "num_workers": workers}, ("streaming",))


RAW = [_contender("text", workers) for workers in (0, 2)]
TOKENS = [_contender("packed", workers) for workers in (0, 2)]

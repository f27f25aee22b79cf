"""LitData: chunks of text encoded in a transform, or of tokens that ``optimize`` wrote for its ``TokensLoader``.

Text is not packed by LitData: as with MosaicML Streaming, the collating function joins and cuts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.corpus import Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream
from benchmarks.rivals.mosaic import PackText
from benchmarks.straight_line import read_tokens


def _texts(shard: Path) -> Iterator[dict[str, str]]:
    for line in shard.read_bytes().splitlines():
        yield {"text": orjson.loads(line)["text"]}


def _tokens(shard: Path) -> Iterator[torch.Tensor]:
    for part in read_tokens([shard]):
        yield torch.from_numpy(np.array(part))


def prepare(corpus: Corpus) -> None:
    """Writes the corpus with ``optimize``: texts, and tokens."""
    import litdata

    root = corpus.root / "litdata"
    shutil.rmtree(root, ignore_errors=True)
    write = partial(litdata.optimize, chunk_bytes="64MB", num_workers=1, verbose=False)
    write(fn=_texts, inputs=corpus.shards("jsonl"), output_dir=str(root / "text"))
    loader = litdata.TokensLoader(block_size=SEQ_LEN + 1)
    write(fn=_tokens, inputs=corpus.shards("tokens"), output_dir=str(root / "tokens"), item_loader=loader)


def _collate_tokens(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.stack(rows).long()
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


def open_stream(corpus: Corpus, state: Any = None, *, layout: str = "text", num_workers: int = 0) -> Stream:
    """``layout``: ``"text"`` (batches of 8 texts) or ``"tokens"`` (batches of 8 sequences)."""
    import litdata

    item_loader = litdata.TokensLoader(block_size=SEQ_LEN + 1) if layout == "tokens" else None
    dataset = litdata.StreamingDataset(
        str(corpus.root / "litdata" / layout), item_loader=item_loader, shuffle=True, drop_last=True
    )
    collate = _collate_tokens if layout == "tokens" else PackText(corpus.tokenizer)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=collate)
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Any]:
        yield from loader

    return Stream(batches(), loader.state_dict)


def _contender(layout: str, workers: int) -> Contender:
    name = f"litdata, {layout}, {workers} workers"
    return Contender(name, "benchmarks.rivals.litdata", {"layout": layout, "num_workers": workers}, ("litdata",))


RAW = [_contender("text", workers) for workers in (0, 2)]
TOKENS = [_contender("tokens", workers) for workers in (0, 2)]

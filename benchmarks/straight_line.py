"""The limit: the fastest simple script for the job, with no graph, no lanes, no shuffle and no state.

Raw text: map a shard, find the newlines, parse lines, encode 256 documents at once, join, cut, widen. Pre-tokenized:
read a row group, cut, widen. A loader that is a framework cannot be expected to be faster than this.

    python -m benchmarks.straight_line --corpus /tmp/corpus
"""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.corpus import END_OF_TEXT, Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream, corpus_argument, interleave, median, shown, table

DOCUMENTS = 256
Encode = Callable[[list[str]], np.ndarray]


def open_stream(corpus: Corpus, state: Any = None, *, layout: str = "jsonl", encoder: str = "fastokens") -> Stream:
    """``layout``: ``"jsonl"`` or ``"tokens"``; ``encoder``: ``"fastokens"`` or ``"tokenizers"``. There is no state."""
    assert state is None
    if layout == "tokens":
        return Stream(batches(read_tokens(corpus.shards("tokens"))))
    encode = {"fastokens": fastokens_encoder, "tokenizers": tokenizers_encoder}[encoder](corpus.tokenizer)
    return Stream(batches(encode(texts) for texts in read_texts(corpus.shards("jsonl"))))


def read_texts(shards: list[Path]) -> Iterator[list[str]]:
    """The texts of JSONL shards, ``DOCUMENTS`` at a time."""
    texts: list[str] = []
    for shard in shards:
        with open(shard, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        start = 0
        for end in np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")).tolist():
            texts.append(orjson.loads(content[start:end])["text"])
            start = end + 1
            if len(texts) == DOCUMENTS:
                yield texts
                texts = []
    if texts:
        yield texts


def read_tokens(shards: list[Path]) -> Iterator[np.ndarray]:
    """The tokens of Parquet shards, one row group at a time: int32 ``[n]``."""
    import pyarrow.parquet as pq

    for shard in shards:
        with pq.ParquetFile(shard, memory_map=True) as file:
            for group in range(file.num_row_groups):
                for chunk in file.read_row_group(group, columns=["input_ids"]).column(0).chunks:
                    yield chunk.flatten().to_numpy()


def fastokens_encoder(tokenizer: Path) -> Encode:
    """Texts to one array of ids, each text ended by the end-of-text token, with ``fastokens``."""
    from fastokens import Tokenizer

    fast = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = fast.token_to_id(END_OF_TEXT)

    def encode(texts: list[str]) -> np.ndarray:
        ids_bytes, offsets_bytes = fast.encode_batch_flat(texts)
        ids = np.frombuffer(ids_bytes, np.int32)
        offsets = np.frombuffer(offsets_bytes, np.int64).tolist()
        joined = np.empty(len(ids) + len(texts), np.int32)
        for document, (start, stop) in enumerate(pairwise(offsets)):
            joined[start + document : stop + document] = ids[start:stop]
            joined[stop + document] = end
        return joined

    return encode


def tokenizers_encoder(tokenizer: Path) -> Encode:
    """The same with Hugging Face's ``encode_batch_fast``."""
    from tokenizers import Tokenizer

    slow = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = np.asarray([slow.token_to_id(END_OF_TEXT)], np.int32)

    def encode(texts: list[str]) -> np.ndarray:
        parts = []
        for encoding in slow.encode_batch_fast(texts, add_special_tokens=False):
            parts += [np.asarray(encoding.ids, np.int32), end]
        return np.concatenate(parts)

    return encode


def batches(parts: Iterable[np.ndarray]) -> Iterator[dict[str, torch.Tensor]]:
    """Cuts a stream of tokens into batches of ``input_ids`` and ``labels``, views of one int64 tensor."""
    size = BATCH_SIZE * (SEQ_LEN + 1)
    rest = np.empty(0, np.int32)
    for part in parts:
        joined = np.concatenate([rest, part])
        whole = len(joined) // size
        for rows in joined[: whole * size].reshape(whole, BATCH_SIZE, SEQ_LEN + 1):
            tokens = torch.from_numpy(rows).long()
            yield {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}
        rest = joined[whole * size :]


_MODULE = "benchmarks.straight_line"
RAW = Contender("straight line", _MODULE, {}, ("fastokens",))
RAW_TOKENIZERS = Contender("straight line, tokenizers", _MODULE, {"encoder": "tokenizers"})
TOKENS = Contender("straight line, tokens", _MODULE, {"layout": "tokens"})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    results = interleave([RAW, RAW_TOKENIZERS, TOKENS], "throughput", given.corpus, repeats=given.repeats)
    print(
        table(
            ["limit", "M tokens/s", "peak memory, GB"],
            [
                [name, shown(median(runs, "tokens_per_second"), 1e6), shown(median(runs, "rss_bytes"), 1e9)]
                for name, runs in results.items()
            ],
        )
    )


if __name__ == "__main__":
    main()

"""The hand-written loader that most training scripts have, and that TorchTitan's text dataset embodies.

An ``IterableDataset`` encodes one sample after the other with a Hugging Face tokenizer, keeps the ids in a Python list,
cuts sequences off its front, and stores the list in its state; a ``StatefulDataLoader`` collates 8 sequences a batch.
With workers, each worker reads its own share of the shards, and the state holds one entry a worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.corpus import Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream


class TextDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Sequences of ``SEQ_LEN + 1`` tokens from JSONL shards: ``input_ids`` and ``labels``, int64 ``[SEQ_LEN]``."""

    def __init__(self, shards: list[Path], tokenizer: Any) -> None:
        self.shards = shards
        self.tokenizer = tokenizer
        self.samples = 0
        self.buffer: list[int] = []

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Goes on after the samples that the state says were read."""
        for sample in self._remaining():
            self.samples += 1
            self.buffer += [*self.tokenizer.encode(sample["text"]), self.tokenizer.eos_token_id]
            while len(self.buffer) > SEQ_LEN:
                tokens = torch.tensor(self.buffer[: SEQ_LEN + 1])
                self.buffer = self.buffer[SEQ_LEN + 1 :]
                yield {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def _remaining(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        shards = self.shards if worker is None else self.shards[worker.id :: worker.num_workers]
        to_skip = self.samples
        for shard in shards:
            with open(shard) as lines:
                for line in lines:
                    if to_skip:
                        to_skip -= 1
                    else:
                        yield json.loads(line)

    def state_dict(self) -> dict[str, Any]:
        """Samples read, and the tokens of them that were not given yet."""
        return {"samples": self.samples, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.samples, self.buffer = state["samples"], state["buffer"]


def open_stream(corpus: Corpus, state: Any = None, *, num_workers: int = 0) -> Stream:
    """``num_workers`` of the ``StatefulDataLoader``."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from transformers import AutoTokenizer

    dataset = TextDataset(corpus.shards("jsonl"), AutoTokenizer.from_pretrained(str(corpus.tokenizer)))
    loader = StatefulDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers, drop_last=True)
    if state is not None:
        loader.load_state_dict(state)
    return Stream(iter(loader), loader.state_dict)


RAW = [
    Contender(
        f"IterableDataset, {workers} workers",
        "benchmarks.rivals.iterable_dataset",
        {"num_workers": workers},
        ("torchdata", "transformers"),
    )
    for workers in (0, 1, 2)
]

"""The loader that most training scripts begin with, for contrast.

Each rank takes every n-th document, tokenizes, cuts the stream in rows. After a restart on another number of ranks its
saved position means nothing, so it does what scripts do: it skips as many rows as were trained on.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.utils.data import DataLoader, IterableDataset

from elastic.journal import Step
from elastic.model import TinyGPT


class NaiveDataset(IterableDataset):
    """The rows of one rank: int64 tensors of ``seq_len + 1`` token ids."""

    def __init__(self, documents: list[list[int]], rank: int, ranks: int, *, seq_len: int, skip_rows: int) -> None:
        self.documents = documents[rank::ranks]
        self.seq_len = seq_len
        self.skip_rows = skip_rows

    def __iter__(self) -> Iterator[Tensor]:
        return islice(self._rows(), self.skip_rows, None)

    def _rows(self) -> Iterator[Tensor]:
        buffer: list[int] = []
        while True:
            for document in self.documents:
                buffer += document
                while len(buffer) > self.seq_len:
                    yield torch.tensor(buffer[: self.seq_len + 1])
                    del buffer[: self.seq_len]


def encode(texts: list[str], tokenizer: Path) -> list[list[int]]:
    """Token ids of each text, with the end-of-text token."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = encoder.token_to_id("<|endoftext|>")
    return [[*encoding.ids, end] for encoding in encoder.encode_batch(texts)]


class NaiveRun:
    """Trains on what the naive loaders of all ranks give.

    The ranks run one after another in this process: the data and the sums are what they would be in many.

    Args:
        documents: token ids.
        rows: of a global batch.
        seq_len: tokens in a row.
        vocab_size: of the model.
        lr: learning rate.
    """

    def __init__(self, documents: list[list[int]], *, rows: int, seq_len: int, vocab_size: int, lr: float) -> None:
        if len(documents) < 4:
            raise ValueError(f"{len(documents)} documents are too few for 4 ranks")
        self.documents = documents
        self.rows = rows
        self.seq_len = seq_len
        torch.manual_seed(0)
        model = TinyGPT(vocab_size).double()
        self.checkpoints = {0: (model, AdamW(model.parameters(), lr=lr))}

    def train(self, from_step: int, to_step: int, ranks: int) -> list[Step]:
        """Goes on from the checkpoint of ``from_step`` on that many ranks."""
        model, optimizer = copy.deepcopy(self.checkpoints[from_step])
        loaders = []
        for rank in range(ranks):
            share = (rank + 1) * self.rows // ranks - rank * self.rows // ranks
            dataset = NaiveDataset(
                self.documents, rank, ranks, seq_len=self.seq_len, skip_rows=from_step * self.rows // ranks
            )
            loaders.append(iter(DataLoader(dataset, batch_size=share)))
        steps = []
        for step in range(from_step + 1, to_step + 1):
            batch = torch.cat([next(loader) for loader in loaders])
            inputs, labels = batch[:, :-1], batch[:, 1:]
            positions = torch.arange(self.seq_len).expand_as(inputs)
            loss = model(inputs, positions, labels) / labels.numel()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            digest = hashlib.sha256(batch.numpy().tobytes()).hexdigest()[:16]
            steps.append(Step(step, ranks, digest, loss.item()))
            self.checkpoints[step] = copy.deepcopy((model, optimizer))
        return steps

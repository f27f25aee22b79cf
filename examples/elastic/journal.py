"""A log of the steps of a job that may be killed at any moment: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What one training step did, on all ranks together.

    Attributes:
        step: counts from 1.
        ranks: how many processes took part.
        digest: of the global batch, see :func:`gather_digest`.
        loss: mean over the real labels of the global batch.
    """

    step: int
    ranks: int
    digest: str
    loss: float


class Journal:
    """Appends lines that survive ``kill -9``. Rank 0 writes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # ends the line that a killed writer left torn

    def write(self, record: Step | dict[str, object]) -> None:
        """Appends one record and waits until it is on the disk."""
        record = asdict(record) if isinstance(record, Step) else record
        os.write(self._file, json.dumps(record).encode() + b"\n")
        os.fsync(self._file)


def read_records(path: Path) -> list[dict[str, object]]:
    """All whole lines of a journal. A line that was torn by a kill is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def read_steps(path: Path) -> dict[int, list[Step]]:
    """Step number -> every run of that step, in order of time: after a kill, steps since the checkpoint run again."""
    steps: dict[int, list[Step]] = {}
    for record in read_records(path):
        if "step" in record:
            step = Step(**record)
            steps.setdefault(step.step, []).append(step)
    return dict(sorted(steps.items()))


def same(one: Step, other: Step) -> bool:
    """Whether two runs of a step saw the same tokens and computed the same loss.

    On another number of ranks the same numbers are summed in another order; in float64 that moves the loss by
    about 1e-15 of its value.
    """
    return one.digest == other.digest and math.isclose(one.loss, other.loss, rel_tol=1e-9)


def gather_digest(micro_batches: Iterable[dict[str, Tensor]]) -> str | None:
    """A digest of the global batch: of every real row of every rank, in lane order. To be called by all ranks.

    Rows with no label at all are padding that keeps ranks in step; they carry nothing to learn from.

    Returns:
        16 hex digits on rank 0, None elsewhere.
    """
    rows = []
    for batch in micro_batches:
        ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        rows += [
            hashlib.sha256(np.stack([i, t]).tobytes()).digest()
            for i, t in zip(ids, labels, strict=True)
            if (t >= 0).any()
        ]
    all_rows = [b""] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(b"".join(rows), all_rows)  # ranks own neighbouring lanes, so rank order is lane order
    return hashlib.sha256(b"".join(all_rows)).hexdigest()[:16] if all_rows is not None else None

"""The data of the job: every folder of a corpus is a dataset, mixed, tokenized, packed and dealt to lanes."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

import torchzephon as tz


def datasets(corpus: Path) -> list[tz.Dataset]:
    """One dataset for each sub-folder, or one of the whole folder when there are none."""
    folders = sorted(path for path in corpus.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [tz.Dataset(path.name, str(path)) for path in folders or [corpus]]


def build_loader(
    corpus: Path,
    tokenizer: Path,
    *,
    seq_len: int,
    num_lanes: int,
    batch_size: int,
    micro_batch_size: int,
    num_workers: int = 0,
    dp: DeviceMesh | None = None,
) -> tz.ElasticDataLoader:
    """The loader of the job.

    Args:
        corpus: folder of JSONL or Parquet files with a ``text`` field, or of one sub-folder of them for each dataset.
        tokenizer: Hugging Face tokenizer folder.
        seq_len: tokens in a row.
        num_lanes: the most ranks that the job may ever have. Part of what the data is: never changes.
        batch_size: rows of each lane in a round. A global batch is always ``num_lanes * batch_size`` rows.
        micro_batch_size: rows in one forward pass; only memory and speed depend on it.
        num_workers: loader processes of this rank.
        dp: the data-parallel mesh.
    """
    node = tz.MixtureWorkSource(datasets(corpus), seed=17, shuffle_within_shard=True, exhausted_policy="repeat")
    node = tz.Reader(node)
    node = tz.TextTokenizer(node, str(tokenizer), field="text")
    node = tz.SequencePacker(node, seq_len)
    node = tz.TrainingBatcher(node, batch_size)
    lanes = tz.Lanes(node, num_lanes, dp=dp)
    return tz.ElasticDataLoader(tz.Rounds(lanes, micro_batch_size), num_workers=num_workers)

"""A small corpus from what every Python installation has: prose as JSONL, source code as Parquet; and a tokenizer."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path

import torchzephon as tz


def prose() -> Iterator[str]:
    """The descriptions of the installed packages: what PyPI shows of them."""
    found = {package.name: package.metadata.get_payload() for package in metadata.distributions() if package.name}
    yield from (text for _, text in sorted(found.items()) if len(text) > 200)


def code() -> Iterator[str]:
    """The source files of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
        yield path.read_text(errors="replace")


def write_corpus(folder: Path, *, documents: int = 400) -> None:
    """Writes ``web/*.jsonl`` and ``code/*.parquet`` with a field ``text``.

    Args:
        folder: is made.
        documents: how many of each, at most.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "web").mkdir(parents=True)
    (folder / "code").mkdir()
    paragraphs = [part for text in prose() for part in text.split("\n\n\n") if len(part) > 100]
    for shard, texts in enumerate(split(paragraphs[:documents], 4)):
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "web" / f"part-{shard}.jsonl").write_text("".join(lines))
    for shard, texts in enumerate(split(list(islice(code(), documents)), 2)):
        pq.write_table(pa.table({"text": texts}), folder / "code" / f"part-{shard}.parquet", row_group_size=64)


def split(items: list[str], parts: int) -> list[list[str]]:
    """Cuts a list in as many parts, all but equally long."""
    return [items[i * len(items) // parts : (i + 1) * len(items) // parts] for i in range(parts)]


def write_tokenizer(folder: Path, datasets: list[tz.Dataset], *, vocab_size: int, documents: int = 200) -> None:
    """Trains a byte-level BPE tokenizer on some samples of the datasets and saves it as Hugging Face does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    samples = (sample for block in tz.Reader(tz.MixtureWorkSource(datasets)) for sample in block)
    bpe.train_from_iterator((sample["text"] for sample in islice(samples, documents)), trainer)
    folder.mkdir(parents=True)
    bpe.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))

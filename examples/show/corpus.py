"""A small corpus from what every Python installation has: prose as JSONL, source code as Parquet; and a tokenizer."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path

import torchzephon as tz


def prose() -> Iterator[str]:
    """What PyPI shows of the installed packages, by paragraphs."""
    texts = {package.name: package.metadata.get_payload() for package in metadata.distributions() if package.name}
    for _, text in sorted(texts.items()):
        yield from (part for part in text.split("\n\n\n") if len(part) > 100)


def code() -> Iterator[str]:
    """The source of the standard library, by top-level definitions."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
        yield from (part for part in path.read_text(errors="replace").split("\n\n\n") if len(part) > 100)


def write_corpus(folder: Path, *, documents: int = 1000) -> None:
    """Writes ``web/*.jsonl`` and ``code/*.parquet`` with a field ``text``.

    Args:
        folder: is made.
        documents: how many of each, at most.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "web").mkdir(parents=True)
    (folder / "code").mkdir()
    texts = some(list(prose()), documents)
    for shard in range(4):
        lines = (json.dumps({"text": text}) + "\n" for text in texts[shard::4])
        (folder / "web" / f"part-{shard}.jsonl").write_text("".join(lines))
    texts = some(list(code()), documents)
    for shard in range(2):
        table = pa.table({"text": texts[shard::2]})
        pq.write_table(table, folder / "code" / f"part-{shard}.parquet", row_group_size=64)


def some(items: list[str], count: int) -> list[str]:
    """So many of the items, spread evenly."""
    return [items[i * len(items) // count] for i in range(count)] if count < len(items) else items


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


def small_data(folder: Path = Path(".demo/small")) -> tuple[str, str]:
    """A corpus and a tokenizer for the small examples, made when they are not there: the folders of both."""
    corpus, tokenizer = folder / "corpus", folder / "tokenizer"
    if not tokenizer.exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_corpus(corpus, documents=300)
        write_tokenizer(tokenizer, [tz.Dataset("web", str(corpus / "web"))], vocab_size=512)
    return str(corpus), str(tokenizer)

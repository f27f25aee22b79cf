"""Makes a corpus from the text of this machine: source code and prose, the same documents in every layout.

    python -m benchmarks.corpus --megabytes 200 --shards 8 --out /tmp/corpus

The documents are files of the Pythons installed here (source, and the prose beside it) and of Debian's
documentation and manual pages; ``--root`` adds directories and wheels. Equal documents are kept once, so every
layout holds unique text. What is written under ``--out``::

    jsonl/shard-00000.jsonl       one object a line: id, text
    parquet/shard-00000.parquet   the same documents: id, text
    tokens/shard-00000.parquet    the same documents tokenized, end-of-text token included: input_ids list<int32>
    tokenizer/                    a byte-level BPE tokenizer, trained on other documents, in Hugging Face's format
    corpus.json                   what it holds: documents, bytes, tokens, share of source code
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import site
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson

SOURCE = {".py", ".pyi", ".c", ".h", ".hpp", ".cuh", ".pm", ".pl", ".js"}
PROSE = {".rst", ".md", ".txt", ".pod"}
SIZES = range(200, 1_000_000)  # bytes of a document: shorter ones say nothing, longer ones are mostly tables
HELD_OUT = 8  # one document in so many trains the tokenizer and is in no shard
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Corpus:
    """The folders of a corpus."""

    root: Path

    @property
    def jsonl(self) -> Path:
        """JSONL shards of ``id`` and ``text``."""
        return self.root / "jsonl"

    @property
    def parquet(self) -> Path:
        """Parquet shards of ``id`` and ``text``."""
        return self.root / "parquet"

    @property
    def tokens(self) -> Path:
        """Parquet shards of ``input_ids``, list<int32>."""
        return self.root / "tokens"

    @property
    def tokenizer(self) -> Path:
        """A Hugging Face tokenizer directory."""
        return self.root / "tokenizer"

    @property
    def facts(self) -> dict[str, Any]:
        """What ``corpus.json`` says."""
        facts: dict[str, Any] = json.loads((self.root / "corpus.json").read_text())
        return facts

    def shards(self, layout: str) -> list[Path]:
        """The shards of ``"jsonl"``, ``"parquet"`` or ``"tokens"``, in order."""
        suffix = "jsonl" if layout == "jsonl" else "parquet"
        return sorted((self.root / layout).glob(f"shard-*.{suffix}"))


@dataclass(frozen=True)
class Document:
    """One text and where it came from."""

    digest: bytes
    text: str
    size: int
    is_source: bool


def default_roots() -> list[Path]:
    """Where an ordinary Debian or Python machine keeps text."""
    roots = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib", "include")]
    roots += [*site.getsitepackages(), *(path for path in sys.path if path.endswith("-packages"))]
    roots += ["/usr/lib/python3", "/usr/share/doc", "/usr/share/man", "/usr/share/perl", "/usr/share/perl5"]
    return [Path(root) for root in dict.fromkeys(roots) if Path(root).is_dir()]


def documents(roots: Iterable[Path]) -> Iterator[Document]:
    """Each text once, however many copies of it lie under the roots."""
    seen: set[bytes] = set()
    for name, content in _files(roots):
        if len(content) not in SIZES:
            continue
        digest = blake2b(content, digest_size=16).digest()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            yield Document(digest, text, len(content), Path(name).suffix in SOURCE)


def _files(roots: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for root in roots:
        if root.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(root) as archive:
                for info in archive.infolist():
                    if _is_text(info.filename) and info.file_size in SIZES:
                        yield info.filename, archive.read(info)
            continue
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if not path.is_file():
                continue
            if path.suffix == ".whl":
                yield from _files([path])
            elif path.suffix == ".gz" and "/usr/share" in str(path):
                try:
                    yield path.stem, gzip.decompress(path.read_bytes())
                except (OSError, EOFError):
                    continue
            elif _is_text(path.name) and path.stat().st_size in SIZES:
                yield path.name, path.read_bytes()


def _is_text(name: str) -> bool:
    path = Path(name)
    return path.suffix in SOURCE | PROSE or path.name in ("METADATA", "README", "copyright")


def make(
    out: Path, *, megabytes: float, num_shards: int, roots: list[Path] | None = None, vocab: int = 32_768
) -> Corpus:
    """Writes a corpus of up to ``megabytes`` (10**6 bytes of UTF-8 text); says so when the machine holds less."""
    wanted = int(megabytes * 1e6)
    # Ordered by digest: a shuffle that is the same everywhere, and any prefix of it is a fair sample.
    found = sorted(documents(default_roots() if roots is None else roots), key=lambda document: document.digest)
    held_out = [document for document in found if document.digest[0] % HELD_OUT == 0]
    chosen = list(_up_to(wanted, (document for document in found if document.digest[0] % HELD_OUT)))
    if not chosen or not held_out:
        raise SystemExit("no text found under the given roots")
    del found

    corpus = Corpus(out)
    shutil.rmtree(out, ignore_errors=True)
    for folder in (corpus.jsonl, corpus.parquet, corpus.tokens, corpus.tokenizer):
        folder.mkdir(parents=True)
    training = _up_to(max(2_000_000, min(wanted // 4, 24_000_000)), held_out)
    _train([document.text for document in training], vocab, corpus.tokenizer)
    num_tokens = _write(corpus, chosen, num_shards)
    num_bytes = sum(document.size for document in chosen)
    facts = {
        "documents": len(chosen),
        "bytes": num_bytes,
        "tokens": num_tokens,
        "shards": num_shards,
        "source_code": round(sum(document.size for document in chosen if document.is_source) / num_bytes, 3),
    }
    (out / "corpus.json").write_text(json.dumps(facts, indent=2) + "\n")
    if num_bytes < 0.98 * wanted:
        print(f"this machine's unique text is {num_bytes / 1e6:.0f} MB, not {megabytes:.0f}: add --root")
    return corpus


def _up_to(size: int, candidates: Iterable[Document]) -> Iterator[Document]:
    taken = 0
    for document in candidates:
        if taken + document.size > size and taken:
            return
        taken += document.size
        yield document


def _train(texts: list[str], vocab: int, path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    tokenizer.save_pretrained(str(path))


def _write(corpus: Corpus, chosen: list[Document], num_shards: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(corpus.tokenizer / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    num_tokens = 0
    for shard in range(num_shards):
        part = chosen[shard::num_shards]
        ids, texts = [document.digest.hex() for document in part], [document.text for document in part]
        stem = f"shard-{shard:05d}"
        with open(corpus.jsonl / f"{stem}.jsonl", "wb") as lines:
            for name, text in zip(ids, texts, strict=True):
                lines.write(orjson.dumps({"id": name, "text": text}, option=orjson.OPT_APPEND_NEWLINE))
        pq.write_table(pa.table({"id": ids, "text": texts}), corpus.parquet / f"{stem}.parquet", row_group_size=1000)
        rows = [
            np.asarray([*encoding.ids, end], np.int32)
            for start in range(0, len(texts), 256)
            for encoding in tokenizer.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
        ]
        tokens = pa.array(rows, pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": tokens}), corpus.tokens / f"{stem}.parquet", row_group_size=1000)
        num_tokens += len(tokens.values)
    return num_tokens


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; replaced when it exists")
    parser.add_argument("--megabytes", type=float, default=200, help="10**6 bytes of text (default 200)")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=32_768, help="size of the tokenizer's vocabulary")
    parser.add_argument("--root", type=Path, action="append", default=[], help="another folder of text, or a wheel")
    given = parser.parse_args()
    roots = default_roots() + given.root
    corpus = make(given.out, megabytes=given.megabytes, num_shards=given.shards, roots=roots, vocab=given.vocab)
    print(json.dumps(corpus.facts))


if __name__ == "__main__":
    main()

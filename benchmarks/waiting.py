"""Waiting: a trainer with a fixed step, and what one huge document in a lane does to ``next()``.

python -m benchmarks.waiting --corpus /tmp/corpus
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import orjson

from benchmarks import ours, straight_line
from benchmarks.corpus import Corpus
from benchmarks.measure import Contender, corpus_argument, interleave, median, shown, table


def with_huge_document(corpus: Corpus, root: Path, megabytes: float) -> Corpus:
    """The same corpus with one document more, of so many megabytes, in a shard of its own."""
    made = Corpus(root)
    made.jsonl.mkdir(parents=True)
    made.tokenizer.symlink_to(corpus.tokenizer.resolve())
    (root / "corpus.json").write_text(json.dumps(corpus.facts))
    texts: list[str] = []
    size = 0
    for shard in corpus.shards("jsonl"):
        os.symlink(shard.resolve(), made.jsonl / shard.name)
        with open(shard, "rb") as lines:
            while size < megabytes * 1e6 and (line := lines.readline()):
                texts.append(orjson.loads(line)["text"])
                size += len(line)
    (made.jsonl / "shard-99999.jsonl").write_bytes(orjson.dumps({"id": "huge", "text": "\n".join(texts)}) + b"\n")
    return made


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step", type=float, default=0.05, help="seconds of a step (default 0.05)")
    parser.add_argument("--huge", type=float, default=10, help="megabytes of the huge document (default 10)")
    given = parser.parse_args()
    contenders = [
        straight_line.RAW,
        Contender("torchzephon, 8 lanes", "benchmarks.ours"),
        Contender("torchzephon, 8 lanes, no thread", "benchmarks.ours", {"num_threads": 0}),
        Contender("torchzephon, 8 lanes, 2 workers", "benchmarks.ours", {"num_workers": 2}),
        ours.RAW_TOKENIZERS,
    ]
    with tempfile.TemporaryDirectory() as folder:
        huge = with_huge_document(given.corpus, Path(folder) / "corpus", given.huge)
        waits = interleave(
            contenders, "waiting", given.corpus, repeats=given.repeats, steps=given.steps, step=given.step
        )
        speeds = interleave(contenders, "throughput", huge, repeats=given.repeats, max_seconds=30)
    rows = []
    for contender in contenders:
        waited, fast = waits.get(contender.name, []), speeds.get(contender.name, [])
        rows.append(
            [
                contender.name,
                shown(median(waited, "waiting_share"), 0.01, unit=" %"),
                shown(median(waited, "p99_ms")),
                shown(median(waited, "max_ms")),
                shown(median(fast, "p99_ms")),
                shown(median(fast, "max_ms")),
            ]
        )
    header = ["loader", f"waiting, {given.step * 1e3:.0f} ms steps", "p99 of next() between steps, ms", "longest, ms"]
    print(table([*header, f"p99 at full speed, one {given.huge:.0f} MB document, ms", "longest, ms"], rows))


if __name__ == "__main__":
    main()

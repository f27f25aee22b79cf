"""Memory over time: the resident memory of one process that reads the corpus again and again.

python -m benchmarks.memory --corpus /tmp/corpus --minutes 10
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from benchmarks.measure import corpus_argument, shown, table, tree_memory
from benchmarks.ours import open_stream


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--layout", choices=["jsonl", "parquet", "tokens"], default="jsonl")
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    stream = open_stream(given.corpus, layout=given.layout, lanes=given.lanes, num_workers=given.workers, repeat=True)
    start = looked = time.monotonic()
    samples: list[tuple[float, int]] = []
    tokens = 0
    for batch in stream.batches:
        tokens += batch["input_ids"].numel()
        now = time.monotonic()
        if now - looked > 0.25:
            samples.append((now - start, tree_memory(os.getpid())["rss"]))
            looked = now
        if now - start > 60 * given.minutes:
            break
    stream.close()

    parts = 6
    rows = []
    for part in range(parts):
        within = [size for at, size in samples if part <= at / (60 * given.minutes) * parts < part + 1]
        if within:
            until = (part + 1) * given.minutes / parts
            rows.append([f"{until:.2f}", shown(statistics.median(within), 1e9, 3), shown(max(within), 1e9, 3)])
    print(table(["minutes", "median memory, GB", "peak memory, GB"], rows))
    print(f"\n{tokens / 1e6:.0f} M tokens, {tokens / given.corpus.facts['tokens']:.1f} passes over the corpus")


if __name__ == "__main__":
    main()

"""What lanes cost: 64 lanes against 1 on one rank, and the first batch and the memory of thousands of them.

python -m benchmarks.lanes --corpus /tmp/corpus
"""

from __future__ import annotations

import argparse

from benchmarks.measure import Contender, corpus_argument, interleave, median, run, say, shown, table

_WARM_UP = 20 * 64  # batches
_SHARE = 0.6  # of the corpus


def contender(lanes: int, layout: str) -> Contender:
    """Our pipeline with so many lanes."""
    return Contender(f"{layout}, {lanes} lanes", "benchmarks.ours", {"lanes": lanes, "layout": layout})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--many", type=int, default=4096, help="lanes of the second table (default 4096)")
    given = parser.parse_args()
    rows = []
    # Not the beginning, when memory is touched for the first time, and not the end: lanes of few documents end at
    # different times, and blank batches follow.
    middle = {"warm_up": _WARM_UP, "max_tokens": _SHARE * given.corpus.facts["tokens"]}
    for layout in ("jsonl", "tokens"):
        contenders = [contender(lanes, layout) for lanes in (1, 8, 64)]
        results = interleave(contenders, "throughput", given.corpus, repeats=given.repeats, **middle)
        speeds = [median(results[each.name], "tokens_per_second") or 0.0 for each in contenders]
        for each, speed in zip(contenders, speeds, strict=True):
            memory = median(results[each.name], "rss_bytes")
            rows.append([each.name, shown(speed, 1e6), shown(speed / speeds[0]), shown(memory, 1e9)])
    print(table(["pipeline", "M tokens/s", "to one lane", "peak memory, GB"], rows) + "\n")

    rows = []
    for layout in ("jsonl", "tokens"):
        many = contender(given.many, layout)
        say(f"first batch: {many.name}")
        runs = [run(many, "first_batch", given.corpus) for _ in range(given.repeats)]
        rows.append([many.name, shown(median(runs, "total_seconds")), shown(median(runs, "rss_bytes"), 1e9)])
    print(table(["pipeline", "seconds to the first batch", "peak memory, GB"], rows))


if __name__ == "__main__":
    main()

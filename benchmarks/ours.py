"""torchzephon: the standard pipeline over raw text and over tokens, by lanes and worker processes.

python -m benchmarks.ours --corpus /tmp/corpus
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torchzephon as tz
from benchmarks.corpus import Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream, corpus_argument, interleave, median, shown, table


def make_lanes(
    corpus: Corpus,
    *,
    layout: str = "jsonl",
    encoder: str = "auto",
    lanes: int = 8,
    batch_size: int = BATCH_SIZE,
    repeat: bool = False,
    **options: Any,
) -> tz.Lanes:
    """The standard graph in lanes; ``repeat``: without end; ``options`` are those of ``Lanes``."""
    dataset = tz.Dataset("corpus", str(corpus.root / layout))
    node: Any = tz.MixtureWorkSource([dataset], seed=0, exhausted_policy="repeat" if repeat else None)
    node = tz.Reader(node)
    if layout != "tokens":
        node = tz.TextTokenizer(node, str(corpus.tokenizer), backend=encoder)
    node = tz.TrainingBatcher(tz.SequencePacker(node, SEQ_LEN), batch_size)
    return tz.Lanes(node, lanes, **options)


def open_stream(
    corpus: Corpus, state: Any = None, *, num_workers: int = 0, micro_batch_size: int | None = None, **options: Any
) -> Stream:
    """``micro_batch_size``: yields rounds of such batches instead of lanes' batches; ``options``: see make_lanes."""
    lanes: Any = make_lanes(corpus, **options)
    loader = tz.ElasticDataLoader(
        lanes if micro_batch_size is None else tz.Rounds(lanes, micro_batch_size), num_workers=num_workers
    )
    if state is not None:
        loader.load_state_dict(state)
    return Stream(iter(loader), loader.state_dict, loader.close)


def _contender(name: str, **options: Any) -> Contender:
    return Contender(f"torchzephon, {name}", "benchmarks.ours", options)


RAW = _contender("8 lanes")
RAW_TOKENIZERS = _contender("8 lanes, tokenizers", encoder="tokenizers")
TOKENS = _contender("tokens, 8 lanes", layout="tokens")
GRID = [
    _contender(f"{layout}, {lanes} lanes, {workers} workers", layout=layout, lanes=lanes, num_workers=workers)
    for layout, lanes, workers in itertools.product(("jsonl", "tokens"), (1, 8, 64), (0, 1, 2))
    if workers <= lanes
]


def main() -> None:
    """The command line: the whole grid of layouts, lanes and workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    results = interleave([*GRID, RAW_TOKENIZERS], "throughput", given.corpus, repeats=given.repeats)
    print(
        table(
            ["pipeline", "M tokens/s", "peak memory, GB", "p99 of next(), ms"],
            [
                [
                    name,
                    shown(median(runs, "tokens_per_second"), 1e6),
                    shown(median(runs, "rss_bytes"), 1e9),
                    shown(median(runs, "p99_ms")),
                ]
                for name, runs in results.items()
            ],
        )
    )


if __name__ == "__main__":
    main()

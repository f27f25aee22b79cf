"""Compares torchzephon with the limit and with other loaders, and prints Markdown tables.

    python -m benchmarks.corpus --megabytes 550 --out /tmp/corpus
    python -m benchmarks.run --corpus /tmp/corpus

Loaders that are not installed are left out, with a line. Every figure is the median of ``--repeats`` runs, each in a
fresh process, all contenders in turn. ``--quick`` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import ours, straight_line
from benchmarks.corpus import Corpus
from benchmarks.measure import Contender, corpus_argument, interleave, median, run, say, shown, table
from benchmarks.rivals import iterable_dataset, litdata, mosaic, zephon

Runs = dict[str, list[dict[str, Any]]]

RAW = [straight_line.RAW, ours.RAW, straight_line.RAW_TOKENIZERS, ours.RAW_TOKENIZERS]
RAW_RIVALS = [*zephon.RAW, *iterable_dataset.RAW, *mosaic.RAW, *litdata.RAW]
TOKENS = [straight_line.TOKENS, ours.TOKENS]
TOKENS_RIVALS = [*zephon.TOKENS, *mosaic.TOKENS, *litdata.TOKENS]


def installed(contenders: Sequence[Contender]) -> list[Contender]:
    """Those whose packages are there; a line for each package that is not."""
    missing = sorted({package for contender in contenders for package in contender.missing()})
    for package in missing:
        say(f"{package} is not installed: left out")
    return [contender for contender in contenders if not contender.missing()]


def best_of_each(contenders: Sequence[Contender], results: Runs) -> list[Contender]:
    """The fastest contender of each module and layout, in the order of the contenders."""
    best: dict[tuple[str, Any], Contender] = {}
    for contender in contenders:
        key = contender.module, contender.options.get("encoder")
        if contender.name in results:
            current = best.get(key)
            if current is None or _speed(results, contender) > _speed(results, current):
                best[key] = contender
    return list(best.values())


def compare(
    corpus: Corpus,
    own: Sequence[Contender],
    rivals: Sequence[Contender],
    *,
    repeats: int,
    seconds: float,
    depth: int,
    steps: int,
) -> str:
    """One table. ``own``: the limit and ours, then, if there is one, the same pair with the rivals' encoder."""
    contenders = installed([*own, *rivals])
    for module in dict.fromkeys(contender.module for contender in contenders if contender in rivals):
        example = next(contender for contender in contenders if contender.module == module)
        if example.module != "benchmarks.rivals.iterable_dataset":
            say(f"prepare: {module}")
            run(example, "prepare", corpus)
    speeds = interleave(contenders, "throughput", corpus, repeats=repeats, max_seconds=seconds)
    chosen = best_of_each(contenders, speeds)
    waits = interleave(chosen, "waiting", corpus, repeats=1, steps=steps)
    states: Runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for contender in chosen:
            if contender.module == "benchmarks.straight_line":
                continue
            say(f"checkpoint: {contender.name}")
            try:
                states[contender.name] = [_resume(contender, corpus, Path(folder) / "state", depth, repeats)]
            except RuntimeError as error:
                say(str(error))

    limit, ours_, *equal = own
    rows = []
    for contender in contenders:
        name = contender.name
        runs = speeds.get(name, [])
        rows.append(
            [
                name,
                shown(median(runs, "tokens_per_second"), 1e6),
                _ratio(speeds, contender, ours_),
                _ratio(speeds, contender, limit),
                *([_ratio(speeds, contender, equal[0]) if contender not in own[:2] else "-"] if equal else []),
                shown(median(runs, "rss_bytes"), 1e9),
                shown(median(states.get(name, []), "state_bytes"), digits=0),
                shown(median(states.get(name, []), "resume_seconds")),
                shown(median(runs, "p99_ms"), digits=1),
                shown(median(waits.get(name, []), "waiting_share"), 0.01, unit=" %"),
            ]
        )
    header = ["loader", "M tokens/s", "to ours", "to the limit", *(["to the limit, equal encoder"] if equal else [])]
    return table(
        [
            *header,
            "peak memory, GB",
            "checkpoint, bytes",
            "load to first batch, s",
            "p99 of next(), ms",
            "waiting, 50 ms steps",
        ],
        rows,
    )


def _resume(contender: Contender, corpus: Corpus, path: Path, depth: int, repeats: int) -> dict[str, Any]:
    """A checkpoint after ``depth`` batches, and how long a fresh process takes from it to the first batch."""
    made = run(contender, "checkpoint", corpus, batches=depth, path=str(path))
    if made["state_bytes"] is None:
        return made
    resumed = [run(contender, "first_batch", corpus, state=path) for _ in range(repeats)]
    return made | {"resume_seconds": median(resumed, "total_seconds")}


def _speed(results: Runs, contender: Contender) -> float:
    return median(results.get(contender.name, []), "tokens_per_second") or 0.0


def _ratio(results: Runs, contender: Contender, other: Contender) -> str:
    divisor = _speed(results, other)
    return shown(_speed(results, contender) / divisor, digits=3) if divisor and _speed(results, contender) else "-"


def circumstances(corpus: Corpus) -> str:
    """What the figures were measured on."""
    versions = []
    for package in (
        "torch",
        "torchdata",
        "fastokens",
        "tokenizers",
        "pyarrow",
        "zephon",
        "mosaicml-streaming",
        "litdata",
    ):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    facts = corpus.facts
    return (
        f"{facts['bytes'] / 1e6:.0f} MB of unique text in {facts['shards']} shards ({facts['documents']} documents, "
        f"{facts['tokens'] / 1e6:.1f} M tokens, {facts['source_code']:.0%} source code); {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {', '.join(versions)}. First pass, batches of 8 x 2048 tokens, medians."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of a throughput run, at most (default 15)")
    parser.add_argument("--depth", type=int, default=200, help="batches before the checkpoint (default 200)")
    parser.add_argument("--steps", type=int, default=100, help="steps of 50 ms (default 100)")
    parser.add_argument("--quick", action="store_true", help="one short run of each; the figures mean nothing")
    parser.add_argument("--no-rivals", action="store_true", help="only the limit and torchzephon")
    given = parser.parse_args()
    effort: dict[str, Any] = {
        "repeats": given.repeats,
        "seconds": given.seconds,
        "depth": given.depth,
        "steps": given.steps,
    }
    if given.quick:
        effort = {"repeats": 1, "seconds": 2, "depth": 5, "steps": 5}
    rivals = ([], []) if given.no_rivals else (RAW_RIVALS, TOKENS_RIVALS)
    print(f"### Raw JSONL to batches\n\n{compare(given.corpus, RAW, rivals[0], **effort)}\n", flush=True)
    print(f"### Tokenized beforehand\n\n{compare(given.corpus, TOKENS, rivals[1], **effort)}\n")
    print(circumstances(given.corpus))


if __name__ == "__main__":
    main()

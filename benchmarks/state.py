"""State: its size by lanes, the time of ``state_dict()``, and the time from a load to the first batch, at any depth.

python -m benchmarks.state --corpus /tmp/corpus
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.measure import Contender, corpus_argument, median, run, say, shown, table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus_argument(parser)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--depths", type=float, nargs="+", default=[0.01, 0.5, 0.95], help="shares of the corpus")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        for lanes in given.lanes:
            contender = Contender(f"{lanes} lanes", "benchmarks.ours", {"lanes": lanes})
            for depth in given.depths:
                say(f"state: {contender.name}, depth {depth:.0%}")
                batches = max(1, int(depth * given.corpus.facts["tokens"] / (8 * 2049)))
                made = run(contender, "checkpoint", given.corpus, batches=batches, path=str(path))
                resumed = [run(contender, "first_batch", given.corpus, state=path) for _ in range(given.repeats)]
                size = made["state_bytes"]
                rows.append(
                    [
                        contender.name,
                        f"{depth:.0%}",
                        size,
                        shown((size - 4096) / lanes if size > 4096 else 0, digits=0),
                        shown(made["state_ms"]),
                        shown(median(resumed, "open_seconds")),
                        shown(median(resumed, "total_seconds")),
                    ]
                )
    header = ["pipeline", "depth", "state, bytes", "bytes a lane beyond 4 KB", "state_dict(), ms"]
    print(table([*header, "construct and load, s", "load to first batch, s"], rows))


if __name__ == "__main__":
    main()

"""The end of finite data on several ranks: what agreeing on it costs a round, and that no token is lost.

    python -m benchmarks.agreement

Starts torchrun with 4 ranks itself. The documents are made up, tokenized and in memory: 10 000 of a few hundred tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import percentile, shown, table


def documents(count: int) -> list[dict[str, Any]]:
    """Documents of 1 to 1000 tokens; the same on every rank."""
    rng = np.random.default_rng(0)
    return [{"input_ids": rng.integers(0, 32_000, rng.integers(1, 1001), dtype=np.int32)} for _ in range(count)]


def rank(count: int, lanes: int, step: float) -> None:
    """What one rank does: reads its share to the end, and counts."""
    import torch.distributed as dist

    import torchzephon as tz
    from torchzephon.elastic.agreement import EndAgreement

    spent = [0.0]
    for name in ("ask", "answer"):
        setattr(EndAgreement, name, _timed(getattr(EndAgreement, name), spent))

    dist.init_process_group("gloo")
    samples = documents(count)
    node = tz.SequencePacker(tz.Reader(tz.MixtureWorkSource([tz.Dataset.from_samples("made-up", samples)])), 2048)
    loader = tz.ElasticDataLoader(tz.Rounds(tz.Lanes(node, lanes)))
    rounds = tokens = 0
    costs: list[float] = []
    for sequences in loader:
        tokens += sum(int(sequence["num_tokens"]) for sequence in sequences)
        if rounds:  # the ranks do not come to the first one together
            costs.append(spent[0])
        rounds += 1
        spent[0] = 0.0
        time.sleep(step)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rounds": rounds, "tokens": tokens, "costs": costs})
    if dist.get_rank() == 0:
        total = sum(len(sample["input_ids"]) for sample in samples)
        print(json.dumps({"ranks": gathered, "tokens": total}))
    dist.destroy_process_group()


def _timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            spent[0] += time.perf_counter() - start

    return timed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--step", type=float, default=0.02, help="seconds of a training step (default 0.02)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank(given.documents, given.lanes, given.step)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
    command += ["-m", "benchmarks.agreement", "--rank", f"--step={given.step}"]
    command += [f"--documents={given.documents}", f"--lanes={given.lanes}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    rows = []
    for index, each in enumerate(result["ranks"]):
        mean = sum(each["costs"]) / max(1, len(each["costs"]))
        median_cost, p99 = (percentile(each["costs"], percent) for percent in (50, 99))
        rows.append([index, each["rounds"], *(shown(cost, 1e-3, 3) for cost in (mean, median_cost, p99))])
    print(table(["rank", "rounds", "mean cost of a round, ms", "median, ms", "p99, ms"], rows))
    given_out = sum(each["tokens"] for each in result["ranks"])
    print(f"\n{result['tokens']} tokens in the documents, {given_out} given out: {result['tokens'] - given_out} lost")


if __name__ == "__main__":
    main()

"""Kills a training job, twice, brings it back on fewer ranks, and compares.

The same small language model is trained undisturbed on 4 ranks, and killed with SIGKILL in mid-step, brought back on 2,
killed again and brought back on 3. Every global batch and the loss curve are the same. For contrast, the same with a
naive loader.

    python examples/demo.py [--data FOLDER] [--out FOLDER]

Exits with 1 unless all digests are equal and all losses agree to nine digits.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from itertools import islice
from pathlib import Path

import torch

import torchzephon as tz

from elastic.journal import Step, read_records, read_steps, same
from elastic.pipeline import datasets
from show.corpus import write_corpus, write_tokenizer
from show.job import Job
from show.naive import NaiveRun, encode
from show.report import Phase, bad, draw, good, print_table

LANES, LANE_BATCH, SEQ_LEN, VOCAB, LR = 8, 2, 128, 1024, 3e-3
CHECKPOINT_EVERY = 5


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a training job, bring it back on fewer ranks, compare.")
    parser.add_argument("--data", type=Path, help="folder of JSONL or Parquet files with a field text; default: made")
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="for corpus, runs and picture")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    if args.data and not args.data.is_dir():
        parser.error(f"--data {args.data} is not a folder")
    if args.steps < 2 * CHECKPOINT_EVERY:
        parser.error(f"--steps must be at least {2 * CHECKPOINT_EVERY}, or there is no checkpoint to come back from")
    return args


def run_whole(out: Path, arguments: list[str]) -> dict[int, Step]:
    """The job without an interruption, on 4 ranks."""
    with Job(out, arguments, ranks=4) as job:
        job.finish()
    return {number: runs[0] for number, runs in read_steps(out / "journal.jsonl").items()}


def run_phase(out: Path, arguments: list[str], ranks: int, kill_after: int | None) -> Phase:
    """One launch of the job, which goes on from the last checkpoint in ``out``.

    Args:
        out: folder of the job.
        arguments: of the job.
        ranks: how many processes.
        kill_after: SIGKILL hits all of them when this step is done and the next is going on; None: never.
    """
    before = len(read_records(out / "journal.jsonl"))
    killed = 0
    with Job(out, arguments, ranks=ranks) as job:
        if kill_after is None:
            job.finish()
        else:
            job.wait_until(lambda: job.last_step() >= kill_after)
            killed = job.kill()
    start, *steps = read_records(out / "journal.jsonl")[before:]
    return Phase(ranks, start["from_step"], [Step(**step) for step in steps], killed)


def main() -> int:
    """Runs all, prints, draws, compares."""
    args = parse_arguments()
    torch.set_num_threads(1)  # for numbers as small as these, threads cost more than they give
    out = args.out
    for folder in ("corpus", "runs"):
        shutil.rmtree(out / folder, ignore_errors=True)
    begin = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - begin:4.0f} s] {text}", flush=True)

    corpus = args.data
    if corpus is None:
        corpus = out / "corpus"
        if not corpus.exists():
            tell(
                "making a small corpus: descriptions of the installed packages (JSONL), the standard library (Parquet)"
            )
        write_corpus(corpus)
    tokenizer = out / "runs" / "tokenizer"
    tell(f"training a tokenizer with {VOCAB} tokens on {corpus}")
    write_tokenizer(tokenizer, datasets(corpus), vocab_size=VOCAB)

    def arguments(run: Path) -> list[str]:
        options = {"steps": args.steps, "checkpoint-every": CHECKPOINT_EVERY, "dtype": "float64", "lr": LR}
        options |= {"lanes": LANES, "lane-batch": LANE_BATCH, "seq-len": SEQ_LEN, "vocab": VOCAB}
        return [*map(str, (corpus, tokenizer, run)), *(f"--{name}={value}" for name, value in options.items())]

    whole_out, killed_out = out / "runs" / "whole", out / "runs" / "killed"
    tell(f"training {args.steps} steps on 4 ranks, undisturbed")
    whole = run_whole(whole_out, arguments(whole_out))
    first, second = args.steps * 13 // 30, args.steps * 23 // 30
    phases = []
    for ranks, kill_after in ((4, first), (2, second), (3, None)):
        tell(
            f"the same job on {ranks} ranks, "
            + (f"until kill -9 after step {kill_after}" if kill_after else "to its end")
        )
        phases.append(run_phase(killed_out, arguments(killed_out), ranks, kill_after))

    tell("the same with a naive loader")
    samples = (sample["text"] for block in tz.Reader(tz.MixtureWorkSource(datasets(corpus))) for sample in block)
    documents = encode(list(islice(samples, 1000)), tokenizer)
    naive = NaiveRun(documents, rows=LANES * LANE_BATCH, seq_len=SEQ_LEN, vocab_size=VOCAB, lr=LR)
    naive_whole = {step.step: step for step in naive.train(0, args.steps, 4)}
    naive_phases = [
        Phase(p.ranks, p.from_step, naive.train(p.from_step, p.steps[-1].step, p.ranks), p.killed) for p in phases
    ]
    tell("done\n")

    print_table(whole, phases, naive_whole, naive_phases)
    picture = out / "loss.png"
    draw(picture, whole, phases, naive_whole, naive_phases)

    runs = [step for phase in phases for step in phase.steps]
    complete = {step.step for step in runs} == set(whole) == set(range(1, args.steps + 1))
    equal = sum(same(whole[step.step], step) for step in runs)
    naive_equal = sum(same(naive_whole[step.step], step) for phase in naive_phases for step in phase.steps)
    apart = max(abs(step.loss / whole[step.step].loss - 1) for step in runs)
    print()
    print(f"torchzephon:    {equal} of {len(runs)} steps with the same batch and loss (up to {apart:.0e} of it)")
    print(f"a naive loader: {naive_equal} of {len(runs)}")
    print(f"loss curves:    {picture}")
    if complete and equal == len(runs):
        print(good("The interrupted job trained on the same global batches, and its loss curve is the same."))
        return 0
    print(bad("The interrupted job is NOT the same as the one that was left alone."))
    return 1


if __name__ == "__main__":
    sys.exit(main())

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

from elastic.journal import Step, read_records
from elastic.pipeline import datasets
from show.corpus import write_corpus, write_tokenizer
from show.job import Job
from show.naive import NaiveRun, encode
from show.report import Comparison, Phase, draw, green, print_table, red

LANES, LANE_BATCH, SEQ_LEN, VOCAB, LR = 8, 2, 128, 1024, 3e-3
CHECKPOINT_EVERY = 5
NAIVE_DOCUMENTS = 1000
BEGIN = time.monotonic()


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


def tell(text: str) -> None:
    """One line of progress."""
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {text}", flush=True)


def check_texts(corpus: Path) -> None:
    """Exits with one line when what the demo itself reads cannot be read, or has no texts."""
    try:
        blocks = tz.Reader(tz.MixtureWorkSource(datasets(corpus)))
        samples = ((block, row) for block in blocks for row in range(len(block)))
        for block, row in islice(samples, NAIVE_DOCUMENTS):
            if not isinstance(block[row].get("text"), str):
                sys.exit(
                    f"{block.locate(row)}: no text in the field 'text': there are {sorted(block[row])}. The demo reads "
                    "'text': rename the field in the files. (Code of your own can name another one, "
                    'Dataset(columns={"text": "content"}).)'
                )
    except ValueError as error:  # the library says what is wrong with which file
        sys.exit(f"--data {corpus}: {error}")


def prepare(out: Path, data: Path | None) -> tuple[Path, Path]:
    """Makes the tokenizer, and the corpus unless there is ``data``: their folders."""
    for folder in ("corpus", "tokenizer", "runs"):
        shutil.rmtree(out / folder, ignore_errors=True)
    corpus, tokenizer = data or out / "corpus", out / "tokenizer"
    if data is None:
        tell("making a corpus: descriptions of the installed packages as JSONL, the standard library as Parquet")
        write_corpus(corpus)
    tell(f"training a tokenizer with {VOCAB} tokens")
    write_tokenizer(tokenizer, datasets(corpus), vocab_size=VOCAB)
    return corpus, tokenizer


def run_phase(out: Path, inputs: tuple[Path, Path], steps: int, ranks: int, kill_after: int | None = None) -> Phase:
    """One launch of the job, which goes on from the last checkpoint in ``out``.

    Args:
        out: folder of the job.
        inputs: corpus and tokenizer.
        steps: where the job ends.
        ranks: how many processes.
        kill_after: SIGKILL hits all of them when this step is done and the next is going on; None: never.
    """
    options = {"steps": steps, "checkpoint-every": CHECKPOINT_EVERY, "dtype": "float64", "lr": LR}
    options |= {"lanes": LANES, "lane-batch": LANE_BATCH, "seq-len": SEQ_LEN, "vocab": VOCAB}
    arguments = [*map(str, (*inputs, out)), *(f"--{name}={value}" for name, value in options.items())]
    before = len(read_records(out / "journal.jsonl"))
    killed = 0
    with Job(out, arguments, ranks=ranks) as job:
        if kill_after is None:
            job.finish()
        else:
            job.wait_until(lambda: job.last_step() >= kill_after)
            killed = job.kill()
    start, *records = read_records(out / "journal.jsonl")[before:]
    return Phase(ranks, start["from_step"], [Step(**record) for record in records], killed)


def run_elastic(out: Path, inputs: tuple[Path, Path], steps: int) -> Comparison:
    """The training job, left alone and interrupted."""
    tell(f"training {steps} steps on 4 ranks")
    whole = run_phase(out / "whole", inputs, steps, ranks=4)
    first, second = steps * 13 // 30, steps * 23 // 30
    tell(f"the same again, until kill -9 after step {first}")
    phases = [run_phase(out / "killed", inputs, steps, 4, kill_after=first)]
    tell(f"resuming on 2 ranks, until kill -9 after step {second}")
    phases.append(run_phase(out / "killed", inputs, steps, 2, kill_after=second))
    tell("resuming on 3 ranks, to the end")
    phases.append(run_phase(out / "killed", inputs, steps, 3))
    return Comparison({step.step: step for step in whole.steps}, phases)


def run_naive(inputs: tuple[Path, Path], steps: int, phases: list[Phase]) -> Comparison:
    """The same launches with a naive loader."""
    tell("the same with a naive loader")
    corpus, tokenizer = inputs
    samples = (sample["text"] for block in tz.Reader(tz.MixtureWorkSource(datasets(corpus))) for sample in block)
    documents = encode(list(islice(samples, NAIVE_DOCUMENTS)), tokenizer)
    run = NaiveRun(documents, rows=LANES * LANE_BATCH, seq_len=SEQ_LEN, vocab_size=VOCAB, lr=LR)
    whole = {step.step: step for step in run.train(0, steps, ranks=4)}
    return Comparison(
        whole,
        [Phase(p.ranks, p.from_step, run.train(p.from_step, p.steps[-1].step, p.ranks), p.killed) for p in phases],
    )


def main() -> int:
    """Runs all, shows it, judges."""
    args = parse_arguments()
    torch.set_num_threads(1)  # for numbers as small as these, threads cost more than they give
    if args.data:
        check_texts(args.data)
    inputs = prepare(args.out, args.data)
    ours = run_elastic(args.out / "runs", inputs, args.steps)
    naive = run_naive(inputs, args.steps, ours.phases)
    tell("done\n")

    print_table(ours, naive)
    picture = args.out / "loss.png"
    draw(picture, ours, naive)
    print(
        f"\ntorchzephon:    {ours.agreeing()} of {len(ours.steps)} steps with the same batch and an equal loss", end=""
    )
    print(f" (to within {ours.difference():.0e} of it); steps that a kill undid are there twice")
    print(f"a naive loader: {naive.agreeing()} of {len(naive.steps)}")
    print(f"loss curves:    {picture}")
    if not ours.is_same():
        print(red("The interrupted job is NOT the same as the one that was left alone."))
        return 1
    print(green("The interrupted job trained on the same global batches, and its loss curve is the same."))
    return 0


if __name__ == "__main__":
    sys.exit(main())

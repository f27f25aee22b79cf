r"""Trains a tiny GPT in a job that may be killed at any moment and come back on another number of ranks.

Alone, on four ranks, or on as many as there are today:

    python examples/train_elastic.py CORPUS TOKENIZER OUT
    torchrun --standalone --nproc-per-node=4 examples/train_elastic.py CORPUS TOKENIZER OUT

Started again it goes on from its last checkpoint. Every way of running it writes the same steps to OUT/journal.jsonl:
the same digests of the global batches, and the same losses but for the last digits.

On nodes that come and go, start this on each. When a node dies the others go on without it from the last checkpoint;
when one joins, the job saves at the end of the step and grows:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes=1:2 --nproc-per-node=2 --max-restarts=100 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \
        --rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=3 \
        examples/train_elastic.py CORPUS TOKENIZER OUT

Three facts about torchrun (2.14) behind this: without the variable, restarted ranks read addresses of the ranks before
them, and fail or hang; a heartbeat can be two intervals apart, so that keep_alive_max_attempt=2 takes healthy nodes for
dead and splits the job in two; and the node HOST must stay, because it keeps the list of nodes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from elastic.checkpoint import Checkpoints, TrainState
from elastic.journal import Journal, Step, gather_digest
from elastic.model import TinyGPT
from elastic.parallel import gradient_sync, parallelize, start
from elastic.pipeline import build_loader
from elastic.signals import NOTHING, SAVE, SAVE_AND_STOP, SaveRequests


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a tiny GPT elastically.")
    parser.add_argument("corpus", type=Path, help="folder of JSONL or Parquet files, or of one sub-folder a dataset")
    parser.add_argument("tokenizer", type=Path, help="Hugging Face tokenizer folder")
    parser.add_argument("out", type=Path, help="where the journal and the checkpoints go")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--lanes", type=int, default=8, help="the most ranks there may ever be; never changes")
    parser.add_argument("--lane-batch", type=int, default=2, help="rows of each lane in a step")
    parser.add_argument("--micro-batch", type=int, default=2, help="rows in a forward pass")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    return parser.parse_args()


def train_step(
    model: nn.Module, optimizer: Optimizer, micro_batches: list[dict[str, Tensor]], device: torch.device, request: int
) -> tuple[float, int]:
    """One step over the global batch; to be called by all ranks.

    Losses are summed over real labels and divided by their number on all ranks, so the step is the same however rows
    are spread over ranks and microbatches, and rows that are all padding change nothing.

    Args:
        model: sums the losses of the real labels of a microbatch.
        optimizer: of its parameters.
        micro_batches: this rank's share of the global batch.
        device: where the model is.
        request: what a signal asked this rank for.

    Returns:
        The mean loss, and the strongest request of any rank.
    """
    labels = sum(int((batch["labels"] >= 0).sum()) for batch in micro_batches)
    counts = torch.tensor([labels, request == SAVE, request == SAVE_AND_STOP], device=device)
    dist.all_reduce(counts)
    labels, saves, stops = counts.tolist()

    total = torch.zeros((), dtype=torch.float64, device=device)
    for i, batch in enumerate(micro_batches):
        with gradient_sync(model, i == len(micro_batches) - 1):
            loss = model(**{name: batch[name].to(device) for name in ("input_ids", "positions", "labels")})
            # DDP and FSDP2 average the gradients over the ranks: times their number makes it a sum.
            (loss * (dist.get_world_size() / labels)).backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    return float(total) / labels, SAVE_AND_STOP if stops else SAVE if saves else NOTHING


def main() -> int:
    """Sets up, resumes, trains."""
    args = parse_arguments()
    mesh, device = start()
    requests = SaveRequests()

    torch.manual_seed(0)
    model = TinyGPT(args.vocab).to(device, getattr(torch, args.dtype))
    model = parallelize(model, args.parallel, mesh)
    optimizer = AdamW(model.parameters(), lr=args.lr)
    loader = build_loader(
        args.corpus,
        args.tokenizer,
        seq_len=args.seq_len,
        num_lanes=args.lanes,
        batch_size=args.lane_batch,
        micro_batch_size=args.micro_batch,
        num_workers=args.workers,
        dp=mesh,
    )

    train = TrainState(model, optimizer)
    state = {"train": train, "data": loader}
    checkpoints = Checkpoints(args.out / "checkpoints")
    checkpoints.load_latest(state)

    ranks = dist.get_world_size()
    pids = [0] * ranks
    dist.all_gather_object(pids, os.getpid())
    journal = Journal(args.out / "journal.jsonl") if dist.get_rank() == 0 else None
    if journal:
        journal.write({"from_step": train.step, "ranks": ranks, "pids": pids})

    if train.step < args.steps:
        for micro_batches in loader:
            loss, request = train_step(model, optimizer, micro_batches, device, requests.take())
            train.step += 1
            digest = gather_digest(micro_batches)
            if journal:
                journal.write(Step(train.step, ranks, digest, loss))
            done = train.step == args.steps or request == SAVE_AND_STOP
            if done or request == SAVE or train.step % args.checkpoint_every == 0:
                checkpoints.save(train.step, state)
            if done:
                break

    dist.destroy_process_group()
    # A job that was stopped early must not report success: torchrun would not start it again when nodes come and go.
    return 0 if train.step == args.steps else 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())

"""Checkpoints that are either whole or not there, in the format of torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer


class TrainState(Stateful):
    """Model, optimizer and step count, in the form that DCP reshards for another number of ranks."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """Parameters by their names in the unwrapped model."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` gave on any number of ranks."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


class Checkpoints:
    """A directory of checkpoints ``step-00000010``, ``step-00000020``, ...

    A checkpoint is written under another name and renamed when all ranks have written their part. Renaming is
    atomic, so a job that is killed at any moment finds either the new checkpoint or the one before.

    Args:
        directory: on a file system that all ranks share.
        keep: how many to keep.
    """

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        self.directory = directory
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Writes a checkpoint; to be called by all ranks."""
        final = self._path(step)
        unfinished = final.with_suffix(".unfinished")
        if dist.get_rank() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)  # of a job that was killed here
        dist.barrier()
        dcp.save(state, checkpoint_id=unfinished)  # returns when every rank has written
        if dist.get_rank() == 0:
            os.rename(unfinished, final)
            for old in self._finished()[: -self.keep]:
                shutil.rmtree(self._path(old))
        dist.barrier()

    def load_latest(self, state: dict[str, Any]) -> None:
        """Restores the latest whole checkpoint, if there is one; to be called by all ranks."""
        found = [self._finished()[-1:]]  # rank 0's view: all ranks must load the same
        dist.broadcast_object_list(found, src=0)
        if found[0]:
            dcp.load(state, checkpoint_id=self._path(found[0][0]))

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _finished(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in self.directory.glob("step-????????"))

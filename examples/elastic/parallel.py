"""Data parallelism, DDP or FSDP2: the model is wrapped here, and everything else in the job stays the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel


def start() -> tuple[DeviceMesh, torch.device]:
    """Joins the ranks that torchrun started (or starts alone); NCCL on GPUs, gloo on CPUs.

    Returns:
        The data-parallel mesh and this rank's device. The CPU backend is there on GPUs too, for small messages.
    """
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, alone)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",)), device


def parallelize(model: nn.Module, kind: str, mesh: DeviceMesh) -> nn.Module:
    """Wraps a model whose layers are ``model.blocks``; ``kind`` is ``"ddp"`` or ``"fsdp2"``."""
    if kind == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextlib.contextmanager
def gradient_sync(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Ranks exchange gradients in the last backward pass of a step only."""
    if isinstance(model, DistributedDataParallel):
        with contextlib.nullcontext() if enabled else model.no_sync():
            yield
    else:
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(enabled)
        yield

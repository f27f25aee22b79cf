"""Ranks that die while others read finite data. No agent ends the others: they must notice by themselves."""

import os
import signal
import sys
import time

import pytest
import torch.distributed as dist
from support.jobs.ends import open_loader
from support.ranks import Scenarios

scenario = Scenarios()


def survive(die, victim, group):
    """``victim`` dies in the middle, the others get an error within seconds and live on in this process."""
    loader = open_loader(5, group)
    for number, _ in enumerate(iterator := iter(loader)):
        if number == 2:
            break
    if dist.get_rank() == victim:
        die()
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"cannot be reached.*exited, was killed.*Restart|another one stopped"):
        list(iterator)
    assert time.monotonic() - start < 20
    state = loader.state_dict()
    with pytest.raises(RuntimeError):
        next(loader.node)
    assert loader.state_dict() == state


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    dist.destroy_process_group()
    sys.exit(7)


@scenario
def a_rank_that_is_killed_is_missed_within_seconds(out):
    groups.extend(dist.new_group(list(range(size))) for size in (4, 3))
    survive(be_killed, 3, groups[0])


@scenario
def a_rank_that_exits_is_missed_within_seconds(out):
    survive(leave, 2, groups[1])


groups = []

if __name__ == "__main__":
    scenario.run(sys.argv[1])

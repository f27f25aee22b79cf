"""Starting real ranks, and what the jobs in ``support/jobs`` share."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

TESTS = Path(__file__).parents[1]


class Scenarios(dict):
    """Functions that every rank of a job calls in this order; each gets a directory that the ranks share."""

    def __call__(self, function):
        self[function.__name__] = function
        return function

    def run(self, out):
        """Writes each one's outcome as it comes: a scenario that hangs must not take the others' along."""
        out = Path(out)
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
        outcomes, file = {}, out / f"rank-{dist.get_rank()}.json"
        for name, function in self.items():
            place = out / name
            place.mkdir(exist_ok=True)
            start = time.monotonic()
            try:
                function(place)
                outcomes[name] = "passed"
            except SystemExit:
                raise
            except BaseException:  # such as DCP's CheckpointException
                outcomes[name] = traceback.format_exc()
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
            file.with_suffix(".new").write_text(json.dumps(outcomes))
            file.with_suffix(".new").replace(file)


def gathered(value, group=None):
    """Every rank's value, in the order of ranks."""
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def torchrun(module, out, world_size, timeout):
    """Runs a job to its end, or ends it. -> (each scenario's outcomes by rank, exit code, what was printed)"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    process = _start([*command, "-m", module, str(out)], {}, out / "log")
    code = _finish([process], timeout)[0]
    return _outcomes(out, world_size), code, (out / "log").read_text()


def bare_ranks(module, out, world_size, timeout):
    """The same without an agent that ends all ranks when one dies. The exit codes are a list."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world_size):
        environment = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(_start([sys.executable, "-m", module, str(out)], environment, out / f"log-{rank}"))
    codes = _finish(processes, timeout)
    return _outcomes(out, world_size), codes, "".join((out / f"log-{r}").read_text() for r in range(world_size))


def _start(command, environment, log):
    environment = {name: str(value) for name, value in environment.items()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS), **environment}
    with log.open("w") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def _finish(processes, timeout):
    end = time.monotonic() + timeout
    try:
        return [process.wait(max(0.1, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        return ["did not end"] * len(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # torchrun then ends its ranks
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _outcomes(out, world_size):
    files = [out / f"rank-{rank}.json" for rank in range(world_size)]
    ranks = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    names = {name: None for rank in ranks for name in rank}
    return {name: [rank.get(name, "never came to its end") for rank in ranks] for name in names}

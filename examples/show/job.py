"""Starts train_elastic.py under torchrun, watches it through its journal, and kills it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from elastic.journal import read_records

SCRIPT = Path(__file__).parents[1] / "train_elastic.py"


class Job:
    """One launch of the job; as a context it leaves nothing running.

    Args:
        out: folder of the journal and the checkpoints; a launch that finds a checkpoint there goes on from it.
        arguments: of train_elastic.py.
        ranks: how many processes.
        torchrun: further options of torchrun; the default is one node that does not restart its workers.
    """

    def __init__(self, out: Path, arguments: list[str], *, ranks: int, torchrun: tuple[str, ...] = ("--standalone",)):
        out.mkdir(parents=True, exist_ok=True)
        self.journal = out / "journal.jsonl"
        self.log = out / "output.log"
        self._records_before = len(read_records(self.journal))
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *torchrun]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # there are more ranks than most machines have GPUs
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                [*command, str(SCRIPT), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.agent.poll() is None:
            self.agent.terminate()  # torchrun ends its ranks
            self.agent.wait()

    def pids(self) -> list[int]:
        """The processes of the ranks that this launch started last; none before they have met."""
        starts = [record for record in read_records(self.journal)[self._records_before :] if "pids" in record]
        return starts[-1]["pids"] if starts else []

    def last_step(self) -> int:
        """The step that this launch did last; 0 before it has done one."""
        records = read_records(self.journal)[self._records_before :]
        return next((record["step"] for record in reversed(records) if "step" in record), 0)

    def wait_until(self, happened: Callable[[], object], *, timeout: float = 180) -> None:
        """Waits for something to happen in a running job.

        Raises:
            RuntimeError: the job ended, or nothing happened for ``timeout`` seconds; with the end of its output.
        """
        end = time.monotonic() + timeout
        while not happened():
            if self.agent.poll() is not None:
                raise RuntimeError(f"the job ended with exit code {self.agent.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                raise RuntimeError(f"the job made no progress in {timeout:.0f} s:\n{self.tail()}")
            time.sleep(0.01)

    def kill(self) -> int:
        """Sends SIGKILL to all ranks and to torchrun, at once. Returns how many processes that was."""
        processes = [*self.pids(), self.agent.pid]
        for pid in processes:
            kill_process(pid)
        self.agent.wait()
        return len(processes)

    def finish(self, *, timeout: float = 300) -> None:
        """Waits for the end of the job.

        Raises:
            RuntimeError: it failed; with the end of its output.
        """
        try:
            code = self.agent.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the job did not end in {timeout:.0f} s:\n{self.tail()}") from None
        if code:
            raise RuntimeError(f"the job ended with exit code {code}:\n{self.tail()}")

    def tail(self) -> str:
        """The end of what torchrun and the ranks have printed."""
        return self.log.read_text(errors="replace")[-4000:]


def kill_process(pid: int) -> None:
    """Sends SIGKILL; no matter if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

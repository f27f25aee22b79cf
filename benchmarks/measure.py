"""What all benchmarks share: streams of batches, measuring them in fresh processes, and tables.

A contender is a module with a function ``open_stream(corpus, state=None, **options) -> Stream``. Everything is
measured in a process of its own that opens the stream once: encoders remember words, so only the first pass over a
text is honest, and only a fresh process has a memory peak of its own. The processes that are compared run in turn
(:func:`interleave`), so that whatever else the machine does hurts all of them alike.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.corpus import Corpus

SEQ_LEN = 2048
BATCH_SIZE = 8
_ROOT = Path(__file__).parents[1]
IGNORED = -100  # the label of a token that is not learned from


@dataclass
class Stream:
    """An open stream of batches of ``input_ids`` and ``labels``, int64 ``[8, 2048]`` unless said otherwise.

    Attributes:
        batches: the batches; dicts of tensors, or lists of such dicts.
        state: gives a checkpoint of the position after the last batch taken; None where there is no such thing.
        close: ends threads and processes.
    """

    batches: Iterator[Any]
    state: Callable[[], Any] | None = None
    close: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Contender:
    """One way to load the corpus.

    Attributes:
        name: how tables call it.
        module: the module that has ``open_stream`` (and ``prepare(corpus)`` where it needs a layout of its own).
        options: keyword arguments of ``open_stream``.
        needs: packages that must be installed.
    """

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]


# ---- inside the measured process ----


def count_tokens(batch: Any) -> int:
    """Tokens to learn from in a batch, or in a list of micro-batches: padding at the end of the data does not count."""
    if isinstance(batch, list):
        return sum(count_tokens(part) for part in batch)
    labels = batch["labels"]
    if labels.numel() and labels[-1, -1] == IGNORED:  # padding is always at the end: looking closely costs time
        return int((labels != IGNORED).sum())
    return int(labels.numel())


def throughput(
    stream: Stream, *, max_seconds: float = 30.0, max_tokens: float = 1e12, warm_up: int = 0
) -> dict[str, Any]:
    """Takes batches as fast as they come; the clock starts when the first one has arrived, and ``warm_up`` others."""
    began = time.perf_counter()
    first = next(stream.batches)
    first_seconds = time.perf_counter() - began
    del first
    for _ in zip(range(warm_up), stream.batches, strict=False):
        pass
    tokens, waits, cpu = 0, [], cpu_seconds()
    start = now = time.perf_counter()
    for batch in stream.batches:
        before, now = now, time.perf_counter()
        waits.append(now - before)
        tokens += count_tokens(batch)
        if now - start > max_seconds or tokens >= max_tokens:
            break
    return {
        "tokens": tokens,
        "seconds": now - start,
        "tokens_per_second": tokens / max(now - start, 1e-9),
        "cpu_seconds": cpu_seconds() - cpu,
        "first_seconds": first_seconds,
        "p99_ms": percentile(waits, 99) * 1e3,
        "max_ms": max(waits, default=0.0) * 1e3,
    }


def waiting(stream: Stream, *, step: float = 0.05, steps: int = 200, warm_up: int = 10) -> dict[str, Any]:
    """A trainer whose step takes ``step`` seconds of no work for the processor: what it waits for its data."""
    waits = []
    for _ in range(warm_up + steps):
        before = time.perf_counter()
        if next(stream.batches, None) is None:
            break
        waits.append(time.perf_counter() - before)
        time.sleep(step)
    waits = waits[warm_up:]
    total = sum(waits)
    return {
        "steps": len(waits),
        "waiting_share": total / (total + step * max(len(waits), 1)),
        "p99_ms": percentile(waits, 99) * 1e3,
        "max_ms": max(waits, default=0.0) * 1e3,
    }


def checkpoint(stream: Stream, *, batches: int, path: str) -> dict[str, Any]:
    """Takes so many batches and writes a checkpoint to ``path``."""
    taken = 0
    for _ in zip(range(batches), stream.batches, strict=False):
        taken += 1
    if stream.state is None:
        return {"state_bytes": None}
    start = time.perf_counter()
    state = stream.state()
    seconds = time.perf_counter() - start
    Path(path).write_bytes(pickle.dumps(state))
    return {"state_bytes": size_of(state), "state_ms": seconds * 1e3, "batches": taken}


def first_batch(stream: Stream) -> dict[str, Any]:
    """Takes one batch; the time to open the stream is counted by the caller."""
    next(stream.batches)
    return {}


def size_of(state: Any) -> int:
    """Bytes of a checkpoint: as JSON where it is plain, else pickled."""
    try:
        return len(json.dumps(state))
    except TypeError:
        return len(pickle.dumps(state))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed; 0 where there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def cpu_seconds() -> float:
    """Processor time of this process, its threads and the children that live now or were waited for."""
    times = os.times()
    ticks = os.sysconf("SC_CLK_TCK")
    total = times.user + times.system + times.children_user + times.children_system
    for process in _tree(os.getpid())[1:]:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
        except OSError:
            continue
    return total


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "throughput": throughput,
    "waiting": waiting,
    "checkpoint": checkpoint,
    "first_batch": first_batch,
}


def _child(job: dict[str, Any]) -> None:
    corpus = Corpus(Path(job["corpus"]))
    module = importlib.import_module(job["module"])
    if job["task"] == "prepare":
        module.prepare(corpus)
        return
    state = pickle.loads(Path(job["state"]).read_bytes()) if job["state"] else None
    import torch  # noqa: F401  # the trainer has it already: not a part of opening

    start = time.perf_counter()
    stream = module.open_stream(corpus, state=state, **job["options"])
    opened = time.perf_counter() - start
    result = _TASKS[job["task"]](stream, **job["arguments"])
    result |= {"open_seconds": opened, "total_seconds": time.perf_counter() - start}
    Path(job["result"]).write_text(json.dumps(result))
    stream.close()


# ---- outside of it ----


def run(
    contender: Contender,
    task: str,
    corpus: Corpus,
    *,
    state: Path | None = None,
    timeout: float = 600,
    **arguments: Any,
) -> dict[str, Any]:
    """Measures in a fresh process: what the task gives, with the peak memory of the process and its children.

    Raises:
        RuntimeError: when the process failed, with the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "module": contender.module,
            "options": dict(contender.options),
            "task": task,
            "arguments": arguments,
            "corpus": str(corpus.root.resolve()),
            "state": str(state.resolve()) if state else None,
            "result": f"{folder}/result.json",
        }
        with open(f"{folder}/log", "wb") as log:
            command = [sys.executable, "-m", "benchmarks.measure", json.dumps(job)]
            # Installed packages are compiled; one that runs from a checkout would be at every start without this.
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=_ROOT, env=environment
            )
            memory = {"rss": 0, "private": 0}
            deadline = time.monotonic() + timeout
            try:
                while process.poll() is None:
                    for name, size in tree_memory(process.pid).items():
                        memory[name] = max(memory[name], size)
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{contender.name}: {task} took more than {timeout:.0f} s")
                    time.sleep(0.1)  # to look takes time from a contender that uses all cores
            finally:
                end_session(process.pid)
                process.wait()
        result = Path(job["result"])
        if process.returncode and not result.exists():
            tail = Path(f"{folder}/log").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{contender.name}: {task} failed\n{tail}")
        measured: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        return measured | {"rss_bytes": memory["rss"], "private_bytes": memory["private"]}


def interleave(
    contenders: Sequence[Contender], task: str, corpus: Corpus, *, repeats: int, **arguments: Any
) -> dict[str, list[dict[str, Any]]]:
    """Runs all contenders ``repeats`` times, in turn. A contender that fails is dropped, with a line."""
    results: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    failed: set[str] = set()
    for _ in range(repeats):
        for contender in contenders:
            if contender.name in failed:
                continue
            say(f"{task}: {contender.name}")
            try:
                results[contender.name].append(run(contender, task, corpus, **arguments))
            except RuntimeError as error:
                failed.add(contender.name)
                say(str(error))
    return {name: runs for name, runs in results.items() if runs}


def median(runs: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """The median of one figure over runs; None where no run has it."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def tree_memory(root: int) -> dict[str, int]:
    """Bytes of memory of a process and its descendants: ``rss``, and of it what is ``private`` or shared memory.

    The rest of ``rss`` is mapped files, which the system can drop. A page shared by two processes counts twice.
    """
    total = {"rss": 0, "private": 0}
    for process in _tree(root):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        sizes = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS", "Rss")))
        kilobytes = {name: int(size.split()[0]) for name, size in sizes.items()}
        total["rss"] += 1024 * kilobytes.get("VmRSS", 0)
        total["private"] += 1024 * (kilobytes.get("RssAnon", 0) + kilobytes.get("RssShmem", 0))
    return total


def _tree(root: int) -> list[int]:
    found, position = [root], 0
    while position < len(found):
        process = found[position]
        position += 1
        for thread in Path(f"/proc/{process}/task").glob("*"):
            try:
                found += [int(child) for child in (thread / "children").read_text().split()]
            except OSError:
                continue
    return found


def end_session(leader: int) -> None:
    """Kills what a child that leads a session of its own may have left running."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def say(text: str) -> None:
    """Progress, to stderr: stdout is for tables."""
    print(text, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines)


def shown(value: float | None, scale: float = 1.0, digits: int = 2, unit: str = "") -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None else f"{value / scale:.{digits}f}{unit}"


def corpus_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--corpus``, the folder that ``benchmarks.corpus`` wrote."""
    parser.add_argument(
        "--corpus", type=lambda text: Corpus(Path(text)), required=True, help="folder made by benchmarks.corpus"
    )


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))

"""The training job under kill -9, signals, and nodes that come and go: always the steps of the undisturbed job."""

import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic.journal import read_records, read_steps, same
from show.job import SCRIPT, Job, kill_process

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

ELASTIC = ["--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=kill"]
ELASTIC += ["--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=3"]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def starts(out):
    return [record for record in read_records(out / "journal.jsonl") if "pids" in record]


def last_step(out):
    return max(read_steps(out / "journal.jsonl"), default=0)


def assert_no_orphans(out):
    end = time.monotonic() + 20
    while alive := [pid for start in starts(out) for pid in start["pids"] if is_running(pid)]:
        assert time.monotonic() < end, f"still running: {alive}"
        time.sleep(0.1)


def assert_same_as_undisturbed(training, out):
    steps = read_steps(out / "journal.jsonl")
    reference = training.undisturbed(max(steps))
    assert list(steps) == list(reference)
    for number, runs in steps.items():
        for run in runs:
            assert same(reference[number], run), f"step {number}: {run}, undisturbed {reference[number]}"


def kill_one_rank(job, out, rng, longest):
    """Waits for ranks that have met, then kills one of them at a random moment; torchrun starts all again."""
    before = len(starts(out))
    time.sleep(rng.uniform(0, longest))
    kill_process(rng.choice(job.pids()))
    job.wait_until(lambda: len(starts(out)) > before)


def test_two_kills(training, tmp_path):
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=3")
    job = Job(tmp_path, arguments, ranks=2, torchrun=("--standalone", "--max-restarts=100"))
    job.wait_until(lambda: job.last_step() >= 4)
    kill_one_rank(job, tmp_path, random.Random(), 0.3)
    job.wait_until(job.last_step)
    job.kill()
    assert_no_orphans(tmp_path)
    job = Job(tmp_path, training.arguments(tmp_path, f"--steps={last_step(tmp_path) + 4}"), ranks=3)
    job.finish()
    assert starts(tmp_path)[-1]["from_step"] % 3 == 0
    assert_same_as_undisturbed(training, tmp_path)
    assert_no_orphans(tmp_path)


@pytest.mark.slow
def test_many_kills_on_changing_numbers_of_ranks(training, tmp_path):
    rng = random.Random()
    kills = 0
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=5")
    for ranks in (4, 2, 3, 1, 4, 3):
        job = Job(tmp_path, arguments, ranks=ranks, torchrun=("--standalone", "--max-restarts=100"))
        job.wait_until(job.pids)
        for _ in range(3):
            kill_one_rank(job, tmp_path, rng, 2)
            kills += 1
        time.sleep(rng.uniform(0, 2))
        job.kill()
        kills += 1
        assert_no_orphans(tmp_path)
    assert kills >= 20
    assert_same_as_undisturbed(training, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_nodes_leave_and_join(training, tmp_path, parallel):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=20", f"--parallel={parallel}")

    def node():
        return Job(
            tmp_path, arguments, ranks=2, torchrun=("--nnodes=1:2", f"--rdzv-endpoint=localhost:{port}", *ELASTIC)
        )

    def ranks_now():
        return starts(tmp_path)[-1]["ranks"] if starts(tmp_path) else 0

    host = node()
    host.wait_until(host.pids)  # hosts the list of nodes
    other = node()
    host.wait_until(lambda: ranks_now() == 4 and other.last_step())
    grown = starts(tmp_path)[-1]
    assert grown["from_step"] == last_step_before(tmp_path, grown)  # saved when it was asked to grow, no step lost

    lost = [other.agent.pid, *children(other.agent.pid)]
    for pid in lost:
        kill_process(pid)
    other.agent.wait()
    host.wait_until(lambda: ranks_now() == 2)
    seen = last_step(tmp_path)
    host.wait_until(lambda: last_step(tmp_path) > seen)

    other = node()
    host.wait_until(lambda: ranks_now() == 4 and other.last_step())
    grown = starts(tmp_path)[-1]
    assert grown["from_step"] == last_step_before(tmp_path, grown)

    for job in (host, other):
        job.agent.terminate()
    for job in (host, other):
        job.agent.wait(60)
    assert_no_orphans(tmp_path)
    assert_same_as_undisturbed(training, tmp_path)


def last_step_before(out, start):
    records = read_records(out / "journal.jsonl")
    return next(record["step"] for record in reversed(records[: records.index(start)]) if "step" in record)


def test_signals_save_at_the_end_of_the_step(training, tmp_path):
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=1000000")

    def start():
        process = subprocess.Popen([sys.executable, str(SCRIPT), *arguments], env=training.environment)
        launches.append(process)
        return process

    def wait(happened):
        end = time.monotonic() + 120
        while not happened():
            assert launches[-1].poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)

    launches = []
    checkpoints = tmp_path / "checkpoints"
    try:
        process = start()
        wait(lambda: last_step(tmp_path) >= 3)
        process.send_signal(signal.SIGUSR1)
        wait(lambda: list(checkpoints.glob("step-????????")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        saved = last_step(tmp_path)
        assert (checkpoints / f"step-{saved:08d}").exists()
        process = start()
        wait(lambda: last_step(tmp_path) > saved)
        assert starts(tmp_path)[-1]["from_step"] == saved
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        for process in launches:
            process.kill()
    assert_same_as_undisturbed(training, tmp_path)


def test_a_torn_line_in_the_journal_is_left_out(tmp_path):
    from elastic.journal import Journal, Step

    path = tmp_path / "journal.jsonl"
    Journal(path).write(Step(1, 4, "aa", 2.5))
    with open(path, "a") as torn:
        torn.write('{"step": 2, "ran')
    Journal(path).write(Step(2, 2, "bb", 2.25))
    assert read_steps(path) == {1: [Step(1, 4, "aa", 2.5)], 2: [Step(2, 2, "bb", 2.25)]}

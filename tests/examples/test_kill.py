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


def steps_since_start(out):
    records = read_records(out / "journal.jsonl")
    return next(i for i, record in enumerate(reversed(records)) if "pids" in record)


def wait_for_a_moment(job, out, rng):
    """A random number of steps after the ranks have met, and a bit: in the middle of something."""
    count = rng.randint(0, 12)
    job.wait_until(lambda: steps_since_start(out) >= count)
    time.sleep(rng.uniform(0, 0.3))


def kill_one_rank(job, out, rng):
    """torchrun starts all ranks again; waits until they have met."""
    before = len(starts(out))
    kill_process(rng.choice(job.pids()))
    job.wait_until(lambda: len(starts(out)) > before)


def test_two_kills(training, tmp_path):
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=3")
    with Job(tmp_path, arguments, ranks=2, torchrun=("--standalone", "--max-restarts=100")) as job:
        job.wait_until(lambda: job.last_step() >= 4)
        kill_one_rank(job, tmp_path, random.Random())
        job.wait_until(lambda: steps_since_start(tmp_path))
        job.kill()
    assert_no_orphans(tmp_path)
    arguments = training.arguments(tmp_path, f"--steps={last_step(tmp_path) + 4}")
    with Job(tmp_path, arguments, ranks=3) as job:
        job.finish()
    assert all(start["from_step"] > 0 and start["from_step"] % 3 == 0 for start in starts(tmp_path)[1:])
    assert_same_as_undisturbed(training, tmp_path)
    assert_no_orphans(tmp_path)


@pytest.mark.slow
def test_many_kills_on_changing_numbers_of_ranks(training, tmp_path):
    rng = random.Random()
    kills = 0
    arguments = training.arguments(tmp_path, "--steps=1000000", "--checkpoint-every=5")
    for ranks in (4, 2, 3, 1, 2, 3):
        with Job(tmp_path, arguments, ranks=ranks, torchrun=("--standalone", "--max-restarts=100")) as job:
            job.wait_until(job.pids)
            for _ in range(3):
                wait_for_a_moment(job, tmp_path, rng)
                kill_one_rank(job, tmp_path, rng)
                kills += 1
            wait_for_a_moment(job, tmp_path, rng)
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
        options = ("--nnodes=1:2", f"--rdzv-endpoint=localhost:{port}", *ELASTIC)
        return Job(tmp_path, arguments, ranks=2, torchrun=options)

    def has_ranks(number):
        return lambda: starts(tmp_path)[-1]["ranks"] == number and steps_since_start(tmp_path) > 2

    def assert_no_step_was_lost():
        """The ranks before saved when they were asked to stop for the new node."""
        start = starts(tmp_path)[-1]
        records = read_records(tmp_path / "journal.jsonl")
        before = records[: records.index(start)]
        assert start["from_step"] == next(record["step"] for record in reversed(before) if "step" in record)

    with node() as host:  # keeps the list of nodes
        host.wait_until(host.pids)
        with node() as other:
            host.wait_until(has_ranks(4))
            assert_no_step_was_lost()
            for pid in (*children(other.agent.pid), other.agent.pid):
                kill_process(pid)
        host.wait_until(has_ranks(2))
        with node() as other:
            host.wait_until(has_ranks(4))
            assert_no_step_was_lost()
    assert_no_orphans(tmp_path)
    assert_same_as_undisturbed(training, tmp_path)


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

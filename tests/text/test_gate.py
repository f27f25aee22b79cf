"""Encoders after fork, in spawned processes, and in several threads."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.tokenizer_zoo import generated_texts

from torchzephon.text.choice import encoder_for
from torchzephon.text.gate import ForkGate
from torchzephon.text.load import load_content
from torchzephon.text.shared import SharedEncoder
from torchzephon.text.threads import encoder_threads, thread_limit

TEXTS = generated_texts(60, seed=2)
BACKENDS = ["fastokens", "tokenizers"]


def ids_of(encoder):
    return encoder.encode(TEXTS, str).flat.tolist()


def forked(work, seconds=60):
    """The exit code of a forked process that does some work, or the signal that ended its waiting."""
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("parallelism", [None, "true"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_process_encodes(tokenizer_path, monkeypatch, backend, parallelism):
    """tokenizers would hang with TOKENIZERS_PARALLELISM=true, and warn without."""
    if parallelism is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", parallelism)
    encoder = SharedEncoder(load_content(tokenizer_path, "eos"), backend=backend, allow_special=True)
    expected = ids_of(encoder)
    for _ in range(5):
        assert forked(lambda: ids_of(encoder) == expected) == 0
    assert forked(lambda: forked(lambda: ids_of(encoder) == expected) == 0) == 0
    assert os.environ.get("TOKENIZERS_PARALLELISM") == parallelism
    assert ids_of(encoder) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_forks_while_other_threads_encode(tokenizer_path, backend):
    """Without the gate, a lock that a pool's thread holds at that moment is never released in the child."""
    encoder = SharedEncoder(load_content(tokenizer_path, "eos"), backend=backend, allow_special=True)
    expected = ids_of(encoder)
    stop, wrong = threading.Event(), []

    def busy():
        while not stop.is_set():
            if ids_of(encoder) != expected:
                wrong.append(1)

    workers = [threading.Thread(target=busy) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        codes = [forked(lambda: ids_of(encoder) == expected) for _ in range(10)]
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert codes == [0] * 10
    assert not wrong


def test_a_process_started_afresh_encodes(tokenizer_path):
    content = load_content(tokenizer_path, "eos")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for backend in BACKENDS:
            encoder = SharedEncoder(content, backend=backend, allow_special=True)
            assert pool.apply(ids_of, (encoder,)) == ids_of(encoder)


def test_the_gate_lets_a_thread_in_again_while_a_fork_waits():
    gate, order = ForkGate(), []
    inside, forking = threading.Event(), threading.Event()

    def nested():
        with gate:
            inside.set()
            forking.wait()
            time.sleep(0.05)
            with gate:
                order.append("encoded")

    worker = threading.Thread(target=nested)
    worker.start()
    inside.wait()
    forking.set()
    gate.before_fork()
    order.append("forked")
    gate.after_in_parent()
    worker.join()
    assert order == ["encoded", "forked"]


def test_the_gate_keeps_others_out_while_a_fork_goes_on():
    gate, order = ForkGate(), []
    gate.before_fork()

    def enter():
        with gate:
            order.append("encoded")

    worker = threading.Thread(target=enter)
    worker.start()
    time.sleep(0.05)
    order.append("forked")
    gate.after_in_parent()
    worker.join()
    assert order == ["forked", "encoded"]


def test_threads_are_shared_by_ranks_and_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert encoder_threads() == 48
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert encoder_threads() == 6

    class Worker:
        num_workers = 4

    monkeypatch.setattr("torch.utils.data.get_worker_info", Worker)
    assert encoder_threads() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "nonsense")
    assert encoder_threads() == 12
    Worker.num_workers = 1000
    assert encoder_threads() == 1


def test_a_thread_limit_is_for_a_moment_and_the_users_stays(monkeypatch):
    monkeypatch.delenv("SOME_THREADS", raising=False)
    for number, limit in ((5, "5"), (0, "1")):
        with thread_limit("SOME_THREADS", number):
            assert os.environ["SOME_THREADS"] == limit
        assert "SOME_THREADS" not in os.environ
    monkeypatch.setenv("SOME_THREADS", "2")
    with thread_limit("SOME_THREADS", 5):
        assert os.environ["SOME_THREADS"] == "2"
    assert os.environ["SOME_THREADS"] == "2"


COUNT = """
import os, sys
os.sched_getaffinity = lambda _: set(range(4 * 2))
os.environ["LOCAL_WORLD_SIZE"] = sys.argv[3]
from torchzephon.text.choice import encoder_for
from torchzephon.text.load import load_content
content = load_content(sys.argv[1], "eos")
import torch.utils.data
before = len(os.listdir("/proc/self/task"))
encoder = encoder_for(content, sys.argv[2], allow_special=True)
for _ in range(2):
    encoder.encode(["a b", "c d", "e f"])
print(len(os.listdir("/proc/self/task")) - before, [v for v in os.environ if "THREADS" in v])
"""
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")


def count_threads(script, *arguments):
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@needs_proc
@pytest.mark.parametrize(("backend", "ranks", "made"), [("tokenizers", "4", "2"), ("fastokens", "8", "0")])
def test_a_library_makes_as_many_threads_as_its_share(tokenizer_path, backend, ranks, made):
    """Callers of fastokens take part, so that it makes one thread less."""
    assert count_threads(COUNT, tokenizer_path, backend, ranks) == f"{made} []"


@needs_proc
def test_serial_encoding_makes_no_pool(tokenizer_path):
    serial = COUNT.replace("encoder.encode(", "encoder.encode_serially(")
    assert count_threads(serial, tokenizer_path, "tokenizers", "4") == "0 []"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_encoder_is_used_by_several_threads_at_once(tokenizer_path, backend):
    encoder = encoder_for(load_content(tokenizer_path, "eos"), backend, allow_special=True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: encoder.encode(TEXTS).flat.tolist(), range(16)))
    assert results == [encoder.encode(TEXTS).flat.tolist()] * 16

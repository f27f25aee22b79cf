import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import pytest

from torchzephon.data import background
from torchzephon.data.background import Task, help_out


def test_a_task_is_done_by_the_thread_of_its_name_and_in_turn():
    for thread in ("test-turn", "test-other"):
        done, ended = [], threading.Event()
        for i in range(20):
            Task(lambda i=i, done=done: done.append((i, threading.current_thread().name)), thread)
        Task(ended.set, thread)
        assert ended.wait(10)
        assert done == [(i, f"torchzephon-{thread}") for i in range(20)]


def busy(thread):
    """Keeps a thread at a task until the event is set. Returns the event and the task."""
    begun, end = threading.Event(), threading.Event()
    task = Task(lambda: (begun.set(), end.wait(10)), thread)
    assert begun.wait(10)
    return end, task


def test_who_asks_does_what_the_thread_has_not_begun():
    end, at_work = busy("test-take")
    calls = []
    task = Task(lambda: calls.append(threading.current_thread()) or 7, "test-take")
    assert task.result() == task.result() == 7
    assert calls == [threading.main_thread()]
    end.set()
    at_work.result()
    Task(lambda: None, "test-take").result()
    assert calls == [threading.main_thread()]


def test_who_waits_does_other_tasks_meanwhile():
    end, at_work = busy("test-help")
    others = [Task(lambda i=i: (i, threading.current_thread()), "test-help") for i in range(3)]
    fails = Task(lambda: 1 / 0, "test-help")
    Task(end.set, "test-help")  # ends the one that is waited for
    last = Task(lambda: (3, threading.current_thread()), "test-help")
    at_work.result()
    assert [task.result() for task in others] == [(i, threading.main_thread()) for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        fails.result()
    assert last.result()[0] == 3


def test_who_helps_does_one_task_after_another_however_many_wait_for_the_same():
    lock = threading.Lock()
    lock.acquire()
    end, at_work = busy("test-turns")
    now, deepest, calls = 0, 0, 4000  # within each other they would be too many for the stack

    def wait():
        nonlocal now, deepest, calls
        now, calls = now + 1, calls - 1
        deepest = max(deepest, now)
        help_out("test-turns", lock)
        now -= 1

    for _ in range(calls):
        Task(wait, "test-turns")
    help_out("test-turns", lock)
    assert (calls, deepest) == (0, 1)
    end.set()
    at_work.result()


@pytest.mark.parametrize("helping", [False, True])
def test_what_an_interrupt_has_cut_off_is_done_again(helping):
    end, at_work = busy("test-interrupted")
    interrupts = [KeyboardInterrupt()]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        return 3

    task = Task(interrupted, "test-interrupted")
    with pytest.raises(KeyboardInterrupt):
        (at_work if helping else task).result()
    end.set()
    assert at_work.result()
    assert task.result() == 3


def test_thread_and_asker_may_begin_at_the_same_moment(monkeypatch):
    monkeypatch.setattr(background, "_LINGER_S", 0)
    for number in range(2000):
        assert Task(lambda number=number: number, "test-moment").result() == number


def test_the_thread_ends_when_there_is_nothing_to_do_and_another_follows():
    for _ in range(3):
        assert Task(lambda: 1, "test-idle").result() == 1
        deadline = time.monotonic() + 10
        while any(thread.name == "torchzephon-test-idle" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_no_task_is_lost_between_a_thread_and_the_next(monkeypatch):
    monkeypatch.setattr(background, "_LINGER_S", 0)
    for number in range(500):
        done = threading.Event()
        Task(done.set, "test-race")
        assert done.wait(10), number


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3), KeyboardInterrupt()])
def test_an_error_is_raised_where_the_result_is_asked_for_and_the_thread_goes_on(error):
    def fail():
        raise error

    task = Task(fail, "test-errors")
    for _ in range(2):
        with pytest.raises(type(error)):
            task.result()
    assert Task(lambda: 5, "test-errors").result() == 5


def test_what_is_done_holds_nothing():
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    task = Task(lambda held=held: None, "test-held")
    task.result()
    Task(lambda: None, "test-held").result()
    del task, held
    assert gone() is None


def test_copies_and_pickles_have_the_result():
    task = Task(lambda: [1, 2], "test-copies")
    assert copy.deepcopy(task).result() == pickle.loads(pickle.dumps(task)).result() == [1, 2]
    failed = Task(lambda: 1 / 0, "test-copies")
    for other in (copy.deepcopy(failed), pickle.loads(pickle.dumps(failed))):
        with pytest.raises(ZeroDivisionError):
            other.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_what_its_parents_thread_would_have():
    block = threading.Event()
    Task(block.wait, "test-fork")
    waiting = Task(lambda: os.getpid(), "test-fork")

    def child(results):
        results.put((waiting.result(), Task(lambda: threading.current_thread().name, "test-fork").result()))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert results.get(timeout=30) == (process.pid, "torchzephon-test-fork")
    process.join(30)
    block.set()
    assert waiting.result() == os.getpid()


@pytest.mark.parametrize("ending", ["", "raise SystemExit(4)", "raise ValueError"])
def test_a_process_ends_after_the_task_at_hand_and_leaves_the_others(ending):
    script = (
        "import time, sys\n"
        "from torchzephon.data.background import Task\n"
        "tasks = [Task(lambda i=i: (time.sleep(0.3), print(i, flush=True)), 'test') for i in range(100)]\n"
        f"time.sleep(0.1)\n{ending}\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert ended.stdout.split() == ["0"]
    assert ended.returncode == {"": 0, "raise SystemExit(4)": 4, "raise ValueError": 1}[ending]

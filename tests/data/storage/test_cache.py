import multiprocessing
import os
import threading

import pytest

from torchzephon.data.storage.cache import ShardCache
from torchzephon.errors import DataError


def _fill(contents):
    return lambda out: out.write(contents)


def _never(out):
    raise AssertionError("it was there")


def test_a_file_is_made_once(tmp_path):
    cache = ShardCache(str(tmp_path / "shards"))
    with cache.open("a", 3, _fill(b"one")) as file:
        assert file.read() == b"one"
    with cache.open("a", 3, _never) as file:
        assert os.pread(file.fileno(), 2, 1) == b"ne"
    assert os.listdir(tmp_path / "shards") == ["a"]


def test_the_default_is_in_the_cache_root(cache):
    ShardCache().open("a", 1, _fill(b"1")).close()
    assert (cache / "shards" / "a").read_bytes() == b"1"


def test_a_file_of_another_size_is_made_anew(tmp_path):
    cache = ShardCache(str(tmp_path))
    (tmp_path / "a").write_bytes(b"cut o")
    with cache.open("a", 7, _fill(b"cut off")) as file:
        assert file.read() == b"cut off"


def test_the_least_recently_used_go_first(tmp_path):
    cache = ShardCache(str(tmp_path), limit=30)
    for time, name in enumerate("abc"):
        cache.open(name, 10, _fill(name.encode() * 10)).close()
        os.utime(tmp_path / name, (time, time))
    cache.open("a", 10, _never).close()  # used again: now the newest
    opened = cache.open("c", 10, _never)
    os.utime(tmp_path / "c", (1.5, 1.5))
    cache.open("d", 15, _fill(b"d" * 15)).close()
    assert sorted(os.listdir(tmp_path)) == ["a", "d"]
    assert opened.read() == b"c" * 10  # an open file outlives its name
    opened.close()


def test_a_file_that_can_never_fit_is_refused(tmp_path):
    cache = ShardCache(str(tmp_path), limit=10)
    with pytest.raises(DataError, match=r"takes 11 bytes, more than .* may hold \(10 bytes\): raise cache_size"):
        cache.open("a", 11, _never)


def test_a_fill_of_another_size_is_refused_and_leaves_nothing(tmp_path):
    cache = ShardCache(str(tmp_path))
    for contents in (b"12", b"1234"):
        with pytest.raises(DataError, match=f"3 bytes was expected and {len(contents)} bytes came"):
            cache.open("a", 3, _fill(contents))
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named(tmp_path):
    def full(out):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"):
        ShardCache(str(tmp_path)).open("a", 3, full)
    assert os.listdir(tmp_path) == []


def _open(path, log, ready):
    def fill(out):
        with open(log, "a") as made:
            made.write("made\n")
        out.write(b"x" * 1000)

    ready.wait(60)
    with ShardCache(path).open("a", 1000, fill) as file:
        assert file.read() == b"x" * 1000


def test_of_many_processes_and_threads_one_makes_the_file(tmp_path):
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    ready = context.Barrier(4)
    arguments = (str(tmp_path / "shards"), log, ready)
    workers = [context.Process(target=_open, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    threads = [threading.Thread(target=_open, args=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    for worker in [*workers, *threads]:
        worker.join(60)
    assert all(worker.exitcode == 0 for worker in workers)
    assert log.read_text() == "made\n"

import multiprocessing
import os
import stat
import tempfile

import pytest

from torchzephon.data.storage import places
from torchzephon.data.storage.places import atomic_file, cache_root, node_lock, short_hash


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHZEPHON_CACHE", str(tmp_path / "own"))
    assert cache_root() == str(tmp_path / "own")
    monkeypatch.delenv("TORCHZEPHON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == str(tmp_path / "xdg" / "torchzephon")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == str(tmp_path / ".cache" / "torchzephon")
    assert os.path.isdir(cache_root())


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCHZEPHON_CACHE", str(tmp_path / "file" / "below"))
    root = cache_root()
    assert root == str(tmp_path / "temporary" / f"torchzephon-{os.getuid()}")
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    assert "set TORCHZEPHON_CACHE to choose" in caplog.text


def test_a_temporary_directory_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(places.os, "getuid", lambda: 12345)
    (tmp_path / "torchzephon-12345").mkdir()
    with pytest.raises(PermissionError, match="belongs to another user"), node_lock("x"):
        pass


def _interrupted():
    yield b"two"
    raise KeyboardInterrupt


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    with atomic_file(str(path)) as out:
        out.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with pytest.raises(KeyboardInterrupt), atomic_file(str(path)) as out:
        out.writelines(_interrupted())
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_files_have_the_usual_permissions(tmp_path):
    """Others who read the data must be able to read the index beside it."""
    with atomic_file(str(tmp_path / "atomic")):
        pass
    (tmp_path / "usual").touch()
    assert os.stat(tmp_path / "atomic").st_mode == os.stat(tmp_path / "usual").st_mode


def _append(path, name):
    for _ in range(20):
        with node_lock(name):
            path.write_text(path.read_text() + "x")


def test_one_process_at_a_time_holds_a_lock(tmp_path):
    path = tmp_path / "log"
    path.write_text("")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, str(tmp_path))) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert path.read_text() == "x" * 60


def _hold(name, held):
    with node_lock(name):
        held.set()
        os.kill(os.getpid(), 9)


def test_a_killed_holder_frees_its_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    held = context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), held))
    process.start()
    process.join(60)
    assert held.is_set()
    with node_lock(str(tmp_path)):
        pass


def test_hashes_take_any_text():
    assert short_hash("a", 1, None) == short_hash("a", 1, None)
    assert len({short_hash("a", "b"), short_hash("ab"), short_hash("\udcff"), short_hash("")}) == 4
    assert len(short_hash("a")) == 32

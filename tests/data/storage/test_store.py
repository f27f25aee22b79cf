import copy
import os
import pickle

import pytest

from torchzephon.data.storage import store as store_module
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store, StoredFile, beside, is_local, local_path
from torchzephon.errors import DataError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"0123456789")
    return Store().stat(str(path))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(store_module.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("path", "local"),
    [("/a", True), ("a", True), ("file:///a", True), ("s3://a", False), ("simplecache::s3://a", False), ("a:b", True)],
)
def test_local_paths(path, local):
    assert is_local(path) is local


def test_local_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert local_path("a") == str(tmp_path / "a")
    assert local_path("~/a") == "/home/somebody/a"
    assert local_path("file:///a/b") == "/a/b"


def test_beside():
    assert beside("/a/b", ".x") == "/a/b.x"
    assert beside("s3://a/b", ".x") == "s3://a/b.x"
    assert beside("simplecache::s3://a/b", ".x") == "simplecache::s3://a/b.x"


def test_a_store_pickles_and_is_its_own_copy(tmp_path):
    store = Store({"anon": True}, cache_dir=tmp_path, cache_size="2GB", publish=True)
    assert copy.deepcopy(store) is store
    other = pickle.loads(pickle.dumps(store))
    assert (other.storage_options, other.publish) == ({"anon": True}, True)
    assert (other.cache.directory, other.cache.limit) == (str(tmp_path), 2 * 10**9)
    assert other.with_cache(None, None).storage_options == {"anon": True}
    with pytest.raises(ValueError, match="cache_size must be a number of bytes"):
        Store(cache_size="lots")


def test_a_changed_file_is_noticed(file):
    store = Store()
    store.check(file)
    os.utime(file.path, ns=(1, 1))
    with pytest.raises(DataError, match=r"a\.jsonl has changed since it was indexed \(from 10 to 10 bytes\)"):
        store.check(file)
    os.truncate(file.path, 4)
    with pytest.raises(DataError, match="from 10 to 4 bytes"):
        store.check(file)
    os.unlink(file.path)
    with pytest.raises(DataError, match=r"a\.jsonl does not exist"):
        store.check(file)
    for access in (store.open, store.open_local, lambda gone: list(store.chunks(gone))):
        with pytest.raises(DataError, match=r"a\.jsonl does not exist any more"):
            access(file)


def test_a_version_of_another_kind_says_nothing():
    file = StoredFile("s3://a", 3, "etag:1")
    assert file.is_as(3, "etag:1")
    assert not file.is_as(3, "etag:2")
    assert not file.is_as(4, "etag:1")
    assert file.is_as(3, "local:5")
    assert file.is_as(3, None)


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"ETag": '"abc"', "LastModified": 1}, "etag:abc"),
        ({"etag": "abc"}, "etag:abc"),
        ({"mtime": 12.5}, "time:12.5"),
        ({"Last-Modified": "Sun"}, "time:Sun"),
        ({}, None),
    ],
)
def test_versions_are_what_the_storage_tells(info, version):
    assert Store().describe("s3://b/x/a.jsonl", {"size": 3, **info}) == StoredFile(
        "s3://b/x/a.jsonl", 3, version, "a.jsonl"
    )


def test_a_local_file_is_opened_where_it_lies(file, cache):
    with Store().open_local(file) as opened:
        assert os.pread(opened.fileno(), 3, 4) == b"456"
    assert not cache.exists()


def test_a_remote_file_is_copied_once(memory, tmp_path):
    memory.pipe_file("/a.bin", bytes(range(256)) * 10_000)
    store = Store(cache_dir=tmp_path / "shards")
    (file,) = list_files("memory://a.bin", store)
    with store.open_local(file) as opened:
        assert opened.read() == bytes(range(256)) * 10_000
    memory.rm("/a.bin")
    store.open_local(file).close()
    assert len(os.listdir(tmp_path / "shards")) == 1
    with pytest.raises(DataError, match="does not exist"):
        Store(cache_dir=tmp_path / "others").open_local(file)


def test_a_remote_file_that_changed_is_not_copied(memory, tmp_path):
    memory.pipe_file("/a.bin", b"123")
    store = Store(cache_dir=tmp_path)
    (file,) = list_files("memory://a.bin", store)
    memory.pipe_file("/a.bin", b"456")
    with pytest.raises(DataError, match=r"memory://a\.bin has changed since it was indexed"):
        store.open_local(file)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_http(web, tmp_path, ranges):
    web.ranges = ranges
    contents = os.urandom(12_000_000)
    (web.root / "a.bin").write_bytes(contents)
    store = Store(cache_dir=tmp_path / "shards")
    (file,) = list_files(f"{web.url}/a.bin", store)
    with store.open_local(file) as opened:
        assert opened.read() == contents
    requests = len(web.requests)
    store.open_local(file).close()
    assert len(web.requests) == requests


def test_a_forked_process_reads_what_its_parent_read(web):
    """fsspec's event loop stays behind in the parent."""
    (web.root / "a.bin").write_bytes(b"0123456789")
    store = Store()
    (file,) = list_files(f"{web.url}/a.bin", store)
    assert b"".join(store.chunks(file)) == b"0123456789"
    child = os.fork()
    if child == 0:
        os._exit(b"".join(store.chunks(file)) != b"0123456789")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_failing_server_is_asked_again(web):
    (web.root / "a.bin").write_bytes(b"0123456789")
    store = Store()
    (file,) = list_files(f"{web.url}/a.bin", store)
    web.failures["a.bin"] = 1
    assert b"".join(store.chunks(file)) == b"0123456789"
    web.failures["a.bin"] = 100
    with pytest.raises(DataError, match=r"a\.bin cannot be read: 503"):
        list(store.chunks(file))


def test_a_stream_that_breaks_goes_on_where_it_was(memory, monkeypatch):
    contents = os.urandom(3_000_000)
    memory.pipe_file("/a.bin", contents)
    store = Store()
    (file,) = list_files("memory://a.bin", store)

    class Breaking:
        opened = 0

        def __init__(self, raw):
            self.raw = raw
            Breaking.opened += 1

        def read(self, size):
            if Breaking.opened < 3 and self.raw.tell() >= Breaking.opened * 1_000_000:
                raise ConnectionError("reset by peer")
            return self.raw.read(size - Breaking.opened)  # cut elsewhere each time

        def __enter__(self):
            return self

        def __exit__(self, *args):
            pass

    assert b"".join(store.chunks(file, Breaking)) == contents
    assert Breaking.opened == 3


def test_a_failing_disk_is_not_asked_again(file):
    def broken(raw):
        attempts.append(1)
        raise OSError(5, "Input/output error")

    attempts = []
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: .*Input/output error"):
        list(Store().chunks(file, broken))
    assert len(attempts) == 1


def test_files_beside_local_data(file, monkeypatch):
    assert Store().write_beside(file, ".x", [b"1", b"2"]) == file.path + ".x"
    with open(file.path + ".x", "rb") as written:
        assert written.read() == b"12"

    def denied(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_module, "atomic_file", denied)
    assert Store().write_beside(file, ".y", [b"1"]) is None


def test_files_beside_remote_data(memory):
    memory.pipe_file("/b/a.bin", b"123")
    (file,) = list_files("memory://b/a.bin", Store())
    assert Store().read_beside(file, ".x") is None
    assert Store().write_beside(file, ".x", [b"1", b"2"]) is None
    assert Store(publish=True).write_beside(file, ".x", [b"1", b"2"]) == "memory://b/a.bin.x"
    assert Store().read_beside(file, ".x") == b"12"


def test_storage_that_does_not_tell_a_size_is_refused(memory, monkeypatch):
    memory.pipe_file("/a.bin", b"123")
    monkeypatch.setattr(type(memory), "info", lambda self, path, **kw: {"name": path, "size": None, "type": "file"})
    with pytest.raises(DataError, match=r"memory://a\.bin: the storage does not tell the file's size"):
        Store().stat("memory://a.bin")

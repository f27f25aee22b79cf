import itertools
import logging
import os

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.data.formats import lines
from torchzephon.data.formats.lines import find_index, index_path, make_index, scan
from torchzephon.data.storage import store as store_module
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError

_LINES = st.lists(st.sampled_from([b"", b" ", b"\t\r", b"{}", b" {}", b"x" * 40, b"\xc3\xa9\r", b"\x00", b"\x0b"]))


@settings(deadline=None)
@given(_LINES, st.booleans(), st.booleans(), st.lists(st.integers(3, 50), max_size=30))
def test_records_are_the_lines_that_are_not_blank(parts, mark, last_newline, cuts):
    text = (b"\xef\xbb\xbf" if mark else b"") + b"\n".join(parts) + (b"\n" if last_newline and parts else b"")
    ends = [*np.cumsum(cuts).tolist(), len(text)]
    chunks = [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]
    index = scan(chunk for chunk in chunks if chunk)
    # The expectation is built another way: split, and keep what is not white space to JSON.
    body = text.removeprefix(b"\xef\xbb\xbf")
    expected = [(n, line) for n, line in enumerate(body.split(b"\n")) if line.strip(b" \t\r")]
    starts = index.starts.tolist()
    assert [text[a:b].split(b"\n")[0] for a, b in itertools.pairwise(starts)] == [e[1] for e in expected]
    assert [index.line_number(row) for row in range(len(index))] == [n + 1 for n, _ in expected]
    assert index.end == len(text)


def test_nothing_is_no_record():
    assert len(scan([])) == 0
    assert len(scan([b"\xef\xbb\xbf"])) == 0
    assert len(scan([b"\n\n  \n"])) == 0


@pytest.mark.parametrize("text", ["{}", "{}\n"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_refused(text, encoding):
    with pytest.raises(DataError, match=r"a\.jsonl is UTF-16 text, .*: convert it"):
        scan([("\ufeff" * (encoding == "utf-16-be") + text).encode(encoding)], "a.jsonl")


def test_offsets_are_wide_only_in_large_files(monkeypatch):
    assert scan([b"{}\n" * 10]).starts.dtype == np.uint32
    monkeypatch.setattr(lines, "_WIDE", 30)
    index = scan([b"{}\n" * 10])
    assert index.starts.dtype == np.uint64
    assert index.starts.tolist() == list(range(0, 31, 3))


@pytest.fixture
def file(tmp_path, cache):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": 2}\n' * 100)
    return Store().stat(str(path))


def _make(file, store=None):
    store = store or Store()
    return make_index(store.chunks(file), file, store)


def test_an_index_is_kept_beside_the_data(file, cache):
    made = _make(file)
    assert index_path(file, Store()) == file.path + ".tzindex"
    found = find_index(file, Store())
    assert found.starts.tolist() == made.starts.tolist()
    assert found.blanks.tolist() == list(range(1, 300, 3))
    assert not (cache / "indexes").exists()


def test_an_index_is_small_and_readable(file):
    _make(file)
    with open(file.path + ".tzindex", "rb") as stored:
        head = stored.readline()
    assert len(head) % 64 == 0
    assert orjson.loads(head)["records"] == 200
    assert os.path.getsize(file.path + ".tzindex") == len(head) + 201 * 4 + 100 * 8


def test_an_index_goes_to_the_cache_where_the_directory_cannot_be_written(file, cache, monkeypatch):
    def denied(path):
        if str(cache) not in path:
            raise OSError(30, "Read-only file system")
        return atomic_file(path)

    atomic_file = store_module.atomic_file
    monkeypatch.setattr(store_module, "atomic_file", denied)
    _make(file)
    assert os.listdir(os.path.dirname(file.path)) == ["a.jsonl"]
    assert os.path.dirname(index_path(file, Store())) == str(cache / "indexes")
    assert len(find_index(file, Store())) == 200


def test_large_indexes_are_mapped(file, monkeypatch):
    monkeypatch.setattr(lines, "_IN_MEMORY", 0)
    mapped = _make(file)
    os.unlink(file.path + ".tzindex")
    assert mapped.starts.tolist() == scan(Store().chunks(file)).starts.tolist()


def test_an_index_is_stale_when_time_or_size_change(file, caplog):
    caplog.set_level(logging.INFO)
    _make(file)
    os.utime(file.path, ns=(1, 1))
    assert find_index(Store().stat(file.path), Store()) is None
    assert "is not of the file as it is now" in caplog.text
    with open(file.path, "ab") as out:
        out.write(b"{}\n")
    os.utime(file.path, ns=(1, int(file.version.split(":")[1])))
    assert find_index(Store().stat(file.path), Store()) is None


def _damages():
    yield "empty", lambda data: b""
    yield "cut in the head", lambda data: data[:20]
    yield "cut in the body", lambda data: data[:-1]
    yield "longer", lambda data: data + b"\0"
    yield "no JSON", lambda data: b"x" + data[1:]
    yield "no object", lambda data: b"[1]\n"
    yield "no newline", lambda data: b" " * 5000 + data
    yield "a flipped bit", lambda data: data[:300] + bytes([data[300] ^ 4]) + data[301:]
    yield "negative counts", lambda data: data.replace(b'"records":200', b'"records":-20')
    yield "another type", lambda data: data.replace(b'"records":200', b'"records":"00"')
    yield "an odd width", lambda data: data.replace(b'"width":4', b'"width":3')


@pytest.mark.parametrize("damage", [pytest.param(damage, id=name) for name, damage in _damages()])
def test_a_damaged_index_is_made_anew(file, caplog, damage):
    _make(file)
    path = file.path + ".tzindex"
    with open(path, "rb") as stored:
        data = stored.read()
    with open(path, "wb") as stored:
        stored.write(damage(data))
    assert find_index(file, Store()) is None
    assert f"the index {path} is damaged" in caplog.text
    _make(file)
    assert len(find_index(file, Store())) == 200


def test_an_index_of_another_layout_is_made_anew(file):
    _make(file)
    path = file.path + ".tzindex"
    with open(path, "rb") as stored:
        data = stored.read()
    with open(path, "wb") as stored:
        stored.write(data.replace(b'"torchzephon_index":1', b'"torchzephon_index":2'))
    assert find_index(file, Store()) is None


def test_a_file_that_changes_while_it_is_scanned_is_refused(file):
    store = Store()

    def chunks():
        yield from store.chunks(file)
        os.truncate(file.path, 9)

    with pytest.raises(DataError, match="has changed since it was indexed"):
        make_index(chunks(), file, store)
    assert not os.path.exists(file.path + ".tzindex")


def test_remote_indexes_are_kept_in_the_cache_and_found_beside_the_data(memory, cache):
    memory.pipe_file("/b/a.jsonl", b"{}\n" * 7)
    (file,) = list_files("memory://b", Store())
    assert find_index(file, Store()) is None
    _make(file)
    assert memory.ls("/b", detail=False) == ["/b/a.jsonl"]
    assert len(find_index(file, Store())) == 7

    # One that publishes is not content with the cache's.
    publishing = Store(publish=True)
    assert find_index(file, publishing) is None
    _make(file, publishing)
    assert index_path(file, publishing) == "memory://b/a.jsonl.tzindex"
    assert memory.exists("/b/a.jsonl.tzindex")
    for entry in os.scandir(cache / "indexes"):
        os.unlink(entry)
    assert len(find_index(file, Store())) == 7
    assert len(os.listdir(cache / "indexes")) == 1


def test_an_index_moves_with_its_data_to_another_storage(file, memory):
    _make(file)
    for suffix in ("", ".tzindex"):
        with open(file.path + suffix, "rb") as stored:
            memory.pipe_file("/b/a.jsonl" + suffix, stored.read())
    (moved,) = list_files("memory://b", Store())
    assert len(find_index(moved, Store())) == 200

import io
import itertools
import logging
import multiprocessing

import orjson
import pytest

import torchzephon as tz
from torchzephon.data import shard_table
from torchzephon.data.formats.jsonl import JsonlFormat
from torchzephon.data.formats.registry import format_of_name
from torchzephon.data.shard_table import find_shards, index_files
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError


@pytest.fixture
def corpus(tmp_path, cache):
    root = tmp_path / "corpus"
    root.mkdir()
    for number in range(12):
        (root / f"{number}.jsonl").write_text('{"a": 1}\n' * number)
    return root


@pytest.fixture
def indexed(monkeypatch):
    """The names of the files that are scanned."""
    names = []
    index = JsonlFormat.index
    monkeypatch.setattr(
        JsonlFormat, "index", lambda self, file, store: names.append(file.name) or index(self, file, store)
    )
    return names


def _table(cache):
    (path,) = (cache / "tables").iterdir()
    return path


def test_a_second_start_reads_the_table(corpus, indexed, cache):
    first = tz.Dataset("web", corpus)
    assert first.num_samples == 66
    assert len(indexed) == 12
    for path in corpus.glob("*.tzindex"):
        path.unlink()
    second = tz.Dataset("web", corpus)
    assert list(second.shards) == list(first.shards)
    assert len(indexed) == 12


def test_only_changed_files_are_indexed_again(corpus, indexed):
    assert tz.Dataset("web", corpus).num_samples == 66
    (corpus / "3.jsonl").write_text("{}\n" * 100)
    (corpus / "30.jsonl").write_text("{}\n")
    assert tz.Dataset("web", corpus).num_samples == 66 - 3 + 101
    assert indexed[12:] == ["3.jsonl", "30.jsonl"]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"{}", b'{"key": 1', lambda table: {**table, "shards": [[99, 1, 1, None]]},
               lambda table: {**table, "shards": [1]}, lambda table: {"key": table["key"]}],
)  # fmt: skip
def test_a_damaged_table_is_made_anew(corpus, cache, caplog, damage):
    expected = list(tz.Dataset("web", corpus).shards)
    path = _table(cache)
    path.write_bytes(damage if isinstance(damage, bytes) else orjson.dumps(damage(orjson.loads(path.read_bytes()))))
    assert list(tz.Dataset("web", corpus).shards) == expected
    assert f"the table {path} is damaged" in caplog.text
    caplog.clear()
    assert list(tz.Dataset("web", corpus).shards) == expected
    assert not caplog.text


def test_a_table_that_cannot_be_kept_is_said(corpus, monkeypatch, caplog):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_table, "atomic_file", full)
    assert tz.Dataset("web", corpus).num_samples == 66
    assert "cannot be kept, the next start makes it anew: [Errno 28]" in caplog.text


def _index(corpus, barrier, log, count):
    index = JsonlFormat.index

    def logged(self, file, store):
        with open(log, "a") as out:
            out.write(file.name + "\n")
        return index(self, file, store)

    JsonlFormat.index = logged
    barrier.wait(60)
    count.put(tz.Dataset("web", corpus).num_samples)


def test_of_many_processes_that_start_at_once_one_indexes(corpus, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, count, log = context.Barrier(4), context.Queue(), tmp_path / "log"
    workers = [context.Process(target=_index, args=(corpus, barrier, log, count)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [count.get(timeout=60) for _ in workers] == [66] * 4
    for worker in workers:
        worker.join(60)
    assert sorted(log.read_text().split()) == sorted(f"{number}.jsonl" for number in range(12))


def test_the_first_broken_file_is_named(corpus):
    for number in (5, 7):
        (corpus / f"{number}.jsonl").write_text("\ufeffx", encoding="utf-16-le")
    with pytest.raises(DataError, match=r"dataset 'web': .*5\.jsonl is UTF-16"):
        _ = tz.Dataset("web", corpus).shards


def test_a_bar_shows_progress_on_a_terminal_when_it_takes_long(corpus, monkeypatch, indexed):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    store, terminal, seconds = Store(), Terminal(), itertools.count(0, 2)
    files = list_files(str(corpus), store)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(seconds)))
    assert len(index_files(files, format_of_name("jsonl"), store, "web", str(corpus), threads=1)) == 12
    assert "indexing web" in terminal.getvalue()


def test_what_was_done_is_logged(corpus, caplog):
    caplog.set_level(logging.INFO)
    assert tz.Dataset("web", corpus).num_samples == 66
    assert "indexed 12 files of web in" in caplog.text


def test_large_remote_data_without_an_index_are_refused(memory, cache, monkeypatch):
    monkeypatch.setattr(shard_table, "REMOTE_LIMIT", 50)
    for number in range(3):
        memory.pipe_file(f"/b/{number}.jsonl", b'{"id": 1}\n' * 2)
    with pytest.raises(
        DataError, match=r"60 bytes of remote jsonl data .* with: torchzephon index memory://b"
    ) as caught:
        _ = tz.Dataset("web", "memory://b").shards
    assert "dataset 'web'" in str(caught.value)
    assert tz.Dataset("web", ["memory://b/0.jsonl", "memory://b/1.jsonl"]).num_samples == 4
    assert tz.Dataset("web", "memory://b").num_samples == 6  # two of three have an index now


def test_a_store_that_publishes_reads_any_amount(memory, cache, monkeypatch):
    monkeypatch.setattr(shard_table, "REMOTE_LIMIT", 10)
    memory.pipe_file("/b/1.jsonl", b'{"id": 1}\n' * 2)
    store = Store(publish=True)
    files = list_files("memory://b", store)
    assert index_files(files, format_of_name("jsonl"), store, "b", "memory://b")[0].num_samples == 2
    assert memory.exists("/b/1.jsonl.tzindex")


def test_formats_without_a_kept_index(tmp_path, cache):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "a.parquet")
    store = Store()
    files = list_files(str(tmp_path / "a.parquet"), store)
    for _ in range(2):
        shards = find_shards(files, format_of_name("parquet"), store, "x", "place")
        assert [shard.num_samples for shard in shards] == [3]
    assert not list(tmp_path.glob("*.tzindex"))

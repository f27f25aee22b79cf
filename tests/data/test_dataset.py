import copy
import gzip
import json
import os
import pickle
import shutil
import threading

import numpy as np
import pytest

import torchzephon as tz
from torchzephon.data.block import Block
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError


@pytest.fixture
def corpus(tmp_path):
    """Shards of 3, 0, 2 and 4 samples."""
    root = tmp_path / "corpus"
    root.mkdir()
    count = 0
    for name, samples in (("s-1", 3), ("s-2", 0), ("s-9", 2), ("s-10", 4)):
        lines = [json.dumps({"id": count + i, "text": "x" * i}) + "\n" for i in range(samples)]
        (root / f"{name}.jsonl").write_text("".join(lines))
        count += samples
    return root


def _ids(dataset, pool):
    ids = []
    for at, shard in enumerate(dataset.shards):
        ids += dataset.read(at, np.arange(shard.num_samples), dataset.store, pool)["id"]
    return ids


def test_shards_are_in_natural_order_without_empty_ones(corpus, pool):
    dataset = tz.Dataset("web", corpus)
    assert [shard.file.name for shard in dataset.shards] == ["s-1.jsonl", "s-9.jsonl", "s-10.jsonl"]
    assert [shard.num_samples for shard in dataset.shards] == [3, 2, 4]
    assert dataset.num_samples == 9
    assert dataset.num_bytes == sum(path.stat().st_size for path in corpus.glob("*.jsonl"))
    assert dataset.format.name == "jsonl"
    assert _ids(dataset, pool) == list(range(9))
    assert dataset.locate(2, 3) == f"dataset 'web', {corpus}/s-10.jsonl, row 3"
    assert repr(dataset) == f"Dataset('web', {str(corpus)!r})"


def test_making_a_dataset_touches_nothing(tmp_path):
    dataset = tz.Dataset("web", tmp_path / "nothing")
    with pytest.raises(DataError, match=r"dataset 'web': no files match '.*nothing'"):
        _ = dataset.shards
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "a.jsonl").write_text("{}\n")
    assert dataset.num_samples == 1


def test_relative_paths_stay_what_they_were(corpus, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    dataset = tz.Dataset("web", "corpus")
    monkeypatch.chdir("/")
    assert dataset.num_samples == 9


def test_a_dataset_of_no_samples(tmp_path):
    (tmp_path / "a.jsonl").touch()
    dataset = tz.Dataset("web", tmp_path)
    assert (dataset.num_samples, list(dataset.shards)) == (0, [])
    assert dataset.digest


@pytest.mark.parametrize("path", ["{}", "{}/", "{}/*.jsonl", "file://{}"])
def test_the_digest_is_that_of_the_files_however_they_are_named(corpus, path):
    assert tz.Dataset("other name", path.format(corpus)).digest == tz.Dataset("web", corpus).digest


def test_the_digest_does_not_depend_on_the_place(corpus, tmp_path, memory, web):
    digest = tz.Dataset("web", corpus).digest
    assert len(digest) == 16
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved)
    os.utime(moved / "s-1.jsonl", (1, 1))
    assert tz.Dataset("web", moved).digest == digest
    for path in corpus.glob("*.jsonl"):
        memory.pipe_file(f"/bucket/data/{path.name}", path.read_bytes())
        shutil.copy(path, web.root)
    assert tz.Dataset("web", "memory://bucket/data").digest == digest
    assert tz.Dataset("web", "memory://bucket/data/s-*.jsonl").digest == digest
    assert tz.Dataset("web", f"{web.url}/").digest == digest


def test_the_digest_tells_contents_apart(corpus):
    digests = {tz.Dataset("web", corpus).digest}
    for change in (
        lambda: (corpus / "s-9.jsonl").rename(corpus / "s-8.jsonl"),
        lambda: (corpus / "s-1.jsonl").write_text('{"id": 1}\n'),
        lambda: (corpus / "s-1.jsonl").write_text('{"i":1}\n{}'),
        lambda: (corpus / "s-10.jsonl").unlink(),
    ):
        change()
        digests.add(tz.Dataset("web", corpus).digest)
    assert len(digests) == 5


def test_columns(corpus, pool):
    for columns, names in (({"t": "text"}, ["t"]), (["id"], ["id"]), (None, ["id", "text"])):
        dataset = tz.Dataset("web", corpus, columns=columns)
        assert list(dataset.read(0, np.array([2]), dataset.store, pool)) == names


def test_a_format_that_is_given_goes_for_all_files(tmp_path, pool):
    (tmp_path / "a.txt").write_text('{"id": 1}\n')
    (tmp_path / "b.data.gz").write_bytes(gzip.compress(b'{"id": 2}\n'))
    dataset = tz.Dataset("web", tmp_path, format="jsonl")
    assert _ids(dataset, pool) == [1, 2]
    with pytest.raises(DataError, match=r"dataset 'web': the format of 'a\.txt' cannot be told"):
        _ = tz.Dataset("web", tmp_path).shards


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 5}, TypeError, "name must be a text, got 5"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"path": 5}, TypeError, "path must be a directory, glob, file, URL or a list of these, got 5"),
        ({"path": ["a", None]}, TypeError, "path must be a directory"),
        ({"path": b"a"}, TypeError, "path must be a directory"),
        ({"path": ""}, ValueError, "path must not be empty"),
        ({"path": []}, ValueError, "path must not be empty"),
        ({"path": ["a", ""]}, ValueError, "path must not be empty"),
        ({"format": "csv"}, ValueError, "format must be one of .*'jsonl'.*, got 'csv'"),
        ({"columns": "text"}, TypeError, r"write \['text'\] for one column"),
        ({"columns": {}}, ValueError, "columns must not be empty"),
        ({"columns": []}, ValueError, "columns must not be empty"),
        ({"columns": [1]}, TypeError, "columns must map text to text"),
        ({"columns": {"a": None}}, TypeError, "columns must map text to text"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        tz.Dataset(**{"name": "web", "path": "/data", **arguments})


def test_errors_name_the_dataset_and_the_row(corpus, pool):
    (corpus / "s-1.jsonl").write_text('{"id": 1}\n[]\n')
    dataset = tz.Dataset("web", corpus)
    with pytest.raises(DataError, match=r"dataset 'web': .*s-1\.jsonl, line 2: not a JSON object") as caught:
        dataset.read(0, np.array([0, 1]), dataset.store, pool)
    assert caught.value.row == 1
    assert dataset.row_bytes(0, np.array([0, 1]), dataset.store, pool).tolist() == [10, 3]


def test_a_copy_is_the_dataset_itself_and_a_pickle_carries_the_shards(corpus, pool, monkeypatch):
    dataset = tz.Dataset("web", corpus, columns=["id"])
    assert copy.deepcopy([dataset])[0] is dataset
    unused = pickle.loads(pickle.dumps(dataset))
    assert unused.num_samples == 9
    digest = dataset.digest
    used = pickle.dumps(dataset)
    monkeypatch.setattr("torchzephon.data.dataset.list_files", None)
    other = pickle.loads(used)
    assert (other.digest, other.columns, other.format.name) == (digest, {"id": "id"}, "jsonl")
    assert _ids(other, pool) == list(range(9))


def test_threads_index_once(corpus, monkeypatch):
    calls = []
    monkeypatch.setattr("torchzephon.data.dataset.list_files", lambda *args: calls.append(1) or list_files(*args))
    from torchzephon.data.storage.listing import list_files

    dataset = tz.Dataset("web", corpus)
    threads = [threading.Thread(target=lambda: dataset.shards) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert calls == [1]


def test_a_lock_held_at_a_fork_does_not_matter(corpus):
    dataset = tz.Dataset("web", corpus)
    lock = dataset._locks.setdefault(os.getpid(), threading.Lock())
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(dataset.num_samples)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_samples_in_memory(pool):
    samples = [{"text": "a", "id": i} for i in range(5)]
    dataset = tz.Dataset.from_samples("mine", samples)
    assert (dataset.num_samples, len(dataset.shards), dataset.num_bytes) == (5, 1, 5)
    assert dataset.locate(0, 3) == "dataset 'mine', in memory, row 3"
    columns = dataset.read(0, np.array([4, 0]), Store(), pool)
    assert list(Block(columns)) == [samples[4], samples[0]]
    other = pickle.loads(pickle.dumps(dataset))
    assert other.digest == dataset.digest == tz.Dataset.from_samples("x", list(samples)).digest
    assert other.digest != tz.Dataset.from_samples("mine", samples[::-1]).digest
    assert tz.Dataset.from_samples("none", []).num_samples == 0
    with pytest.raises(TypeError, match="sample 0 must be a dict"):
        tz.Dataset.from_samples("mine", ["text"])
    with pytest.raises(ValueError, match="name must not be empty"):
        tz.Dataset.from_samples("", [])

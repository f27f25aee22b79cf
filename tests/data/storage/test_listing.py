import os
import random

import pytest

from torchzephon.data.storage.listing import list_files, natural_key
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError


def _make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def _names(path, store=None):
    return [file.name for file in list_files(path if isinstance(path, list) else str(path), store or Store())]


def test_numbers_in_names_sort_by_value():
    names = ["a", "a/b", "a1", "a2/x", "a10", "shard-2", "shard-10", "shard-010", "ä1", "x9y3", "x9y20", "x10y1"]
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == [
        "a", "a/b", "a1", "a2/x", "a10", "shard-2", "shard-010", "shard-10", "x9y3", "x9y20", "x10y1", "ä1",
    ]  # fmt: skip


def test_directories_are_searched_without_hidden_index_and_note_files(tmp_path):
    _make(
        tmp_path, "2.jsonl", "10.jsonl", "sub/1.jsonl", ".hidden", "_SUCCESS", ".git/x", "_temporary/y.jsonl",
        "2.jsonl.tzindex", "README.txt", "LICENSE", "notes.md",
    )  # fmt: skip
    assert _names(tmp_path) == ["2.jsonl", "10.jsonl", "sub/1.jsonl"]
    assert _names(f"{tmp_path}/") == _names(tmp_path)
    assert _names(f"file://{tmp_path}") == _names(tmp_path)


def test_a_file_is_as_it_was_listed(tmp_path):
    _make(tmp_path, "a.jsonl")
    status = os.stat(tmp_path / "a.jsonl")
    expected = StoredFile(str(tmp_path / "a.jsonl"), 7, f"local:{status.st_mtime_ns}", "a.jsonl")
    assert list_files(str(tmp_path), Store()) == [expected]
    assert list_files(str(tmp_path / "a.jsonl"), Store()) == [expected]


def test_a_named_file_is_always_taken(tmp_path):
    _make(tmp_path, "_README.md")
    assert _names(tmp_path / "_README.md") == ["_README.md"]


def test_globs(tmp_path):
    _make(tmp_path, "x/a1.jsonl", "x/a2.jsonl", "x/a2.jsonl.tzindex", "x/b.csv", "y/a3.jsonl", "y/deep/a4.jsonl")
    assert _names(f"{tmp_path}/x/*.jsonl") == ["a1.jsonl", "a2.jsonl"]
    assert _names(f"{tmp_path}/*/*.jsonl") == ["x/a1.jsonl", "x/a2.jsonl", "y/a3.jsonl"]
    assert _names(f"{tmp_path}/**/*.jsonl") == ["x/a1.jsonl", "x/a2.jsonl", "y/a3.jsonl", "y/deep/a4.jsonl"]
    assert _names(f"{tmp_path}/[y]*") == ["y/a3.jsonl", "y/deep/a4.jsonl"]
    assert _names(f"{tmp_path}/x/*") == ["a1.jsonl", "a2.jsonl", "b.csv"]


def test_a_path_with_wildcard_characters_that_exists_means_itself(tmp_path):
    _make(tmp_path, "[1]/a*.jsonl")
    assert _names(tmp_path / "[1]") == ["a*.jsonl"]
    assert _names(tmp_path / "[1]" / "a*.jsonl") == ["a*.jsonl"]


def test_lists_keep_their_order(tmp_path):
    _make(tmp_path, "b/2.jsonl", "b/10.jsonl", "a/1.jsonl")
    assert _names([str(tmp_path / "b"), str(tmp_path / "a")]) == ["2.jsonl", "10.jsonl", "1.jsonl"]


def test_a_file_listed_twice_is_refused(tmp_path):
    _make(tmp_path, "a.jsonl")
    with pytest.raises(DataError, match=r"a\.jsonl is listed twice; .* raise its dataset's weight"):
        list_files([str(tmp_path), f"{tmp_path}/*.jsonl"], Store())


def test_two_colons_are_no_url(tmp_path):
    _make(tmp_path, "a::b/c::d.jsonl")
    assert _names(tmp_path / "a::b") == _names(tmp_path / "a::b" / "c::d.jsonl") == ["c::d.jsonl"]


def test_a_name_that_is_not_utf_8_is_named(tmp_path):
    name = os.fsdecode(b"\xff.jsonl")
    try:
        (tmp_path / name).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names alone")
    with pytest.raises(DataError, match=r"the name of '.*\\udcff\.jsonl' is not UTF-8.*rename it"):
        list_files(str(tmp_path), Store())


@pytest.mark.parametrize("path", ["nothing", "nothing/*.jsonl", "empty", "*.csv", "file/below"])
def test_a_path_that_matches_nothing_is_named(tmp_path, path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"no files match .*{path[-3:]}"):
        list_files(str(tmp_path / path), Store())


def test_symbolic_links_are_followed(tmp_path):
    _make(tmp_path / "store", "1.jsonl", "2.jsonl")
    data = tmp_path / "data"
    data.mkdir()
    (data / "linked.jsonl").symlink_to(tmp_path / "store" / "1.jsonl")
    (data / "directory").symlink_to(tmp_path / "store")
    (data / "loop").symlink_to(data)
    assert _names(data) == ["directory/1.jsonl", "directory/2.jsonl", "linked.jsonl"]


def test_a_broken_link_is_not_passed_over(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"a\.jsonl is a broken symbolic link"):
        list_files(str(tmp_path), Store())


def test_what_is_no_file_is_passed_over(tmp_path):
    _make(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert _names(tmp_path) == ["a.jsonl"]


def test_memory_file_system(memory):
    for name in ("b/2.jsonl", "b/10.jsonl", "b/c/1.jsonl", "b/_x.jsonl", "b/2.jsonl.tzindex", "b/README.md"):
        memory.pipe_file(f"/{name}", b"{}\n")
    assert _names("memory://b") == ["2.jsonl", "10.jsonl", "c/1.jsonl"]
    assert _names("memory://b/") == _names("memory://b")
    assert _names("memory://b/*.jsonl") == ["2.jsonl", "10.jsonl"]
    assert _names("memory://b/**/*.jsonl") == ["2.jsonl", "10.jsonl", "c/1.jsonl"]
    assert _names("memory://*") == ["b/2.jsonl", "b/10.jsonl", "b/c/1.jsonl"]
    assert _names("memory://b/c/1.jsonl") == ["1.jsonl"]
    store = Store()
    for file in list_files("memory://b", store):
        store.check(file)
        assert store.open(file).read() == b"{}\n"
    with pytest.raises(DataError, match="no files match 'memory://nothing'"):
        list_files("memory://nothing", store)


def test_http(web):
    _make(web.root, "d/2.jsonl", "d/10.jsonl", "d/10.jsonl.tzindex")
    store = Store()
    files = list_files(f"{web.url}/d/", store)
    assert [file.name for file in files] == ["2.jsonl", "10.jsonl"]
    assert [file.path for file in files] == [f"{web.url}/d/2.jsonl", f"{web.url}/d/10.jsonl"]
    assert [file.size for file in files] == [9, 10]
    assert files[0].version.startswith("time:")
    assert _names(f"{web.url}/d/*.jsonl") == ["2.jsonl", "10.jsonl"]
    assert _names(f"{web.url}/d/2.jsonl?token=x") == ["2.jsonl"]
    with pytest.raises(DataError, match=r"gone\.jsonl cannot be listed: 404"):
        list_files(f"{web.url}/gone.jsonl", store)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9/a\.jsonl cannot be listed"):
        list_files("http://127.0.0.1:9/a.jsonl", Store())


def test_a_protocol_that_is_not_known_is_named():
    with pytest.raises(DataError, match=r"nope://x cannot be listed: .*nope"):
        list_files("nope://x", Store())


def test_chained_urls(memory):
    store = Store()
    memory.pipe_file("/b/1.jsonl", b"{}\n")
    files = list_files("simplecache::memory://b", store)
    assert [file.name for file in files] == ["1.jsonl"]
    assert store.open(files[0]).read() == b"{}\n"

import gzip
import os
import subprocess
import sys

import fsspec
import pytest

from torchzephon.cli.main import main
from torchzephon.data.storage import store as store_module


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHZEPHON_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "corpus"
    root.mkdir()
    (root / "a.jsonl").write_text('{"a": 1}\n' * 700)
    (root / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 800))
    return root


def test_indexes_are_written_beside_the_data(corpus, capsys):
    assert main(["index", str(corpus)]) == 0
    assert sorted(os.listdir(corpus)) == ["a.jsonl", "a.jsonl.tzindex", "b.jsonl.gz", "b.jsonl.gz.tzindex"]
    line = f"{corpus}: 1,500 samples in 2 jsonl files, 13.5 kB; indexes are beside the data\n"
    assert capsys.readouterr() == (line, "")
    before = os.stat(corpus / "a.jsonl.tzindex").st_ino
    assert main(["index", str(corpus), "--workers", "1"]) == 0
    assert os.stat(corpus / "a.jsonl.tzindex").st_ino == before


def test_the_cache_is_named_where_the_directory_cannot_be_written(corpus, capsys, monkeypatch, tmp_path):
    def denied(path):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store_module, "atomic_file", denied)
    assert main(["index", f"{corpus}/*.jsonl"]) == 0
    assert f"cannot be written, indexes are in {tmp_path}/cache/indexes" in capsys.readouterr().out


def test_remote_indexes_are_written_beside_the_data(corpus, capsys):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/cli/a.jsonl", b"{}\n")
    assert main(["index", "memory://cli", "--storage-option", "anon=true"]) == 0
    assert memory.exists("/cli/a.jsonl.tzindex")
    assert capsys.readouterr().out.startswith("memory://cli: 1 sample in 1 jsonl file, 3 bytes; indexes are beside")
    memory.rm("/cli", recursive=True)


def test_several_paths_and_formats(corpus, capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "t.parquet")
    (tmp_path / "x.txt").write_text("{}\n")
    assert main(["index", str(corpus), str(tmp_path / "t.parquet")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{corpus}: 1,500 samples")
    assert second.startswith(f"{tmp_path}/t.parquet: 3 samples in 1 parquet file")
    assert second.endswith("no index is needed")
    assert main(["index", str(tmp_path / "x.txt"), "--format", "jsonl"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nothing"], "no files match"),
        (["{}", "--format", "csv"], "format must be one of"),
        (["{}/bad.jsonl.gz"], "is broken gzip data"),
        (["nope://x"], "cannot be listed"),
    ],
)
def test_errors_are_messages(corpus, capsys, arguments, message):
    (corpus / "bad.jsonl.gz").write_bytes(b"no")
    assert main(["index", *(argument.format(corpus) for argument in arguments)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torchzephon: error: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["nothing"], "invalid choice"),
        (["index"], "required: PATH"),
        (["index", "x", "--workers", "0"], "must be a number from 1 up, got '0'"),
        (["index", "x", "--workers", "many"], "must be a number from 1 up"),
        (["index", "x", "--storage-option", "anon"], "must be KEY=VALUE, got 'anon'"),
    ],
)
def test_a_wrong_command_line_exits_with_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_an_interrupt_ends_quietly(corpus, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchzephon.cli.index.list_files", interrupt)
    assert main(["index", str(corpus)]) == 130
    assert capsys.readouterr() == ("", "")


def test_the_module_runs(corpus):
    done = subprocess.run(
        [sys.executable, "-m", "torchzephon", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("torchzephon 0.")
    done = subprocess.run(
        [sys.executable, "-m", "torchzephon", "-v", "index", str(corpus / "gone")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr

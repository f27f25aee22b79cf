"""The small examples run as they are; they check what they claim."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the examples share their small corpus."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("quickstart", "one rank goes on with the same 16 rows"),
        ("own_node", "goes on with the same sample"),
        ("own_curriculum", "600 samples, the same on 1 rank and on 4"),
        ("stock_nodes", "'input_ids': (2, 64)"),
        ("evaluation", "labels in the first pass"),
    ],
)
def test_runs(folder, name, says):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "a.jsonl",
            json.dumps({"id": 1, "content": "x"}),
            "a.jsonl, row 0: no text in the field 'text': there are ['content', 'id']",
        ),
        ("a.jsonl", json.dumps({"text": None}), "no text in the field 'text': there are ['text']"),
        ("a.txt", "x", "the format of 'a.txt' cannot be told from its name"),
    ],
)
def test_the_demo_refuses_what_it_cannot_read_in_one_line(tmp_path, name, text, says):
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_text(text)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), "--data", "data", "--out", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()

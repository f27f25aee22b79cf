"""The small examples run as they are; they check what they claim."""

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

"""A small corpus and a tokenizer for the training job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.journal import read_steps
from show.corpus import small_data
from show.job import SCRIPT

OPTIONS = ["--dtype=float64", "--lanes=8", "--lane-batch=1", "--micro-batch=1", "--seq-len=64", "--vocab=512"]


class Training:
    """The arguments of a small training job, and its steps when nothing disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = small_data(folder / "data")
        # With several threads a run this small takes many times as long when the machine is busy.
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def arguments(self, out: Path, *options: object) -> list[str]:
        return [*self.data, str(out), *OPTIONS, *map(str, options)]

    def undisturbed(self, steps: int) -> dict:
        """One process, no kill, ``steps`` steps."""
        out = self.folder / "undisturbed"
        shutil.rmtree(out, ignore_errors=True)
        arguments = self.arguments(out, f"--steps={steps}", "--checkpoint-every=1000000")
        subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, timeout=600, env=self.environment)
        return {number: run for number, (run,) in read_steps(out / "journal.jsonl").items()}


@pytest.fixture(scope="session")
def training(tmp_path_factory) -> Training:
    return Training(tmp_path_factory.mktemp("training"))

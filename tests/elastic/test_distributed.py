"""Real ranks under torchrun. Each job in ``support/jobs`` runs many scenarios, since starting it takes long."""

import pytest
from support.jobs import ends
from support.ranks import torchrun


@pytest.fixture(scope="module")
def run_ends(tmp_path_factory):
    return torchrun("support.jobs.ends", tmp_path_factory.mktemp("ends"), 4, timeout=120)


@pytest.mark.parametrize("name", list(ends.scenario))
def test_ends(run_ends, name):
    check(run_ends, name)


def test_ends_leave_quietly(run_ends):
    check_quiet(run_ends)


def check(run, name):
    outcomes, _, log = run
    failed = {rank: what for rank, what in enumerate(outcomes.get(name, [log[-3000:]])) if what != "passed"}
    assert not failed, "\n".join(f"rank {rank}: {what}" for rank, what in failed.items())


def check_quiet(run):
    _, code, log = run
    assert code == 0, log[-3000:]
    assert "Traceback" not in log
    assert "Exception ignored" not in log

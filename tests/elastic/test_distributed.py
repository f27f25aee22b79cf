"""Real ranks. Each job in ``support/jobs`` runs many scenarios in one set of processes, which take long to start."""

import pytest
from support.jobs import checkpoints, deaths, ends
from support.ranks import bare_ranks, torchrun

import torchzephon as tz


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Runs a job when its first scenario is asked for."""
    runs = {}

    def run(job):
        if job not in runs:
            name = job.__name__.rpartition(".")[2]
            start = bare_ranks if job is deaths else torchrun
            runs[job] = start(job.__name__, tmp_path_factory.mktemp(name), 4, timeout=400)
        return runs[job]

    return run


def check(run, name, ranks):
    outcomes, _, log = run
    failed = {rank: what for rank, what in enumerate(outcomes.get(name, [log[-3000:]])) if what != "passed"}
    assert not {rank: what for rank, what in failed.items() if rank in ranks}, "\n".join(failed.values())


@pytest.mark.parametrize("name", ends.scenario)
def test_the_end_of_finite_data(run_of, name):
    check(run_of(ends), name, range(4))


@pytest.mark.parametrize("name", checkpoints.scenario)
def test_checkpoints_and_meshes(run_of, name):
    check(run_of(checkpoints), name, range(4))


@pytest.mark.parametrize(("name", "survivors"), list(zip(deaths.scenario, (range(3), range(2)), strict=True)))
def test_deaths(run_of, name, survivors):
    check(run_of(deaths), name, survivors)


def test_ranks_come_to_their_end_and_say_nothing(run_of):
    for job in (ends, checkpoints):
        _, code, log = run_of(job)
        assert code == 0, log[-3000:]
        assert "Traceback" not in log
        assert "Exception ignored" not in log
    _, codes, _ = run_of(deaths)
    assert codes == [0, 0, 7, -9]


def test_torchrun_environment_without_a_process_group(monkeypatch, caplog):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    caplog.set_level("INFO")
    lanes = tz.Lanes(ends.graph(), 7)
    assert lanes.owned == range(4, 7)
    assert "rank 2 of 3 of RANK and WORLD_SIZE owns lanes 4-6 of 7" in caplog.text
    assert "pass dp=mesh['dp']" in caplog.text
    assert "no process group stands behind the ranks" in caplog.text
    assert tz.Lanes(ends.graph(), 7, dp=(0, 1)).owned == range(7)

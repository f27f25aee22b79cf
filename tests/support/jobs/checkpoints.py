"""Checkpoints, meshes and FSDP2 on real ranks."""

import itertools
import logging
import multiprocessing
import sys
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.graphs import documents, is_blank, plain, token_graph
from support.ranks import Scenarios, gathered
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchzephon as tz

warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
scenario = Scenarios()
DOCS = documents(80, seed=4)
LANES = 6


def endless(**options):
    return token_graph(DOCS, chunk_size=4, **options)


def finite(**options):
    return token_graph(DOCS, chunk_size=4, exhausted_policy="stop", **options)


def open_loader(dp, build=endless, *, num_lanes=LANES, num_workers=0, plain_lanes=False, **options):
    lanes = tz.Lanes(build(), num_lanes, dp=dp, **options)
    return tz.ElasticDataLoader(lanes if plain_lanes else tz.Rounds(lanes), num_workers)


def real(batches):
    return [plain(batch) for batch in batches if not is_blank(batch)]


def joined(shares):
    return [list(itertools.chain(*share)) for share in zip(*shares, strict=True)]


def alone(build=endless, count=None):
    return list(map(real, itertools.islice(open_loader((0, 1), build), count)))


def in_groups(sizes):
    """Every size with the process group of the first ranks; None on the others."""
    groups = [(size, dist.new_group(list(range(size)))) for size in sizes]
    for size, group in groups:
        yield size, group if dist.get_rank() < size else None
        dist.barrier()


def through_sizes(out, steps, build=endless, **options):
    """The rounds that chains of ranks give, each loading through DCP what the one before saved."""
    got = []
    for number, (_, group) in enumerate(in_groups([size for size, _ in steps])):
        here, last = (out / f"{n}-{steps[n][0]}" for n in (number, number - 1))
        if group is not None:
            loader = open_loader(group, build, **options)
            model = {"weight": torch.full([3], float(number))}
            if number:
                dcp.load({"model": model, "data": loader}, checkpoint_id=last, process_group=group)
                assert model["weight"].tolist() == [number - 1.0] * 3
            shares = list(map(real, itertools.islice(loader, steps[number][1])))
            got += joined(gathered(shares, group))
            model = {"weight": torch.full([3], float(number))}
            dcp.save({"model": model, "data": loader}, checkpoint_id=here, process_group=group)
            loader.close()
    return got


@scenario
def dcp_takes_the_loader_to_any_number_of_ranks(out):
    expected = alone(count=13)
    for uneven in ("pad", "allow"):
        place = out / uneven
        got = through_sizes(place, [(4, 3), (3, 2), (2, 4), (1, 1), (4, 3)], uneven=uneven)
        if dist.get_rank() == 0:
            assert got == expected


@scenario
def dcp_takes_finite_data_through_its_end(out):
    one = open_loader((0, 1), finite)
    first, second = list(map(real, one)), list(map(real, one))
    got = through_sizes(out, [(4, 5), (3, 1000), (4, 3)], finite)
    if dist.get_rank() < 3:
        assert got == first + second[:3]


@scenario
def dcp_takes_worker_processes_along(out):
    expected = alone(count=9)
    got = through_sizes(out, [(4, 2), (3, 3), (2, 4)], num_workers=2)
    if dist.get_rank() < 2:
        assert got == expected


@scenario
def dcp_takes_plain_lanes_in_mid_round(out):
    for number, (uneven, batches) in enumerate(itertools.product(("pad", "allow"), (1, 3))):
        expected = [batch for share in alone(count=9) for batch in share]
        streams = [expected[lane::LANES] for lane in range(LANES)]
        got = {lane: [] for lane in range(LANES)}
        for turn, (_, group) in enumerate(in_groups([4, 3, 2])):
            if group is None:
                continue
            loader = open_loader(group, plain_lanes=True, uneven=uneven)
            if turn:
                dcp.load({"data": loader}, checkpoint_id=out / f"{number}-{turn - 1}", process_group=group)
            mine = real(itertools.islice(loader, batches))
            dcp.save({"data": loader}, checkpoint_id=out / f"{number}-{turn}", process_group=group)
            for batch in itertools.chain(*gathered(mine, group)):
                lane = next(lane for lane, stream in enumerate(streams) if batch in stream)
                got[lane].append(batch)
        if dist.get_rank() < 2:
            for lane, stream in enumerate(streams):
                assert got[lane] == stream[: len(got[lane])], (uneven, batches, lane)


@scenario
def async_save_keeps_the_state_of_the_call(out):
    loader = open_loader(None)
    expected = alone(count=12)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    saving = dcp.async_save({"data": loader}, checkpoint_id=out / "checkpoint")
    for _ in range(5):
        next(iterator)
    saving.result()
    resumed = open_loader(None)
    dcp.load({"data": resumed}, checkpoint_id=out / "checkpoint")
    assert joined(gathered(list(map(real, itertools.islice(resumed, 4))))) == expected[3:7]


@scenario
def a_checkpoint_of_another_run_is_refused(out):
    dcp.save({"data": open_loader(None)}, checkpoint_id=out / "checkpoint")
    with pytest.raises(tz.StateError, match=r"the state has 6 lanes, this run num_lanes=5.*use num_lanes=6"):
        dcp.load({"data": open_loader(None, num_lanes=5)}, checkpoint_id=out / "checkpoint")
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: data.lanes.0000[67]"):
        dcp.load({"data": open_loader(None, num_lanes=8)}, checkpoint_id=out / "checkpoint")
    with pytest.raises(tz.StateError, match=r"seed.*saved.*3.*9"):
        dcp.load({"data": open_loader(None, lambda: endless(seed=9))}, checkpoint_id=out / "checkpoint")


@scenario
def the_template_of_a_fresh_loader_starts_nothing(out):
    threads, children = set(threading.enumerate()), multiprocessing.active_children()
    for num_workers in (0, 2):
        loader = open_loader(None, num_workers=num_workers)
        assert len(loader.state_dict()["lanes"]) == len(loader.lanes.owned)
        dcp.save({"data": loader}, checkpoint_id=out / f"{num_workers}")
        assert {t for t in threading.enumerate() if t.name.startswith("torchzephon")} <= threads
        assert multiprocessing.active_children() == children


@scenario
def tensor_parallel_peers_see_the_same_batches(out):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for build in (endless, finite):
        loader = open_loader(mesh["dp"], build, num_lanes=5)
        shares = [plain(share) for share in itertools.islice(loader, 4 if build is endless else None)]
        everybody = gathered(shares)
        assert everybody[0] == everybody[1]
        assert everybody[2] == everybody[3]
        one = open_loader((0, 1), build, num_lanes=5)
        expected = list(map(real, itertools.islice(one, len(shares))))
        states = gathered(loader.state_dict())
        assert tz.merge_states(states) == tz.merge_states(states[1:3]) == tz.gather_state(loader)
        again = open_loader(mesh["dp"], build, num_lanes=5)
        got = joined([gathered(list(map(real, itertools.islice(again, len(shares)))))[rank] for rank in (0, 2)])
        assert got == expected
        assert len(got) == len(shares) > 3


@scenario
def a_flattened_mesh_of_replicas_and_shards_is_one_dimension(out):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with pytest.raises(ValueError, match=r"mesh of 2 dimensions \('replicate', 'shard'\).*_flatten\('dp'\)"):
        open_loader(mesh)
    loader = open_loader(mesh["replicate", "shard"]._flatten("dp"), finite)
    assert joined(gathered(list(map(real, loader)))) == alone(finite)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(64, 12, dtype=torch.float64)
        self.hidden = torch.nn.Linear(12, 13, dtype=torch.float64)
        self.head = torch.nn.Linear(13, 64, dtype=torch.float64)

    def forward(self, batch):
        logits = self.head(torch.tanh(self.hidden(self.embedding(batch["input_ids"] % 64))))
        labels = torch.where(batch["labels"] < 0, batch["labels"], batch["labels"] % 64)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def train(model, rounds, group=None):
    """-> the loss of each round, per real label of all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = dist.get_world_size(group) if group is not None else 1
    losses = []
    for batches in rounds:
        count = torch.tensor(sum(int((b["labels"] != -100).sum()) for b in batches))
        if group is not None:
            dist.all_reduce(count, group=group)
        whole = torch.zeros([], dtype=torch.float64)
        for batch in batches:
            loss = model(batch)
            (loss * size / count).backward()  # FSDP takes the mean of the ranks' gradients
            whole += loss.detach() / count
        if group is not None:
            dist.all_reduce(whole, group=group)
        losses.append(float(whole))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def fsdp_through_sizes(out, steps, build, num_lanes):
    losses = []
    meshes = [DeviceMesh("cpu", list(range(size))) for size, _ in steps]
    for number, ((size, count), mesh) in enumerate(zip(steps, meshes, strict=True)):
        if dist.get_rank() < size:
            model = Model()
            fully_shard(model.hidden, mesh=mesh)
            fully_shard(model, mesh=mesh)
            loader = open_loader(mesh, build, num_lanes=num_lanes)
            group = mesh.get_group()
            if number:
                state = {"model": model.state_dict(), "data": loader}
                dcp.load(state, checkpoint_id=out / f"{number - 1}", process_group=group)
                model.load_state_dict(state["model"])
            losses += train(model, itertools.islice(loader, count), group)
            state = {"model": model.state_dict(), "data": loader}
            dcp.save(state, checkpoint_id=out / f"{number}", process_group=group)
        dist.barrier()
    return losses


@scenario
def fsdp_has_the_same_losses_on_any_number_of_ranks(out):
    expected = train(Model(), itertools.islice(open_loader((0, 1), num_lanes=8), 9))
    got = fsdp_through_sizes(out, [(4, 3), (3, 3), (2, 3)], endless, 8)
    if dist.get_rank() < 2:
        assert got == pytest.approx(expected, rel=1e-9)


@scenario
def fsdp_has_the_same_losses_to_the_end_of_the_data(out):
    expected = train(Model(), open_loader((0, 1), finite, num_lanes=8))
    got = fsdp_through_sizes(out, [(4, 3), (3, 1000)], finite, 8)
    if dist.get_rank() < 3:
        assert got == pytest.approx(expected, rel=1e-9)


if __name__ == "__main__":
    scenario.run(sys.argv[1])
    dist.destroy_process_group()

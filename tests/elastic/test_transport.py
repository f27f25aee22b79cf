"""Batches come out of the trip between processes as they went in."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import plain

from torchzephon.elastic.transport import Receiver, Sender

INT32 = torch.iinfo(torch.int32)


def ends():
    received = torch.zeros(1, dtype=torch.int64)
    return Sender(received), Receiver(received)


def trip(batches):
    sender, receiver = ends()
    return receiver.unpack(sender.pack(batches))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def training_batch(seed=0, rows=2):
    ids = torch.arange(rows * 8).view(rows, 8) + seed
    return {"input_ids": ids, "labels": ids + 1, "positions": ids % 5}


def test_training_batches_are_one_int32_tensor():
    batches = [training_batch(seed) for seed in range(3)]
    sender, receiver = ends()
    packed = sender.pack(batches)
    assert [(stack.sent, stack.shape) for stack in packed.stacks] == [(torch.int32, (3, 3, 2, 8))]
    assert not any(value is not None for batch in packed.plain for value in batch.values())
    assert same(receiver.unpack(packed), batches)


@pytest.mark.parametrize("value", [INT32.min, INT32.max])
def test_what_fits_is_sent_as_int32(value):
    batches = [{"x": torch.tensor([value])}]
    assert ends()[0].pack(batches).stacks[0].sent == torch.int32
    assert same(trip(batches), batches)


@pytest.mark.parametrize("value", [INT32.min - 1, INT32.max + 1, torch.iinfo(torch.int64).max])
def test_larger_values_stay_int64(value):
    batches = [{"x": torch.tensor([0]), "y": torch.tensor([value])}]
    assert same(trip(batches), batches)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.zeros(0, 5, dtype=torch.int64)},
        {"x": torch.zeros(0)},
        {"x": torch.tensor(7)},
        {"mask": torch.tensor([[True, False]]), "ids": torch.tensor([[1, 2]])},
        {"x": torch.tensor([1, 2], dtype=torch.uint8), "y": torch.tensor([1.5, float("inf")])},
        {"x": torch.ones(2, dtype=torch.bfloat16), "z": torch.ones(2, dtype=torch.complex64)},
        {},
        {"x": 5, "ids": torch.tensor([1]), "name": "a"},
        {"ids": torch.tensor([1]), "max_seqlen": 3, "labels": torch.tensor([2])},
        {"array": np.arange(3), "ids": torch.tensor([1])},
        {"inner": {"ids": torch.tensor([1])}},
        {"inner": [torch.tensor([1]), None]},
        {3: torch.tensor([1])},
        torch.arange(3),
        [torch.arange(3), torch.arange(2)],
        (1, "x", None),
        "text",
        None,
    ],
    ids=lambda batch: str(plain(batch))[:40],
)
def test_any_batch_comes_out_as_it_went_in(batch):
    for batches in ([batch], [batch, batch]):
        assert same(trip(batches), batches)


def test_batches_that_differ_among_each_other():
    a, b = training_batch(), training_batch(rows=3)
    cases = [
        [a, b],
        [a, {"input_ids": a["input_ids"]}],
        [a, [1]],
        [a, {**a, "labels": a["labels"].int()}],
        [{"x": torch.tensor([1])}, {"y": torch.tensor([1])}],
        [{"x": torch.tensor([1]), "y": torch.tensor([2])}, {"y": torch.tensor([3]), "x": torch.tensor([4])}],
    ]
    for batches in cases:
        assert same(trip(batches), batches)
    assert trip([]) == []


def test_document_bounds_of_any_length_leave_the_other_tensors_together():
    batches = [
        {**training_batch(seed), "cu_seqlens": torch.arange(seed + 2, dtype=torch.int32), "max_seqlen": seed}
        for seed in range(3)
    ]
    sender, receiver = ends()
    packed = sender.pack(batches)
    assert [stack.names for stack in packed.stacks] == [["input_ids", "labels", "positions"]]
    assert same(receiver.unpack(packed), batches)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, 3).t(),
        torch.ones(4)[::2],
        torch.ones(1).expand(5),
        torch.ones(2, device="meta"),
    ],
    ids=["sparse", "subclass", "transposed", "strided", "expanded", "meta"],
)
def test_unusual_tensors_are_sent_whole(tensor):
    (out,) = trip([{"x": tensor}])
    assert type(out["x"]) is type(tensor)
    assert out["x"].shape == tensor.shape
    assert out["x"].layout == tensor.layout
    if tensor.device.type == "cpu":
        assert torch.equal(out["x"].to_dense(), tensor.to_dense())


def test_what_arrives_is_not_shared_memory_and_may_be_written_to():
    batches = [training_batch(seed) for seed in range(2)]
    bounds = [{**batch, "cu": torch.arange(i + 2)} for i, batch in enumerate(batches)]
    sender, receiver = ends()
    packed = sender.pack(bounds)
    assert packed.memory.is_shared()
    for batch in packed.plain:
        batch["cu"].share_memory_()
    out = receiver.unpack(packed)
    assert not any(tensor.is_shared() for batch in out for tensor in batch.values())
    out[0]["input_ids"].zero_()
    assert same(out[1:], bounds[1:])
    assert same(out[0]["labels"], bounds[0]["labels"])


NAMES = st.sampled_from(["input_ids", "labels", "mask", "cu_seqlens"])
DTYPES = st.sampled_from([torch.int64, torch.int32, torch.bool, torch.float32, torch.uint8])


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = draw(st.lists(st.integers(-(2**34), 2**34), min_size=1, max_size=4))
    count = int(np.prod(shape, dtype=int))
    return torch.tensor((values * count)[:count], dtype=torch.int64).view(shape).to(draw(DTYPES))


@settings(deadline=None, max_examples=80)
@given(st.lists(st.dictionaries(NAMES, tensors() | st.integers() | st.none()), max_size=4))
def test_random_batches(batches):
    assert same(trip(batches), batches)


def test_narrow_tensors_are_widened_and_others_of_the_same_shape_are_not():
    wide = [training_batch(seed) | {"segment": torch.ones(2, 8, dtype=torch.int32)} for seed in range(2)]
    narrow = [{name: tensor.int() for name, tensor in batch.items()} for batch in wide]
    sender, receiver = ends()
    sender.begin(widened={"input_ids", "labels", "positions"})
    assert same(receiver.unpack(sender.pack(narrow)), wide)
    assert same(receiver.unpack(sender.pack(wide)), wide)  # where the values did not fit


@pytest.mark.parametrize("rows", [(2, 3), (1, 1, 2)])
def test_narrow_tensors_that_cannot_be_stacked_are_widened_too(rows):
    wide = [training_batch(seed, count) for seed, count in enumerate(rows)]
    sender, receiver = ends()
    sender.begin(widened={"input_ids", "labels", "positions"})
    narrow = [{name: tensor.int() for name, tensor in batch.items()} for batch in wide]
    assert same(receiver.unpack(sender.pack(narrow)), wide)
    assert same(receiver.unpack(sender.pack([narrow[0], wide[1]])), wide[:2])


def test_memory_is_used_again_and_sent_once():
    sender, receiver = ends()
    packed = []
    for seed in range(20):
        packed.append(sender.pack([training_batch(seed)]))
        assert same(receiver.unpack(packed[-1]), [training_batch(seed)])
    assert {item.slot for item in packed} == {0, 1}
    assert [item.memory is not None for item in packed] == [True, True] + [False] * 18


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["send", "receive", "restart"]), st.integers(1, 4)), max_size=40))
def test_nothing_is_overwritten_before_it_was_received(steps):
    received = torch.zeros(1, dtype=torch.int64)
    sender, receiver = Sender(received), Receiver(received)
    waiting = []
    for seed, (step, rows) in enumerate(steps):
        if step == "send":
            waiting.append((seed, rows, sender.pack([training_batch(seed, rows)])))
        elif step == "receive" and waiting:
            sent, sent_rows, packed = waiting.pop(0)
            assert same(receiver.unpack(packed), [training_batch(sent, sent_rows)])
        elif step == "restart":  # persistent workers, and the parent has left the loop early
            waiting.clear()
            received.zero_()
            sender.begin()
    for sent, rows, packed in waiting:
        assert same(receiver.unpack(packed), [training_batch(sent, rows)])


def made_there(sender, seeds, rows=2):
    """Batches in the sender's memory, as TrainingBatcher makes them."""
    made = []
    for seed in seeds:
        array = sender.empty((3, rows, 8), np.int32)
        tensors = torch.from_numpy(array).unbind(0)
        for tensor, value in zip(tensors, training_batch(seed, rows).values(), strict=True):
            tensor.copy_(value)
        made.append(dict(zip(("input_ids", "labels", "positions"), tensors, strict=True)) | {"max_seqlen": seed})
    return made


def expected(seeds, rows=2):
    return [training_batch(seed, rows) | {"max_seqlen": seed} for seed in seeds]


def lies_in_slot(sender, packed, batch):
    begin = sender._memory[packed.slot].data_ptr()
    return begin <= batch["input_ids"].data_ptr() < begin + len(sender._memory[packed.slot])


def test_what_is_made_in_shared_memory_is_not_copied():
    sender, receiver = ends()
    sender.begin(widened={"input_ids", "labels", "positions"})
    there = []
    for item in range(8):
        seeds = range(3 * item, 3 * item + 3)
        batches = made_there(sender, seeds)
        packed = sender.pack(batches)
        there.append([lies_in_slot(sender, packed, batch) for batch in batches])
        assert [(stack.shape, stack.sent) for stack in packed.stacks] == [((3, 3, 2, 8), torch.int32)]
        assert same(receiver.unpack(packed), expected(seeds))
    assert there == [[False] * 3] + [[True] * 3] * 7  # the first item tells how much memory is needed
    assert len(sender._memory) <= 3


def test_items_of_other_sizes_and_orders_are_copied():
    sender, receiver = ends()
    sender.begin(widened={"input_ids", "labels", "positions"})
    assert same(receiver.unpack(sender.pack(made_there(sender, range(4)))), expected(range(4)))
    for change in (
        lambda made: made[::-1],
        lambda made: made[1:],
        lambda made: [*made, *made],
        lambda made: [{**made[0], "labels": made[0]["input_ids"]}, *made[1:]],
        lambda made: [{name: made[0][name] for name in ("labels", "input_ids", "positions")}, *made[1:]],
        lambda made: [made[0], {"input_ids": made[1]["input_ids"]}],
        lambda made: [made[0], None],
        lambda made: [{**batch, "positions": batch["positions"].long()} for batch in made],
        lambda made: [],
        lambda made: [*made, *made_there(sender, range(9, 14))],  # more than ever before
        lambda made: made,
    ):
        batches = change(made_there(sender, range(3)))
        want = [
            {name: value.long() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
            if batch
            else batch
            for batch in batches
        ]
        assert same(receiver.unpack(sender.pack(batches)), want)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["send", "send", "receive", "restart"]), st.integers(1, 4)), max_size=40))
def test_nothing_is_made_where_the_parent_still_reads(steps):
    received = torch.zeros(1, dtype=torch.int64)
    sender, receiver = Sender(received), Receiver(received)
    sender.begin(widened={"input_ids", "labels", "positions"})
    waiting = []
    for number, (step, count) in enumerate(steps):
        seeds = range(10 * number, 10 * number + count)
        if step == "send":
            waiting.append((seeds, sender.pack(made_there(sender, seeds))))
        elif step == "receive" and waiting:
            sent, packed = waiting.pop(0)
            assert same(receiver.unpack(packed), expected(sent))
        elif step == "restart":
            waiting.clear()
            received.zero_()
            made_there(sender, seeds)  # never sent
            sender.begin(widened={"input_ids", "labels", "positions"})
    for sent, packed in waiting:
        assert same(receiver.unpack(packed), expected(sent))

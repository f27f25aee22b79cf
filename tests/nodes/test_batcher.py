import copy
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import BaseNode, IterableWrapper, Mapper, Prefetcher

from torchzephon.data.block import Block
from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError, StateError
from torchzephon.nodes.batcher import TrainingBatcher
from torchzephon.nodes.graph import Estimate
from torchzephon.nodes.packer import SequencePacker

NAMES = ("input_ids", "labels", "positions")


class Items(BaseNode):
    """Any items; the state is an ordinal."""

    def __init__(self, items):
        super().__init__()
        self.items = items

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.at = 0 if initial_state is None else initial_state["at"]

    def next(self):
        if self.at >= len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def get_state(self):
        return {"at": self.at}


def make_documents(sizes):
    tokens = iter(range(1, sum(sizes) + 1))
    return [[next(tokens) for _ in range(size)] for size in sizes]


def packed(documents, seq_len, *, masks=None, **options):
    columns = {"input_ids": Ragged.from_rows([np.asarray(row, np.int32) for row in documents])}
    if masks is not None:
        columns["mask"] = masks
        options["loss_mask_field"] = "mask"
    return SequencePacker(Items([Block(columns)]), seq_len, **options)


def reference(sequences, seq_len, batch_size, *, mask_starts):
    """Token by token: the rows of (input, label, position) of every batch."""
    rows = []
    for sequence in sequences:
        ids, positions = sequence["input_ids"].tolist(), sequence["positions"].tolist()
        mask = sequence["loss_mask"].tolist() if "loss_mask" in sequence else [True] * len(ids)
        row = []
        for at in range(seq_len):
            learn = at + 1 < sequence["num_tokens"] and mask[at + 1]
            if mask_starts and learn and positions[at + 1] != positions[at] + 1:
                learn = False
            row.append((ids[at], ids[at + 1] if learn else -100, positions[at]))
        rows.append(row)
    while len(rows) % batch_size:
        rows.append([(0, -100, at) for at in range(seq_len)])
    return [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]


def rows_of(batch):
    columns = [batch[name].tolist() for name in NAMES]
    return [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


cases = st.tuples(
    st.lists(st.integers(0, 15), max_size=30),
    st.integers(1, 12),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["wrap", "best_fit"]),
)


@settings(deadline=None, max_examples=100)
@given(cases)
def test_batches_are_what_the_sequences_say(case):
    sizes, seq_len, batch_size, extra_token, mask_starts, with_mask, algorithm = case
    documents = make_documents(sizes)
    masks = [[token % 3 > 0 for token in document] for document in documents] if with_mask else None
    packer = packed(documents, seq_len, masks=masks, extra_token=extra_token, algorithm=algorithm)
    sequences = list(packer)
    packer.reset()
    batches = list(TrainingBatcher(packer, batch_size, mask_document_starts=mask_starts))
    for batch in batches:
        assert set(batch) == set(NAMES)
        for name in NAMES:
            assert batch[name].shape == (batch_size, seq_len)
            assert batch[name].dtype == torch.int64
            assert batch[name].is_contiguous()
    assert [rows_of(batch) for batch in batches] == reference(sequences, seq_len, batch_size, mask_starts=mask_starts)


@settings(deadline=None, max_examples=100)
@given(cases)
def test_cu_seqlens_bound_the_documents(case):
    sizes, seq_len, batch_size, extra_token, _, _, algorithm = case
    documents = make_documents(sizes)
    document_of = {token: number for number, document in enumerate(documents) for token in document}
    packer = packed(documents, seq_len, extra_token=extra_token, algorithm=algorithm)
    for batch in TrainingBatcher(packer, batch_size, cu_seqlens=True):
        bounds = batch["cu_seqlens"]
        assert bounds.dtype == torch.int32
        assert bounds[0] == 0
        assert bounds[-1] == batch_size * seq_len
        assert batch["max_seqlen"] == int(bounds.diff().max())
        assert set(range(0, batch_size * seq_len, seq_len)) <= set(bounds.tolist())
        flat = batch["input_ids"].flatten().tolist()
        owners = []
        for start, stop in itertools.pairwise(bounds.tolist()):
            owner = {document_of.get(token, "padding") for token in flat[start:stop]}
            assert len(owner) == 1
            owners.append((start // seq_len, *owner))
        assert all(a != b for a, b in itertools.pairwise(owners))


def test_packing_that_splits_a_document_keeps_its_pieces_apart():
    """Two remainders in one sequence: positions do not restart at 0, but they do not go on either."""
    packer = packed([[1] * 14, [2] * 14], 9, algorithm="best_fit")
    batches = list(TrainingBatcher(packer, 3, cu_seqlens=True))
    assert len(batches) == 1
    assert batches[0]["cu_seqlens"].tolist() == [0, 9, 13, 17, 18, 27]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_end_of_the_data(drop_last):
    packer = packed([[5] * 23], 4, pad_token_id=9)  # four sequences of 5, and 3 tokens
    node = TrainingBatcher(packer, 2, drop_last=drop_last)
    batches = list(node)
    assert len(batches) == 2 if drop_last else 3
    with pytest.raises(StopIteration):
        next(node)
    state = json.loads(json.dumps(node.state_dict()))
    node.reset(state)
    assert list(node) == []
    if not drop_last:
        assert batches[2]["input_ids"].tolist() == [[5, 5, 5, 9], [9, 9, 9, 9]]
        assert batches[2]["labels"].tolist() == [[5, 5, -100, -100], [-100] * 4]
        assert batches[2]["positions"].tolist() == [[20, 21, 22, 0], [0, 1, 2, 3]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 15), max_size=30), st.data())
def test_batch_size_may_change_between_save_and_load(sizes, data):
    documents = make_documents(sizes)
    expected = [row for batch in TrainingBatcher(packed(documents, 5), 1) for row in rows_of(batch)]
    got, state, ended = [], None, False
    while not ended:
        node = TrainingBatcher(packed(documents, 5), data.draw(st.integers(1, 4)))
        node.reset(state)
        steps = data.draw(st.integers(1, 3))
        part = list(itertools.islice(node, steps))
        got += [row for batch in part for row in rows_of(batch)]
        ended = len(part) < steps
        state = json.loads(json.dumps(node.state_dict()))
    assert [row for row in got if any(label != -100 for _, label, _ in row)] == [
        row for row in expected if any(label != -100 for _, label, _ in row)
    ]


def test_batches_share_no_memory():
    packer = packed([list(range(1, 200))], 4)
    first, second = itertools.islice(TrainingBatcher(packer, 2), 2)
    kept = {name: second[name].clone() for name in NAMES}
    for name in NAMES:
        first[name].fill_(77)
    assert all(torch.equal(second[name], kept[name]) for name in NAMES)
    storages = [{batch[name].untyped_storage().data_ptr() for name in NAMES} for batch in (first, second)]
    assert not storages[0] & storages[1]
    assert all(batch[name].is_contiguous() for batch in (first, second) for name in NAMES)
    first["labels"].zero_()
    assert all((first[name] == 77).all() for name in ("input_ids", "positions"))
    packer.reset()
    assert next(packer)["input_ids"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "through", [lambda node: node, lambda node: Prefetcher(node, 2), lambda node: Mapper(node, dict)]
)
def test_blank_batches_have_the_usual_shape(through):
    documents = make_documents([7, 3])
    node = TrainingBatcher(through(packed(documents, 4, pad_token_id=9)), 3, cu_seqlens=True)
    blank, real = node.blank(), next(node)
    assert set(blank) == set(real)
    for name in NAMES:
        assert blank[name].shape == real[name].shape
        assert blank[name].dtype == real[name].dtype
    assert (blank["labels"] == -100).all()
    assert (blank["input_ids"] == 9).all()
    assert blank["positions"].tolist() == [[0, 1, 2, 3]] * 3
    assert blank["cu_seqlens"].tolist() == [0, 4, 8, 12]
    assert blank["max_seqlen"] == 4
    node.reset()  # stops the Prefetcher's thread


def test_the_shortest_sequences_of_ones_own_will_do():
    node = TrainingBatcher(Items([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}, {"input_ids": [7, 8, 9]}]), 2)
    first, second = list(node)
    assert first["input_ids"].tolist() == [[1, 2], [4, 5]]
    assert first["labels"].tolist() == [[2, 3], [5, 6]]
    assert first["positions"].tolist() == [[0, 1], [0, 1]]
    assert second["input_ids"].tolist() == [[7, 8], [0, 0]]
    assert second["labels"].tolist() == [[8, 9], [-100, -100]]
    with pytest.raises(TypeError, match="its source, Items, has no blank"):
        node.blank()


def test_tensors_and_masks_of_ones_own():
    class Own(Items):
        extra_token = False

    row = {"input_ids": torch.tensor([1, 2, 3]), "positions": torch.tensor([5, 6, 0]), "loss_mask": [1, 0, 1]}
    (batch,) = TrainingBatcher(Own([row, row, row]), 4)
    assert batch["input_ids"].tolist() == [[1, 2, 3]] * 3 + [[0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 3, -100]] * 3 + [[-100] * 3]
    assert batch["positions"].tolist() == [[5, 6, 0]] * 3 + [[0, 1, 2]]


def test_another_ignore_index():
    batch = next(TrainingBatcher(packed([[1, 2, 3]], 4), 1, ignore_index=-1))
    assert batch["labels"].tolist() == [[2, 3, -1, -1]]


def test_sequences_of_different_lengths_are_refused():
    node = TrainingBatcher(Items([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]), 2)
    with pytest.raises(DataError, match=r"input_ids of different lengths, \[2, 3\]"):
        next(node)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, None])
def test_batch_size_is_checked(batch_size):
    with pytest.raises(ValueError, match="batch_size must be a positive number of sequences"):
        TrainingBatcher(Items([]), batch_size)


def test_bad_sources_and_states():
    with pytest.raises(TypeError, match="source must be a node, got list"):
        TrainingBatcher([], 2)
    with pytest.raises(StateError, match=r"the state lacks 'source': it has \['at'\]"):
        TrainingBatcher(Items([]), 2).reset({"at": 3})


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (Block({"input_ids": Ragged.from_rows([[1, 2]])}), r"got Block\(1 samples, columns \['input_ids'\]\)"),
        ({"text": "a"}, r"got \{'text': 'a'\}"),
        ([{"input_ids": [1, 2]}], r"got \[\{'input_ids': \[1, 2\]\}\]"),
        (torch.zeros(3), r"got tensor\(\[0., 0., 0.\]\)"),
    ],
    ids=["tokenizer", "sample", "list", "tensor"],
)
def test_a_packer_that_is_not_there_is_asked_for(item, told):
    advice = r": put a SequencePacker right below it, TrainingBatcher\(SequencePacker\(...\), batch_size\)"
    with pytest.raises(
        TypeError, match=f"TrainingBatcher needs packed sequences, dicts with input_ids, {told}{advice}"
    ):
        next(TrainingBatcher(Items([item]), 2))


def test_what_it_tells_about_itself():
    node = TrainingBatcher(IterableWrapper([]), 8)
    assert node.describe() == {
        "batch_size": 8,
        "drop_last": False,
        "cu_seqlens": False,
        "mask_document_starts": False,
        "ignore_index": -100,
    }
    assert node.estimate(Estimate(80, 100, 5000, 20490)) == Estimate(10, 100, 5000, 20490)
    assert node.estimate(None) is None


def test_it_can_be_copied():
    node = TrainingBatcher(packed(make_documents([30]), 4), 2)
    expected = [rows_of(batch) for batch in copy.deepcopy(node)]
    assert [rows_of(batch) for batch in node] == expected


@pytest.mark.parametrize("options", [{}, {"cu_seqlens": True, "mask_document_starts": True}])
def test_narrow_batches_are_the_same_in_int32(options):
    documents = make_documents([5, 1, 17, 3, 30])
    wide = list(TrainingBatcher(packed(documents, 8), 2, **options))
    batcher = TrainingBatcher(packed(documents, 8), 2, **options)
    assert set(batcher.narrow(np.empty)) == set(NAMES)
    narrow = list(batcher)
    assert len(wide) == len(narrow) > 2
    for one, other in zip(wide, narrow, strict=True):
        assert {other[name].dtype for name in NAMES} == {torch.int32}
        assert list(one) == list(other)
        for name in one:
            assert torch.equal(
                torch.as_tensor(one[name]), torch.as_tensor(other[name]).to(torch.as_tensor(one[name]).dtype)
            )


@pytest.mark.parametrize("options", [{}, {"ignore_index": -(2**40)}])
def test_what_does_not_fit_into_int32_is_not_narrowed(options):
    large = np.arange(5) + (0 if options else 2**33)
    sequences = [{"input_ids": large.astype(np.int32) if options else large, "num_tokens": 3}]
    wide, narrow = (TrainingBatcher(Items(sequences), 1, **options) for _ in range(2))
    narrow.narrow(np.empty)
    one, other = next(iter(wide)), next(iter(narrow))
    assert all(other[name].dtype == torch.int64 and torch.equal(one[name], other[name]) for name in NAMES)


def test_a_subclass_that_may_reckon_with_the_tensors_is_not_narrowed():
    class Hashed(TrainingBatcher):
        def next(self):
            batch = super().next()
            return {**batch, "hash": batch["input_ids"] * 1_000_000_007}

    node = Hashed(packed(make_documents([40]), 8), 2)
    assert not node.narrow(np.empty)
    assert {tensor.dtype for tensor in next(iter(node)).values()} == {torch.int64}


class Doubling(BaseNode):
    """Passes attributes of its source on, as wrappers do, and changes what it yields."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def __getattr__(self, name):
        if name == "source" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.source, name)

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self):
        sequence = next(self.source)
        return {**sequence, "input_ids": sequence["input_ids"] * 2}

    def get_state(self):
        return {"source": self.source.state_dict()}


def test_what_stands_between_packer_and_batcher_is_not_passed_by():
    batches = list(TrainingBatcher(Doubling(packed(make_documents([20, 9]), 4)), 2))
    plain = list(TrainingBatcher(packed(make_documents([20, 9]), 4), 2))
    assert len(batches) == len(plain) == 3
    for doubled, batch in zip(batches, plain, strict=True):
        assert torch.equal(doubled["input_ids"], batch["input_ids"] * 2)
        assert torch.equal(doubled["positions"], batch["positions"])


@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor])
def test_sequences_may_be_lists_arrays_or_tensors(kind):
    rows = [
        {"input_ids": kind([1, 2, 3]), "loss_mask": kind([1, 1, 0])},
        {"input_ids": kind([4, 5, 6]), "loss_mask": kind([1, 0, 1])},
    ]
    (batch,) = TrainingBatcher(Items(rows), 2)
    assert batch["input_ids"].tolist() == [[1, 2], [4, 5]]
    assert batch["labels"].tolist() == [[2, -100], [-100, 6]]
    assert batch["positions"].tolist() == [[0, 1], [0, 1]]


def test_a_loss_mask_that_a_subclass_of_the_packer_adds_counts():
    class Masking(SequencePacker):
        def next(self):
            sequence = super().next()
            return {**sequence, "loss_mask": sequence["input_ids"] % 2 == 0}

    node = Masking(Items([Block({"input_ids": Ragged.from_rows([np.arange(10, dtype=np.int32)])})]), 4)
    (batch,) = TrainingBatcher(node, 2)
    assert batch["labels"].tolist() == [[-100, 2, -100, 4], [6, -100, 8, -100]]

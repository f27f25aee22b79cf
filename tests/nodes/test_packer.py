import copy
import itertools
import json
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import BaseNode, IterableWrapper

from torchzephon.curriculum.work import Work
from torchzephon.data.block import Block
from torchzephon.data.dataset import Dataset
from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError, StateError
from torchzephon.nodes.batcher import TrainingBatcher
from torchzephon.nodes.graph import Estimate
from torchzephon.nodes.mixture import MixtureWorkSource
from torchzephon.nodes.packer import SequencePacker
from torchzephon.nodes.reader import Reader
from torchzephon.packing.registry import ALGORITHMS

BINS = sorted(set(ALGORITHMS) - {"wrap"})


class Documents(BaseNode):
    """Blocks of `block_size` documents; the state is an ordinal."""

    def __init__(self, documents, block_size=4, masks=None):
        super().__init__()
        self.documents, self.block_size, self.masks = documents, block_size, masks
        self.pulls = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.at = 0 if initial_state is None else initial_state["at"]

    def next(self):
        if self.at >= len(self.documents):
            raise StopIteration
        rows = slice(self.at, self.at + self.block_size)
        self.at += self.block_size
        self.pulls += 1
        columns = {"input_ids": Ragged.from_rows([np.asarray(row, np.int32) for row in self.documents[rows]])}
        if self.masks is not None:
            columns["loss_mask"] = [np.asarray(mask, bool) for mask in self.masks[rows]]
        return Block(columns)

    def get_state(self):
        return {"at": self.at}


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


sizes_of = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 1), st.just(90)), max_size=30)


def make_documents(sizes):
    tokens = iter(range(1, sum(sizes) + 1))
    return [[next(tokens) for _ in range(size)] for size in sizes]


def wrapped(documents, length, drop_last=False):
    """The reference: (token, position) pairs of each sequence."""
    stream = [(token, position) for document in documents for position, token in enumerate(document)]
    rows = [stream[at : at + length] for at in range(0, len(stream), length)]
    return [row for row in rows if len(row) == length or not drop_last]


def real(sequence):
    count = sequence["num_tokens"]
    return list(zip(sequence["input_ids"][:count].tolist(), sequence["positions"][:count].tolist(), strict=True))


def read(node, count=None):
    return [real(sequence) for sequence in itertools.islice(node, count)]


def through_json(state):
    assert len(json.dumps(state)) < 300
    return json.loads(json.dumps(state))


@settings(deadline=None, max_examples=60)
@given(sizes_of, st.integers(1, 20), st.integers(1, 7), st.booleans(), st.booleans())
def test_wrap_is_the_token_stream(sizes, seq_len, block_size, drop_last, extra_token):
    documents = make_documents(sizes)
    node = SequencePacker(Documents(documents, block_size), seq_len, drop_last=drop_last, extra_token=extra_token)
    got = list(node)
    length = seq_len + extra_token
    assert [real(sequence) for sequence in got] == wrapped(documents, length, drop_last)
    assert all(len(sequence["input_ids"]) == len(sequence["positions"]) == length for sequence in got)
    assert all(sequence["input_ids"].dtype == sequence["positions"].dtype == np.int32 for sequence in got)
    with pytest.raises(StopIteration):
        next(node)


@settings(deadline=None, max_examples=60)
@given(sizes_of, st.integers(1, 20), st.booleans(), st.data())
def test_wrap_is_lossless_across_saves_and_loads_with_other_block_sizes(sizes, seq_len, drop_last, data):
    documents = make_documents(sizes)
    got, state, ended = [], None, False
    while not ended:
        node = SequencePacker(Documents(documents, data.draw(st.integers(1, 7))), seq_len, drop_last=drop_last)
        node.reset(state)
        steps = data.draw(st.integers(1, 5))
        part = read(node, steps)
        got += part
        ended = len(part) < steps
        state = through_json(node.state_dict())
    assert got == wrapped(documents, seq_len + 1, drop_last)
    for _ in range(2):  # a state taken at the end stays at the end
        node = SequencePacker(Documents(documents, 3), seq_len, drop_last=drop_last)
        node.reset(state)
        assert read(node) == []
        state = through_json(node.state_dict())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.integers(1, 10),
    st.sampled_from(BINS),
    st.sampled_from(["split", "truncate", "drop"]),
    st.integers(1, 30),
    st.data(),
)
def test_windows_are_exact_across_saves_and_loads(sizes, seq_len, algorithm, oversize, window, data):
    documents = make_documents(sizes)

    def open_node(block_size):
        source = Documents(documents, block_size)
        return SequencePacker(source, seq_len, algorithm=algorithm, oversize=oversize, window=window)

    node = open_node(4)
    expected = read(node)
    position = {token: place for document in documents for place, token in enumerate(document)}
    assert all(place == position[token] for sequence in expected for token, place in sequence)
    if oversize == "split":
        assert sorted(token for sequence in expected for token, _ in sequence) == list(range(1, sum(sizes) + 1))

    got, state, ended = [], None, False
    while not ended:
        node = open_node(data.draw(st.integers(1, 7)))
        node.reset(state)
        steps = data.draw(st.integers(1, 9))
        part = read(node, steps)
        got += part
        ended = len(part) < steps
        state = json.loads(json.dumps(node.state_dict()))
    assert got == expected
    node = open_node(3)
    node.reset(state)
    assert read(node) == []


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_resumed_node_reads_no_more_than_what_was_held(algorithm):
    documents = make_documents(np.random.default_rng(0).integers(0, 40, 600).tolist())
    options = {} if algorithm == "wrap" else {"window": 32}
    node = SequencePacker(Documents(documents, 4), 50, algorithm=algorithm, **options)
    while True:
        try:
            next(node)
        except StopIteration:
            break
        state = through_json(node.state_dict())
        held = -(-(node.source.at - state["source"]["at"]) // 4)
        again = SequencePacker(Documents(documents, 4), 50, algorithm=algorithm, **options)
        again.reset(state)
        assert again.source.pulls == 0
        list(itertools.islice(again, 1))
        assert again.source.pulls <= held + 10  # up to ten blocks for a sequence or a window that was not begun
        assert held <= 3 if algorithm == "wrap" else held <= 40


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_state_is_a_snapshot(algorithm):
    documents = make_documents([7] * 40)
    node = SequencePacker(Documents(documents), 10, algorithm=algorithm)
    next(node)
    state = node.state_dict()
    kept = copy.deepcopy(state)
    expected = read(node)
    assert state == kept
    assert node.state_dict() is not node.state_dict()
    node.reset(state)
    assert state == kept
    assert read(node) == expected
    node.reset(state)
    node.reset(state)
    assert read(node) == expected
    node.reset()
    assert read(node)[1:] == expected


def test_nothing_is_read_before_the_first_sequence_is_asked_for():
    source = Documents(make_documents([5] * 10))
    node = SequencePacker(source, 10)
    node.reset()
    assert node.state_dict() == {"source": {"at": 0}, "used": 0, "token": 0}
    assert source.pulls == 0


def test_wrap_state_is_an_anchor_documents_and_tokens():
    node = SequencePacker(Documents(make_documents([5, 0, 4, 30, 2]), block_size=2), 9)
    assert [node.state_dict() for _ in node] == [
        {"source": {"at": 2}, "used": 1, "token": 1},  # the tenth token is the first of the 30
        {"source": {"at": 2}, "used": 1, "token": 11},
        {"source": {"at": 2}, "used": 1, "token": 21},
        {"source": {"at": 4}, "used": 0, "token": 1},
        {"source": {"at": 6}, "used": 0, "token": 0},
    ]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_long_stretch_of_empty_documents_is_not_kept(algorithm):
    options = {} if algorithm == "wrap" else {"window": 8}
    node = SequencePacker(Documents([[1] * 9] * 8 + [[]] * 1000 + [[2] * 9] * 9), 8, algorithm=algorithm, **options)
    *_, last = iter(node)
    assert last["input_ids"].tolist() == [2] * 9
    assert node.state_dict()["source"]["at"] > 1000


def test_a_tail_of_one_token_is_kept():
    sequences = list(SequencePacker(Documents([[1, 2, 3, 4]]), 2, pad_token_id=9))
    assert sequences[1]["input_ids"].tolist() == [4, 9, 9]
    assert sequences[1]["positions"].tolist() == [3, 0, 1]
    assert sequences[1]["num_tokens"] == 1


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_loss_mask_travels_with_its_tokens(algorithm):
    rng = np.random.default_rng(0)
    documents = make_documents(rng.integers(0, 30, 60).tolist())
    masks = [[token % 3 == 0 for token in document] for document in documents]
    node = SequencePacker(Documents(documents, masks=masks), 20, loss_mask_field="loss_mask", algorithm=algorithm)
    total = 0
    for sequence in node:
        count = sequence["num_tokens"]
        assert sequence["loss_mask"].dtype == np.bool_
        assert sequence["loss_mask"][:count].tolist() == [token % 3 == 0 for token in sequence["input_ids"][:count]]
        assert not sequence["loss_mask"][count:].any()
        total += count
    assert total == sum(map(len, documents))
    assert not node.blank()["loss_mask"].any()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: [Block({"input_ids": Ragged.from_rows([np.asarray(row, np.int32) for row in rows])})],
        lambda rows: [Block({"input_ids": rows})],
        lambda rows: [Block({"input_ids": [np.asarray(row, np.int64) for row in rows]})],
        lambda rows: [Block({"input_ids": [torch.tensor(row, dtype=torch.int32) for row in rows]})],
        lambda rows: [{"input_ids": row, "id": 5} for row in rows],
        lambda rows: [[{"input_ids": np.asarray(row, np.uint16)} for row in rows]],
        lambda rows: [rows[:0], [{"input_ids": row} for row in rows[:3]], [{"input_ids": row} for row in rows[3:]]],
        lambda rows: [Block({"input_ids": Ragged.from_rows([[9] * 5, *rows, [9]], np.int64)[1 : len(rows) + 1]})],
    ],
)
def test_sources_of_all_kinds(wrap):
    documents = make_documents([3, 0, 8, 1, 20, 2])
    assert read(SequencePacker(Items(wrap(documents)), 6)) == wrapped(documents, 7)


def test_documents_of_one_length_as_a_matrix():
    rows = np.arange(24).reshape(4, 6)
    assert read(SequencePacker(Items([Block({"input_ids": rows})]), 4)) == wrapped(rows.tolist(), 5)


def test_a_huge_document_is_a_view():
    document = np.arange(2_000_000, dtype=np.int32)
    node = SequencePacker(Items([Block({"input_ids": Ragged.from_rows([document])})]), 2048)
    first = next(node)
    tracemalloc.start()
    for sequence in itertools.islice(node, 800):
        assert sequence["num_tokens"] == 2049
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert first["input_ids"].base is not None


def located(columns):
    class Files:
        def locate(self, shard, row):
            return f"web/shard-{shard}.jsonl row {row}"

    count = len(next(iter(columns.values())))
    zeros = np.zeros(count, np.int32)
    work = Work(zeros, zeros.astype(np.int64), zeros + 3, np.arange(count, dtype=np.int64) + 10)
    return Block(columns, work, [Files()])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", "b"]}, r"web/shard-3.jsonl row 10: no field 'input_ids'.*\['text'\]"),
        ({"input_ids": [[1], None]}, "row 11: field 'input_ids' is null"),
        ({"input_ids": [[1], "text"]}, "row 11: field 'input_ids' is 'text', expected a list of integers"),
        ({"input_ids": [[1], [1.5]]}, r"row 11: field 'input_ids' is \[1.5\], expected a list of integers"),
        ({"input_ids": [[1], [[1, 2]]]}, r"row 11: field 'input_ids' is \[\[1, 2\]\]"),
        ({"input_ids": [[1], [[1], 2]]}, r"row 11: field 'input_ids' is \[\[1\], 2\]"),
        ({"input_ids": [[1], ["1"]]}, r"row 11: field 'input_ids' is \['1'\]"),
        ({"input_ids": [[1], 7]}, "row 11: field 'input_ids' is 7"),
        ({"input_ids": [[1], np.zeros((2, 2), np.int32)]}, r"row 11: field 'input_ids' is an array \[2, 2\] of int32"),
        ({"input_ids": [[1, 2], [3, -4]]}, r"row 11: field 'input_ids' has token id -4 at position 1: ids must lie"),
        ({"input_ids": [[1, 2], [], [3, 2**31]]}, "row 12: field 'input_ids' has token id 2147483648 at position 1"),
        ({"input_ids": [[1], [2**64]]}, r"row 11: field 'input_ids' is \[18446744073709551616\]"),
        ({"input_ids": [[1], [2**63]]}, "row 11: field 'input_ids' has token id"),
        ({"input_ids": Ragged.from_rows([[1.0], [2.0]], np.float32)}, "field 'input_ids' has float32 values"),
        ({"input_ids": np.arange(2)}, "field 'input_ids' is one int64 a sample, expected a list of integers"),
    ],
)
def test_bad_documents_are_named_again_and_again(columns, message):
    node = SequencePacker(Items([{"input_ids": [5, 6]}, located(columns), {"input_ids": [7, 8, 9]}]), 1)
    assert read(node, 1) == [[(5, 0), (6, 1)]]
    state = node.state_dict()
    for _ in range(2):  # asking again does not pass over the document
        with pytest.raises(DataError, match=message):
            next(node)
        assert node.state_dict()["source"] == state["source"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, r"'input_ids': there are \['text'\]; have a TextTokenizer make it, or .*Packer\(field=...\)"),
        ({"input_ids": [[1]]}, r"'mask': there are \['input_ids'\]; name .*\(loss_mask_field=...\).*\(keep=...\)"),
    ],
)
def test_a_field_that_no_sample_has(columns, message):
    with pytest.raises(DataError, match=f"row 0 of a block: no field {message}"):
        next(SequencePacker(Items([Block(columns)]), 4, loss_mask_field="mask"))


def test_a_missing_field_that_the_dataset_was_to_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"ids": [1, 2]}')
    source = MixtureWorkSource([Dataset("web", tmp_path, columns={"input_ids": "tokens"})])
    match = r"row 0: field 'input_ids' is missing \(Dataset\(columns=...\) reads 'tokens' of the file as 'input_ids'"
    with pytest.raises(DataError, match=match):
        next(SequencePacker(Reader(source), 4))


def test_batches_cannot_be_packed():
    with pytest.raises(TypeError, match=r"put it above, TrainingBatcher\(SequencePacker\(...\), batch_size\)"):
        SequencePacker(TrainingBatcher(Items([]), 2), 4)


def test_a_missing_field_in_one_of_many_samples():
    with pytest.raises(DataError, match="row 1 of a block: field 'input_ids' is missing"):
        next(SequencePacker(Items([[{"input_ids": [1]}, {"text": "a"}]]), 4))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 0], [1]], "row 11: field 'mask' has 1 values for 2 tokens"),
        ([[1, 0], [1, 2]], "row 11: field 'mask' has 2 at position 1: a loss mask has bools, or 0 and 1"),
        ([[1, 0], None], "row 11: field 'mask' is null"),
        ([[1, 0], [0.5, 0.5]], "row 11: field 'mask' is"),
    ],
)
def test_bad_loss_masks(mask, message):
    node = SequencePacker(Items([located({"input_ids": [[1, 2], [3, 4]], "mask": mask})]), 1, loss_mask_field="mask")
    with pytest.raises(DataError, match=message):
        next(node)


@pytest.mark.parametrize("algorithm", BINS)
def test_an_oversize_document_can_be_an_error(algorithm):
    node = SequencePacker(Items([located({"input_ids": [[1], [1] * 7]})]), 4, algorithm=algorithm, oversize="error")
    for _ in range(2):
        with pytest.raises(DataError, match="row 11: 7 tokens, but a sequence holds 5: pass oversize='split'"):
            next(node)


@pytest.mark.parametrize(
    ("oversize", "expected", "cut"),
    [("split", [[1, 2, 3], [4, 5, 6], [7, 8]], 0), ("truncate", [[1, 2, 3], [8]], 1), ("drop", [[8]], 1)],
)
def test_oversize_documents(oversize, expected, cut):
    node = SequencePacker(Documents([[1, 2, 3, 4, 5, 6, 7], [8]]), 2, algorithm="best_fit", oversize=oversize)
    assert [[token for token, _ in sequence] for sequence in read(node)] == expected
    assert node.cut == cut
    assert node.state_dict().get("cut", 0) == cut


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_len": 0}, "seq_len must be a positive number of tokens, got 0"),
        ({"seq_len": 2.5}, "seq_len"),
        ({"seq_len": True}, "seq_len"),
        ({"window": 0}, "window must be a positive number of documents, got 0"),
        ({"pad_token_id": -1}, "pad_token_id must be a token id, got -1"),
        ({"pad_token_id": None}, "pad_token_id must be a token id, got None"),
        ({"algorithm": "worst_fit"}, r"one of \['best_fit', 'first_fit', 'wrap'\], got 'worst_fit'"),
        ({"algorithm": "best_fit", "oversize": "keep"}, "oversize must be .* got 'keep'"),
        ({"algorithm": "best_fit", "drop_last": True}, "drop_last=True is for algorithm='wrap'"),
        ({"oversize": "drop"}, "window and oversize are for"),
        ({"window": 5}, "window and oversize are for"),
    ],
)
def test_arguments_are_checked_where_they_enter(arguments, message):
    with pytest.raises(ValueError, match=message):
        SequencePacker(Documents([]), **{"seq_len": 4, **arguments})


def test_the_source_must_be_a_node():
    with pytest.raises(TypeError, match="SequencePacker: source must be a torchdata node, got list"):
        SequencePacker([], 4)


def test_foreign_states_are_refused():
    documents = make_documents([5] * 30)
    states = {}
    for algorithm in ALGORITHMS:
        node = SequencePacker(Documents(documents), 8, algorithm=algorithm)
        next(node)
        states[algorithm] = node.state_dict()
    with pytest.raises(StateError, match="no 'token', which algorithm='wrap' needs"):
        SequencePacker(Documents(documents), 8).reset(states["best_fit"])
    with pytest.raises(StateError, match="no 'sequence', which algorithm='best_fit' needs"):
        SequencePacker(Documents(documents), 8, algorithm="best_fit").reset(states["wrap"])
    with pytest.raises(StateError, match=r"the state lacks \['source', 'used'\]"):
        SequencePacker(Documents(documents), 8).reset({"token": 3})


@pytest.mark.parametrize("damage", [{"token": -1}, {"token": "1"}, {"token": 1.5}, {"sequence": 3}])
def test_damaged_states_are_refused(damage):
    node = SequencePacker(Documents(make_documents([5] * 30)), 8)
    next(node)
    with pytest.raises(StateError, match="the state is damaged, or was saved with another algorithm than 'wrap'"):
        node.reset({**node.state_dict(), **damage})


def test_a_state_of_other_data_is_refused():
    node = SequencePacker(Documents(make_documents([3, 9, 9])), 6)
    list(itertools.islice(node, 2))
    state = node.state_dict()
    assert state == {"source": {"at": 0}, "used": 2, "token": 2}
    for sizes, message in [
        ([3], "ended 1 samples before"),
        ([3, 9, 1], "document that now has 1"),
        ([3, 9], "no docu"),
    ]:
        node = SequencePacker(Documents(make_documents(sizes)), 6)
        node.reset(state)
        with pytest.raises(StateError, match=message):
            next(node)


def test_what_it_tells_about_itself():
    node = SequencePacker(IterableWrapper([]), 2048, algorithm="best_fit", field="ids")
    assert json.loads(json.dumps(node.describe())) == {
        "seq_len": 2048,
        "field": "ids",
        "loss_mask_field": None,
        "algorithm": "best_fit",
        "extra_token": True,
        "drop_last": False,
        "window": 1024,
        "oversize": "split",
        "pad_token_id": 0,
    }
    assert node.summary() == "best_fit packing to 2048 tokens"
    estimate = node.estimate(Estimate(items=10, samples=100, bytes=5000, tokens=20490))
    assert estimate == Estimate(items=10, samples=100, bytes=5000, tokens=20490)
    assert node.estimate(Estimate(items=10, samples=100, bytes=40980, tokens=0)).items == 5
    assert node.estimate(None) is None


def test_blank():
    blank = SequencePacker(Documents([]), 4, pad_token_id=7).blank()
    assert blank["input_ids"].tolist() == [7] * 5
    assert blank["positions"].tolist() == [0, 1, 2, 3, 4]
    assert blank["num_tokens"] == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_copies_are_independent(duplicate, algorithm):
    documents = make_documents([5, 0, 9, 2] * 20)
    node = SequencePacker(Documents(documents), 6, algorithm=algorithm)
    expected = read(duplicate(node))
    first = read(node, 2)
    assert first + read(duplicate(node)) == expected
    assert first + read(node) == expected


@settings(deadline=None, max_examples=150)
@given(
    sizes_of,
    st.integers(1, 7),
    st.integers(1, 6),
    st.sampled_from(sorted(ALGORITHMS)),
    st.booleans(),
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_several_at_once_are_those_one_by_one(sizes, length, block_size, algorithm, with_mask, counts):
    """A count of 0 takes one sequence by itself, and a state in between changes nothing."""
    documents = make_documents(sizes)
    masks = [[token % 3 > 0 for token in document] for document in documents] if with_mask else None

    def open_packer(state=None):
        options = {"loss_mask_field": "loss_mask"} if with_mask else {}
        source = Documents(documents, block_size, masks)
        packer = SequencePacker(source, length, algorithm=algorithm, extra_token=False, **options)
        packer.reset(state)
        return packer

    def told(sequence):
        return {name: np.asarray(value).tolist() for name, value in sequence.items()}

    expected = [told(sequence) for sequence in open_packer()]
    packer, got = open_packer(), []
    for count in itertools.cycle(counts):
        try:
            if count == 0:
                got.append(told(packer.next()))
                continue
            stack = packer.next_stacked(count)
        except StopIteration:
            break
        rows = len(stack["input_ids"])
        assert 1 <= rows <= count
        numbers = stack.get("num_tokens", [length] * rows)
        names = [name for name in stack if name != "num_tokens"]
        got += [
            {**{name: stack[name][row].tolist() for name in names}, "num_tokens": int(numbers[row])}
            for row in range(rows)
        ]
        if count == 5:
            packer = open_packer(json.loads(json.dumps(packer.state_dict())))
    assert got == expected
    with pytest.raises(StopIteration):
        packer.next_stacked(1)


class Shouting(SequencePacker):
    def next(self):
        sequence = super().next()
        return {**sequence, "input_ids": sequence["input_ids"] + 1000, "from": [["a"], ["b", "c"]]}


class Louder(SequencePacker):
    def __next__(self):
        sequence = super().__next__()
        return {**sequence, "input_ids": sequence["input_ids"] + 1000}


class Joining(SequencePacker):
    def _sequence(self, pieces):
        sequence = super()._sequence(pieces)
        return {**sequence, "input_ids": sequence["input_ids"] + 1000}


def patched(*args):
    packer = SequencePacker(*args)
    packer.next = lambda: {**SequencePacker.next(packer), "input_ids": np.arange(1001, 1006, dtype=np.int32)}
    return packer


@pytest.mark.parametrize("make", [Shouting, Louder, Joining, patched])
def test_what_changes_sequences_changes_them_in_stacks_too(make):
    packer = make(Documents(make_documents([40])), 4)
    packer.reset()
    assert packer.next_stacked(3)["input_ids"].tolist() == [[1001, 1002, 1003, 1004, 1005]]

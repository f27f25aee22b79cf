import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import BaseNode

from torchzephon.data.block import Block
from torchzephon.data.ragged import Ragged
from torchzephon.nodes.packer import SequencePacker


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


lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 1), st.just(90)), max_size=30)


def make_documents(sizes):
    tokens = iter(range(1, sum(sizes) + 1))
    return [[next(tokens) for _ in range(size)] for size in sizes]


def wrapped(documents, length, drop_last):
    """The reference: (tokens, positions) of each sequence."""
    stream = [(token, position) for document in documents for position, token in enumerate(document)]
    rows = [stream[at : at + length] for at in range(0, len(stream), length)]
    return [row for row in rows if len(row) == length or not drop_last]


def real(sequence):
    count = sequence["num_tokens"]
    return list(zip(sequence["input_ids"][:count].tolist(), sequence["positions"][:count].tolist(), strict=True))


@settings(deadline=None, max_examples=150)
@given(lengths, st.integers(1, 20), st.integers(1, 7), st.booleans(), st.booleans())
def test_wrap_is_the_token_stream(sizes, seq_len, block_size, drop_last, extra_token):
    documents = make_documents(sizes)
    node = SequencePacker(
        Documents(documents, block_size), seq_len, drop_last=drop_last, extra_token=extra_token, pad_token_id=-0
    )
    got = list(node)
    assert [real(sequence) for sequence in got] == wrapped(documents, seq_len + extra_token, drop_last)
    assert all(len(sequence["input_ids"]) == len(sequence["positions"]) == seq_len + extra_token for sequence in got)
    with pytest.raises(StopIteration):
        next(node)


@settings(deadline=None, max_examples=150)
@given(lengths, st.integers(1, 20), st.booleans(), st.data())
def test_wrap_is_lossless_across_saves_and_loads_with_other_block_sizes(sizes, seq_len, drop_last, data):
    documents = make_documents(sizes)
    expected = wrapped(documents, seq_len + 1, drop_last)
    got, state = [], None
    while True:
        source = Documents(documents, data.draw(st.integers(1, 7)))
        node = SequencePacker(source, seq_len, drop_last=drop_last)
        node.reset(None if state is None else json.loads(json.dumps(state)))
        for _ in range(data.draw(st.integers(1, 5))):
            try:
                got.append(real(next(node)))
            except StopIteration:
                break
        else:
            state = node.state_dict()
            continue
        state = node.state_dict()
        break
    assert got == expected
    node = SequencePacker(Documents(documents, 3), seq_len, drop_last=drop_last)
    node.reset(json.loads(json.dumps(state)))
    with pytest.raises(StopIteration):
        next(node)

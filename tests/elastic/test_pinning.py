"""Page-locked memory; without a GPU, what would be put there."""

import itertools

import pytest
import torch
from support.graphs import documents, plain, token_graph

import torchzephon as tz

DOCS = documents(40, seed=3)


@pytest.fixture
def pins(monkeypatch):
    """The tensors that were pinned, as a machine with CUDA would."""
    made = []

    def pin_memory(tensor, device=None):
        made.append(tensor.clone())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return made


def loader(num_workers=0, micro_batch_size=None, **options):
    node = tz.Lanes(token_graph(DOCS, chunk_size=4, batch_size=2), 4)
    if micro_batch_size is not None:
        node = tz.Rounds(node, micro_batch_size)
    return tz.ElasticDataLoader(node, num_workers, **options)


def tensors_of(item):
    return [tensor for batch in (item if isinstance(item, list) else [item]) for tensor in batch.values()]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("micro_batch_size", [None, 1, 4])
def test_every_tensor_is_pinned_last_of_all(pins, num_workers, micro_batch_size):
    with (
        loader(num_workers, micro_batch_size, pin_memory=True) as pinning,
        loader(num_workers, micro_batch_size) as expected,
    ):
        for item, other in itertools.islice(zip(pinning, expected, strict=False), 3):
            assert plain(item) == plain(other)
            for tensor in tensors_of(item):
                assert any(tensor is pin for pin in pins)
    assert pins


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_cuda_it_says_so(monkeypatch, caplog, num_workers):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with loader(num_workers, pin_memory=True) as node:
        assert "pin_memory=True has no effect: there is no CUDA device" in caplog.text
        assert not next(iter(node))["input_ids"].is_pinned()


@pytest.mark.parametrize("micro_batch_size", [None, 1])
def test_what_was_interrupted_while_it_was_pinned_comes_again(pins, monkeypatch, micro_batch_size):
    with loader(0, micro_batch_size) as expected:
        items = [plain(item) for item in itertools.islice(expected, 3)]
    with loader(0, micro_batch_size, pin_memory=True) as pinning:
        iterator = iter(pinning)
        got = [plain(next(iterator))]
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "pin_memory", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        got += [plain(next(iterator)) for _ in range(2)]
    assert got == items


def raise_interrupt(*_):
    raise KeyboardInterrupt

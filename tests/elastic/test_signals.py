"""States that a signal handler asks for at any moment."""

import itertools
import json
import os
import random
import signal
import threading
import time

import pytest
from support.graphs import documents, plain, token_graph

import torchzephon as tz

DOCS = documents(60, seed=1)
LANES = 4


def open_loader(num_workers=0, num_threads=None):
    lanes = tz.Lanes(token_graph(DOCS, chunk_size=4), LANES, dp=(0, 1), num_threads=num_threads)
    return tz.ElasticDataLoader(tz.Rounds(lanes), num_workers)


class Signals:
    """Sends ``count`` SIGUSR1 at random moments; each handler keeps the loader's state, and its JSON at that moment."""

    def __init__(self, loader, count):
        self.loader = loader
        self.count = count
        self.states = []
        self.given = 0

    def handle(self, number, frame):
        state = self.loader.state_dict()
        self.states.append((self.given, state, json.dumps(state)))

    def send(self):
        rng = random.Random(1)
        for number in range(self.count):
            if rng.random() < 0.9:
                time.sleep(rng.random() * 0.002)
            os.kill(os.getpid(), signal.SIGUSR1)
            while len(self.states) <= number:  # two that are pending are one
                time.sleep(0.0001)

    def __enter__(self):
        self.before = signal.signal(signal.SIGUSR1, self.handle)
        self.sender = threading.Thread(target=self.send, daemon=True)
        self.sender.start()
        return self

    def __exit__(self, *error):
        self.sender.join(60)
        signal.signal(signal.SIGUSR1, self.before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal here")
@pytest.mark.parametrize(("num_workers", "num_threads"), [(0, 0), (0, 2), (2, None)])
def test_a_thousand_signals_ask_for_a_state(num_workers, num_threads):
    loader = open_loader(num_workers, num_threads)
    with Signals(loader, 1000) as signals:
        for _ in loader:
            signals.given += 1
            if len(signals.states) == signals.count:
                break
    loader.close()
    assert len(signals.states) == signals.count
    reference = iter(open_loader(num_threads=0))
    expected = [plain(share) for share in itertools.islice(reference, signals.given + 3)]
    for number, (given, state, text) in enumerate(signals.states):
        assert json.dumps(state) == text, "the state changed after it was given"
        rounds = {json.loads(lane)["given"] for lane in state["lanes"].values()}
        assert rounds in ({given}, {given + 1}), "the state is not that of a whole round"
        if number % 50 == 0:
            resumed = open_loader(num_threads=number % 100 // 50)
            resumed.load_state_dict(json.loads(text))
            position = rounds.pop()
            got = [plain(share) for share in itertools.islice(resumed, 3)]
            assert got == expected[position : position + 3]


class InterruptedOnce:
    """What Ctrl-C does when it comes in the middle of a node's work."""

    def __init__(self):
        self.calls = 0

    def __call__(self, sample):
        self.calls += 1
        if self.calls == 30:
            raise KeyboardInterrupt
        return sample

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("as_rounds", [True, False])
def test_after_ctrl_c_iteration_goes_on_from_what_was_delivered(as_rounds):
    def open_node(function):
        graph = token_graph(DOCS, chunk_size=4, wrap=lambda node: tz.SampleMapper(node, function))
        lanes = tz.Lanes(graph, LANES, dp=(0, 1), num_threads=0)
        return tz.Rounds(lanes) if as_rounds else lanes

    node, reference = open_node(InterruptedOnce()), open_node(_same)
    got, interrupted = [], 0
    while len(got) < 40:
        try:
            got.append(plain(next(node)))
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == 1
    assert got == [plain(next(reference)) for _ in range(40)]


def _same(sample):
    return sample

"""The benchmarks run: on a corpus of a megabyte, without looking at times."""

import asyncio
import email
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure, ours, straight_line
from benchmarks.corpus import Corpus, make

ROOTS = [Path(asyncio.__file__).parent, Path(email.__file__).parent, Path(json.__file__).parent]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("benchmarks") / "corpus"
    return make(path, megabytes=1, num_shards=2, roots=ROOTS, vocab=1000)


def test_corpus_is_unique_and_the_same_in_every_layout(corpus: Corpus) -> None:
    import pyarrow.parquet as pq

    lines = [json.loads(line) for shard in corpus.shards("jsonl") for line in shard.read_text().splitlines()]
    texts = [line["text"] for line in lines]
    assert len(texts) == len(set(texts)) == corpus.facts["documents"]
    assert sum(len(text.encode()) for text in texts) == corpus.facts["bytes"]
    assert [row for shard in corpus.shards("parquet") for row in pq.read_table(shard).to_pylist()] == lines
    tokens = [pq.read_table(shard)["input_ids"] for shard in corpus.shards("tokens")]
    assert sum(len(ids) for part in tokens for ids in part.to_pylist()) == corpus.facts["tokens"]


@pytest.mark.parametrize("options", [{}, {"encoder": "tokenizers"}, {"layout": "tokens"}])
def test_straight_line_gives_every_token_in_order(corpus: Corpus, options: dict[str, str]) -> None:
    parts = list(straight_line.read_tokens(corpus.shards("tokens")))
    tokens = np.concatenate(parts)
    size = measure.BATCH_SIZE * (measure.SEQ_LEN + 1)
    rows = tokens[: len(tokens) // size * size].reshape(-1, measure.BATCH_SIZE, measure.SEQ_LEN + 1)
    batches = list(straight_line.open_stream(corpus, **options).batches)
    assert len(batches) == len(rows) > 3
    for batch, row in zip(batches, rows, strict=True):
        assert (batch["input_ids"].numpy() == row[:, :-1]).all()
        assert (batch["labels"].numpy() == row[:, 1:]).all()


def test_ours_and_the_limit_in_fresh_processes(corpus: Corpus) -> None:
    pair = [straight_line.RAW, ours.RAW]
    if straight_line.RAW.missing():
        pair = [straight_line.RAW_TOKENIZERS, ours.RAW_TOKENIZERS]
    results = measure.interleave(pair, "throughput", corpus, repeats=1)
    assert set(results) == {contender.name for contender in pair}
    for runs in results.values():
        assert runs[0]["tokens"] > 0
        assert runs[0]["rss_bytes"] > 50e6


def test_a_checkpoint_resumes_in_a_fresh_process(corpus: Corpus, tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = measure.run(ours.TOKENS, "checkpoint", corpus, batches=3, path=str(state))
    assert 0 < made["state_bytes"] < 4096 + 300 * 8
    assert "total_seconds" in measure.run(ours.TOKENS, "first_batch", corpus, state=state)


def test_a_failing_contender_is_left_out_with_a_line(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    broken = measure.Contender("broken", "benchmarks.straight_line", {"encoder": "none such"})
    assert measure.interleave([broken], "throughput", corpus, repeats=2) == {}
    assert "KeyError: 'none such'" in capsys.readouterr().err


def test_tables_and_medians() -> None:
    assert measure.median([{"a": 3.0}, {"a": 1.0}, {"a": 2.0}], "a") == 2.0
    assert measure.median([{}], "a") is None
    assert measure.percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert measure.shown(None) == "-"
    assert measure.table(["a", "b"], [[1, None]]) == "| a | b |\n| --- | ---: |\n| 1 |  |"

"""Zephon 0.2.0, the loader whose ideas torchzephon re-implements: tokenize, wrap-pack to 2049 tokens, batch.

The shards are indexed beforehand with its own ``build_index``; the validation of operators, which reads the first
samples twice, is off, as for a production run. ``runner``, ``mtp_mode`` and ``max_workers`` are its documented knobs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from benchmarks.corpus import Corpus
from benchmarks.measure import BATCH_SIZE, SEQ_LEN, Contender, Stream


def prepare(corpus: Corpus) -> None:
    """Links the shards to folders of their own and writes Zephon's indexes beside them."""
    from zephon.build_index import build_index

    for layout, format_name in (("jsonl", "jsonl"), ("tokens", "parquet")):
        folder = corpus.root / "zephon" / layout
        folder.mkdir(parents=True, exist_ok=True)
        for shard in corpus.shards(layout):
            link = folder / shard.name
            if not link.exists():
                link.symlink_to(shard.resolve())
        build_index(format_name, folder, progress=False)


def open_stream(
    corpus: Corpus,
    state: Any = None,
    *,
    layout: str = "jsonl",
    lanes: int = 8,
    runner: str | None = None,
    max_workers: int | None = None,
    mtp_mode: bool = False,
    chunk_size: int = 256,
) -> Stream:
    """``chunk_size``: small enough that each of the lanes gets a share of a small corpus."""
    from zephon import Dataset, MixtureSpec, Pipeline, StaticMixtureWorkSource

    logging.getLogger("zephon").setLevel(logging.ERROR)
    dataset = Dataset.from_path("corpus", str(corpus.root / "zephon" / layout))
    work = StaticMixtureWorkSource([dataset], MixtureSpec({"corpus": 1.0}), chunk_size=chunk_size, seed=0)
    pipeline = Pipeline(work)
    if layout == "jsonl":
        pipeline = pipeline.tokenize(
            tokenizer_id=str(corpus.tokenizer), field="text", special_tokens="eos", add_attention_mask=False
        )
    pipeline = (
        pipeline.pack_flat(max_length=SEQ_LEN + 1, algorithm="wrap", tokens_field="input_ids")
        .batch(microbatch_size=BATCH_SIZE)
        .options(auto_validation="off", mtp_mode=mtp_mode, canonical_replicas=lanes)
    )
    if runner is not None:
        pipeline = pipeline.options(runner=runner)
    if max_workers is not None:
        pipeline = pipeline.options(max_workers=max_workers)
    if state is not None:
        pipeline.restore(state)

    def batches() -> Iterator[Any]:
        for batch in pipeline:
            yield batch.to_training(return_labels=True)

    return Stream(batches(), pipeline.checkpoint)


def _contender(name: str, **options: Any) -> Contender:
    return Contender(f"zephon 0.2.0, {name}", "benchmarks.rivals.zephon", options, ("zephon",))


RUNNERS: dict[str, dict[str, Any]] = {
    "inline": {"runner": "inline"},
    "threads": {"runner": "threads"},
    "threads, 2 workers": {"runner": "threads", "max_workers": 2},
    "process": {"runner": "process"},
    "process, 2 workers": {"runner": "process", "max_workers": 2},
    "mtp_mode": {"mtp_mode": True},
    "mtp_mode, 2 workers": {"mtp_mode": True, "max_workers": 2},
}
RAW = [_contender(name, **options) for name, options in RUNNERS.items()]
TOKENS = [_contender(name, layout="tokens", **options) for name, options in RUNNERS.items()]

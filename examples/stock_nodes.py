"""torchdata's own nodes and functions of one's own between the nodes of torchzephon."""

from typing import Any

from torchdata.nodes import Batcher, Mapper, Prefetcher, Unbatcher

import torchzephon as tz

from show.corpus import small_data

Sample = dict[str, Any]


def shout(sample: Sample) -> Sample:
    """Changes a sample."""
    return {**sample, "text": sample["text"].upper()}


def paragraphs(sample: Sample) -> list[Sample]:
    """Makes several of a sample, or none when all are short."""
    return [{"text": part} for part in sample["text"].split("\n\n") if len(part) > 80]


corpus, tokenizer = small_data()
node = tz.Reader(tz.MixtureWorkSource([tz.Dataset("web", f"{corpus}/web")], seed=1))  # blocks of samples
node = tz.SampleMapper(node, paragraphs)  # blocks
node = Mapper(Unbatcher(node), shout)  # sample dicts
node = Batcher(node, batch_size=32)  # lists of sample dicts
node = tz.TextTokenizer(node, tokenizer, field="text")  # takes any of these
node = Prefetcher(tz.SequencePacker(node, seq_len=64), prefetch_factor=4)
node = tz.TrainingBatcher(node, batch_size=2)
loader = tz.ElasticDataLoader(tz.Lanes(node, num_lanes=4, dp=(0, 1)))

batches = iter(loader)
for _ in range(5):
    batch = next(batches)
print({name: tuple(tensor.shape) for name, tensor in batch.items()})
loader.close()

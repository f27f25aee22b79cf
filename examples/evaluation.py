"""Evaluation: every token of a finite set once, the same pass each time, on any number of ranks."""

import torchzephon as tz

from show.corpus import small_data

corpus, tokenizer = small_data()


def open_loader(rank: int, ranks: int) -> tz.ElasticDataLoader:
    """The evaluation loader of one rank."""
    node = tz.MixtureWorkSource([tz.Dataset("web", f"{corpus}/web")])  # one pass
    node = tz.TextTokenizer(tz.Reader(node), tokenizer, field="text")
    node = tz.SequencePacker(node, seq_len=128)
    node = tz.TrainingBatcher(node, batch_size=4)
    # The tails are padded, not dropped; cycles="same" gives the second pass the order of the first.
    return tz.ElasticDataLoader(tz.Lanes(node, num_lanes=4, dp=(rank, ranks), end="pad", cycles="same"))


def count_labels(loader: tz.ElasticDataLoader) -> int:
    """One pass: the number of real labels, which a loss is divided by. Padding has labels of -100."""
    return sum(int((batch["labels"] >= 0).sum()) for batch in loader)


alone = open_loader(0, 1)
first, second = count_labels(alone), count_labels(alone)
shared = [count_labels(open_loader(rank, 3)) for rank in range(3)]
print(f"{first} labels in the first pass, {second} in the second, {sum(shared)} on 3 ranks: {shared}")
assert first == second == sum(shared)

"""From files to batches in ten lines; then saved on two ranks and resumed on one."""

import json

import torchzephon as tz

from show.corpus import small_data

corpus, tokenizer = small_data()


def open_loader(rank: int, ranks: int) -> tz.ElasticDataLoader:
    """The loader of one rank."""
    web = tz.Dataset("web", f"{corpus}/web")  # JSONL
    code = tz.Dataset("code", f"{corpus}/code")  # Parquet
    node = tz.MixtureWorkSource([web, code], {"web": 0.7, "code": 0.3}, seed=42, exhausted_policy="repeat")
    node = tz.Reader(node)
    node = tz.TextTokenizer(node, tokenizer, field="text")
    node = tz.SequencePacker(node, seq_len=128)
    node = tz.TrainingBatcher(node, batch_size=2)  # dicts of tensors
    lanes = tz.Lanes(node, num_lanes=8, dp=(rank, ranks))  # leave out dp where torch.distributed runs
    return tz.ElasticDataLoader(tz.Rounds(lanes, micro_batch_size=4))


# Two ranks train for three rounds. Each gets its share of a round: here two microbatches of four rows.
loaders = [open_loader(rank, 2) for rank in range(2)]
rounds = [iter(loader) for loader in loaders]
for _ in range(3):
    shares = [next(share) for share in rounds]
print([{name: tuple(tensor.shape) for name, tensor in batch.items()} for batch in shares[0]])

# Their state is small and plain.
state = json.dumps(tz.merge_states([loader.state_dict() for loader in loaders]))
print(f"{len(state)} bytes of state")

# One rank goes on alone. Its next round has the rows that the two would have had.
alone = open_loader(0, 1)
alone.load_state_dict(json.loads(state))
expected = [row for share in rounds for batch in next(share) for row in batch["input_ids"].tolist()]
assert [row for batch in next(iter(alone)) for row in batch["input_ids"].tolist()] == expected
print(f"one rank goes on with the same {len(expected)} rows")

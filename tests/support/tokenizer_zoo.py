"""Small tokenizers of the common families, trained on generated text and saved as Hugging Face directories."""

# ruff: noqa: RUF001, SIM905

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (
    "the of and to in is was for on as with by at from his an were are which this also be had or Which THE iPhone "
    "don't I'll we've don’t naïve façade Größe Straße мир привет Ελλάδα שלום مرحبا नमस्ते สวัสดี 你好 世界 こんにちは 안녕 "
    "def return self import None True x0 x_1 i++ != == -> // /* */ {} [] () <a> </a> \\n 1 23 456 7890 3.14 2024-01-01 "
    "👋 ❤️ é ﬁ"
).split(" ")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def generated_texts(count, seed=0, longest=80):
    """``count`` texts of 1 to ``longest`` words, in several scripts, with code and odd spaces."""
    rng = random.Random(seed)
    spaces = [" "] * 12 + ["\n", "  ", "\t", "\n\n", ""]
    return [
        "".join(word + rng.choice(spaces) for word in rng.choices(WORDS, k=rng.randint(1, longest)))
        for _ in range(count)
    ]


def split_on(pattern):
    """The pre-tokenizer of recent byte-level models."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train(tokenizer, trainer_class, special, **options):
    """Trains in place, on the same text every time."""
    trainer = trainer_class(vocab_size=900, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(generated_texts(400, seed=1), trainer)
    return tokenizer


def byte_level(pre_tokenizer, normalizer=None, special=("<|endoftext|>", "<|begin|>")):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(tokenizer, trainers.BpeTrainer, list(special), initial_alphabet=alphabet)


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3():
    tokenizer = byte_level(split_on(LLAMA3))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 1)]
    )
    return tokenizer


def o200k():
    return byte_level(split_on(O200K))


def qwen():
    return byte_level(split_on(LLAMA3), normalizers.NFC())


def llama2():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = train(tokenizer, trainers.BpeTrainer, ["<unk>", "<|begin|>", "<|endoftext|>", *pieces])
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    state["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    return Tokenizer.from_str(json.dumps(state))


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(tokenizer, trainers.WordPieceTrainer, ["[UNK]", "<|begin|>", "<|endoftext|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|endoftext|>",
        pair="<|begin|> $A <|endoftext|> $B <|endoftext|>",
        special_tokens=[("<|begin|>", 1), ("<|endoftext|>", 2)],
    )
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return train(tokenizer, trainers.UnigramTrainer, ["<unk>", "<|begin|>", "<|endoftext|>"], unk_token="<unk>")


FAMILIES = {make.__name__: make for make in (gpt2, llama3, o200k, qwen, llama2, wordpiece, unigram)}
FAST_FAMILIES = ("gpt2", "llama3", "o200k", "qwen", "llama2")


def save(tokenizer, directory, **config):
    """Writes ``tokenizer.json`` and the configuration that transformers would write."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory

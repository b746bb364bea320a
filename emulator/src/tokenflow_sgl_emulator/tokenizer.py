"""A byte-level tokenizer that needs no download: any text goes in, readable text comes out.

Text is encoded one UTF-8 byte per token, so ``decode(encode(text)) == text`` for any text that
does not spell one of the special tokens. The ids above the bytes are short made-up words: nothing
encodes to them, but a model that emits them produces readable text, one word per token, which
makes streaming visible.
"""

import random
from itertools import product

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD)
BOS_ID, EOS_ID, PAD_ID = range(3)

MIN_VOCAB = len(SPECIAL_TOKENS) + 256
"""Smallest vocabulary: the special tokens and one token per byte."""

_SPACE = "\u0120"  # how byte-level BPE spells the byte 0x20

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def word_ids(vocab: int) -> range:
    """Ids of the made-up words in a vocabulary of ``vocab`` tokens (empty for ``MIN_VOCAB``)."""
    return range(MIN_VOCAB, vocab)


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Build the tokenizer with exactly ``vocab`` ids, so that every id of a model decodes.

    Raises:
        ValueError: ``vocab`` is below ``MIN_VOCAB``.
    """
    if vocab < MIN_VOCAB:
        raise ValueError(f"vocab must be at least {MIN_VOCAB} (3 special + 256 bytes), got {vocab}")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *_words(vocab - MIN_VOCAB)]
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _words(count: int) -> list[str]:
    """``count`` distinct words, always the same ones, each marked with a leading space."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    length = 2
    while len(syllables) ** length < count:
        length += 1
    words = []
    for number in random.Random(0).sample(range(len(syllables) ** length), count):
        word = ""
        for _ in range(length):
            number, syllable = divmod(number, len(syllables))
            word += syllables[syllable]
        words.append(_SPACE + word)
    return words

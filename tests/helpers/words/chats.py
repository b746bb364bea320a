"""Texts as the trained model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Encoder:
    """Called with a user's text, it gives the tokens of a prompt.

    Attributes:
        tokenizer: The model's.
    """

    tokenizer: Any

    def __call__(self, text: str) -> list[int]:
        said = [{"role": "user", "content": text}]
        whole = self.tokenizer.apply_chat_template(said, add_generation_prompt=True)
        ids: list[int] = whole["input_ids"]
        return ids

    def plain(self, text: str) -> list[int]:
        """A text as it is."""
        ids: list[int] = self.tokenizer(text).input_ids
        return ids


def encoder(model: Path) -> Encoder:
    """Of the model in this folder. Imports transformers, which takes seconds."""
    from transformers import AutoTokenizer

    return Encoder(AutoTokenizer.from_pretrained(model))

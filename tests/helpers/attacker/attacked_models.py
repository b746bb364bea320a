"""The tiny models that are attacked, and what they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servers.fixtures import FEW, LAYERS, respelled

from tokenflow_sgl_emulator.compressed.tiny_compressed import make_tiny_compressed
from tokenflow_sgl_emulator.models import make_tiny_model

COMPRESSED = {"deepseek-v4": False, "deepseek-v4-drafts": True}
"""By name: whether it has a layer for drafts."""
MARKED = ("begin\u2581of\u2581sentence", "User", "Assistant")
MARKS = {f"<\uff5c{mark}\uff5c>": 254 + place for place, mark in enumerate(MARKED)}
THINKING = {"<think>": 257, "</think>": 258}
"""Without these SGLang encodes no chat for DeepSeek V4. The tokens are bytes of no UTF-8 text."""
SAME_TOKENS, REPEATED = 48, 8
"""Tokens with which all prompts of a family begin, and how often that is repeated for DeepSeek V4:
a stream resumes there at a page of 256."""


def make_attacked(folder: Path, name: str) -> Path:
    """Make the model `name` in `folder`; the same weights each time."""
    if name not in COMPRESSED:
        return make_tiny_model(folder / name, arch=name, layers=LAYERS.get(name, FEW))
    plain = make_tiny_compressed(folder / "plain" / name, drafts=COMPRESSED[name])
    return respelled(plain, folder, MARKS | THINKING, added=True)


def asked_of(name: str, families: Sequence[list[int]]) -> list[list[int]]:
    """The prompts of families, as long as the model needs them."""
    if name not in COMPRESSED:
        return [*families]
    return [[*each[:SAME_TOKENS] * REPEATED, *each[SAME_TOKENS:]] for each in families]

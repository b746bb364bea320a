"""Names what prompts begin with, so that what several share is counted once.

SGLang's prefix tree knows it, too, but its nodes are its own affair (they may be Rust's). A name is
a chained hash of the tokens so far, as the keys of vLLM's blocks are: equal names, equal tokens.
The stretches grow with the prompt, so that a long one has few: at most a ninth of what two prompts
share is missed, and a stretch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenflow_sgl.lifecycle.shared_prefixes import Path
from tokenflow_sgl.lifecycle.table import StreamTable

STRETCH = 128
"""Tokens of the first stretches."""
GROWTH = 8
"""A stretch is as long as this part of what comes before it, where that is longer."""


def prompt_path(table: StreamTable[Any], page_size: int) -> Callable[[int], Path]:
    """The paths of one scheduler's prompts, for slots of its table.

    page_size: what is shared is shared by whole pages.
    """
    unit = -(-STRETCH // page_size) * page_size

    def path(slot: int) -> Path:
        req = table.request(slot)
        if req is None or req.positional_embed_overrides is not None:
            return (), ()  # such prompts are not cached: equal tokens have other embeddings
        tokens = np.asarray(req.origin_input_ids, dtype=np.int32)
        name, at = hash((req.extra_key, req.cache_salt)), 0
        names: list[int] = []
        lengths: list[int] = []
        while True:
            length = max(at // GROWTH // unit, 1) * unit
            if at + length > len(tokens):
                return names, lengths
            name = hash((name, tokens[at : at + length].tobytes()))
            names.append(name)
            lengths.append(length)
            at += length

    return path

"""Planners that tests switch on by name: heads as long as they say, or of any length."""

from __future__ import annotations

import os
from pathlib import Path

SPLIT = "TOKENFLOW_TEST_SPLIT"
"""Environment variable: the file that says how many tokens of a prompt are computed."""


class SplitAt:
    """Computes up to there, and waits for the rest."""

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        head = int(Path(os.environ[SPLIT]).read_text())
        return min(max(head - prefix, 0) // page * page, gap)


class SplitAnywhere:
    """Any number of pages, decided by what is left: the same on all ranks."""

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        return (prefix * 31 + gap * 7) // page % (gap // page + 1) * page

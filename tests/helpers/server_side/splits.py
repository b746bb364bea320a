"""Planners that tests switch on by name: heads as long as they say, or of any length."""

from __future__ import annotations

import os
from pathlib import Path

SPLIT = "TOKENFLOW_TEST_SPLIT"
"""Environment variable: the file that says how many tokens of a prompt are computed."""


class SplitAt:
    """Computes up to there, and waits for the rest.

    The file says how many tokens of a prompt, or "layers" and how many layers. Or "layers", and how
    many layers in each step, behind a "+".
    """

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        said = self._said()
        head = 0 if said[0] == "layers" else int(said[0])
        return min(max(head - prefix, 0) // page * page, gap)

    def by_layers(self, prefix: int, gap: int, suffix: int, **known: object) -> bool:
        return self._said()[0] == "layers"

    def more_layers(
        self,
        prefix: int,
        gap: int,
        suffix: int,
        *,
        layers: int,
        computed: int,
        landed: int,
        **known: object,
    ) -> int:
        said = self._said()[1]
        more = int(said) if said.startswith("+") else int(said) - computed
        return min(max(more, 0), layers - computed - landed)

    def _said(self) -> list[str]:
        return Path(os.environ[SPLIT]).read_text().split()


class SplitAnywhere:
    """Any number of pages, decided by what is left: the same on all ranks."""

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: object) -> int:
        return (prefix * 31 + gap * 7) // page % (gap // page + 1) * page


class SplitEitherWay(SplitAnywhere):
    """By tokens or by layers, any number of them: the same on all ranks."""

    def by_layers(self, prefix: int, gap: int, suffix: int, **known: object) -> bool:
        return (prefix * 13 + gap * 5 + suffix) % 3 != 0

    def more_layers(
        self,
        prefix: int,
        gap: int,
        suffix: int,
        *,
        layers: int,
        computed: int,
        landed: int,
        **known: object,
    ) -> int:
        left = layers - computed - landed
        return (gap * 7 + suffix * 3 + computed * 11 + landed * 5) % (left + 1)

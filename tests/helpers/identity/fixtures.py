"""The fixtures of the identity table."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import pytest
from servers.fixtures import Start, once_in_a_run

from identity.arena import SHORTEST, Arena


@pytest.fixture(scope="session")
def long_prompts() -> list[list[int]]:
    """Of one page of 256 tokens to four, none a whole number of pages, or of groups of 128.

    All answers end such a group, whose state pauses must keep.
    """
    chosen = random.Random(7)
    lengths = (SHORTEST, 350, 430, 620, 750, 1010)
    return [[chosen.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="session")
def folder_of(
    models: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str], Path]:
    """`folder_of(model)`: made when it is first asked for, but for the most common ones."""

    @lru_cache
    def found(name: str) -> Path:
        if name.startswith("v4"):
            from tokenflow_sgl_emulator.compressed.tiny_compressed import make_tiny_compressed

            folder = tmp_path_factory.mktemp("compressed") / name
            return make_tiny_compressed(folder, drafts=name == "v4-nextn")
        if (models / name).exists():
            return models / name
        drafting: Path = request.getfixturevalue("drafting")
        return drafting / name

    return found


@pytest.fixture(scope="session")
def arena(
    start: Start,
    folder_of: Callable[[str], Path],
    prompts: list[list[int]],
    long_prompts: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Arena:
    """Runs scenarios of the identity table."""
    once = partial(once_in_a_run, tmp_path_factory.getbasetemp())
    logs = tmp_path_factory.mktemp("logs")
    known = {"qwen3": lambda: request.getfixturevalue("reference")}
    return Arena(start, folder_of, prompts, long_prompts, once, logs, known)

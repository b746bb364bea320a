"""Random attacks on live servers: whatever is asked, aborted, told to rest, paused or flushed.

Every answer has the tokens that undisturbed SGLang gives, every request has its answer or its
error, and afterwards nothing is left. In `make test` some seconds of it, with fixed seeds; in
`make test-slow` ten minutes; for an hour:

    TOKENFLOW_ATTACK_MINUTES=60 make test-slow

TOKENFLOW_ATTACK_SEED begins with another seed, for example with that of a round that failed, and
TOKENFLOW_ATTACK_WITHOUT leaves out actions, named in helpers/attacker: "retract-flush,weights".
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest
from attacker.arenas import (
    ARENAS,
    FORCED,
    LARGE_HOST,
    LATE,
    SHORT,
    SLOW,
    TOKENFLOW,
    Arena,
)
from attacker.attacked_models import COMPRESSED, asked_of, make_attacked
from attacker.campaign import ROUND_SECONDS, Campaign
from attacker.truth import Subject, subjects
from servers.client import Served
from servers.fixtures import BROKEN, Start
from servers.meeting import pair
from servers.pair_front import fronted

pytestmark = pytest.mark.engine

MINUTES = float(os.environ.get("TOKENFLOW_ATTACK_MINUTES", "10"))
"""Of the slow attacks, all of them together."""
SHORT_SECONDS = 12.0
SHORT_ROUND_SECONDS = 6.0
MORE_ROUNDS = 20
"""On a busy machine the clients may need so many until they fill the memory, at most."""
MOST_GROWTH = 0.02
"""Of the server's memory, after the first rounds."""
SEED = int(os.environ.get("TOKENFLOW_ATTACK_SEED", "15"))
WITHOUT = frozenset(os.environ.get("TOKENFLOW_ATTACK_WITHOUT", "").split(",")) - {""}


@pytest.fixture(scope="session")
def attacked(models, tmp_path_factory) -> Callable[[str], Path]:
    """`attacked(model)`: its folder."""
    folder = tmp_path_factory.mktemp("more")

    def find(model: str) -> Path:
        return make_attacked(folder, model) if model in COMPRESSED else models / model

    return lru_cache(find)


@pytest.fixture(scope="session")
def known(start, attacked, families) -> Callable[[str], Sequence[Subject]]:
    """`known(model)`: what is asked, and stock SGLang's answers."""

    @lru_cache
    def ask(model: str) -> Sequence[Subject]:
        with start("--max-total-tokens", "16384", model=attacked(model)) as served:
            return subjects(served, asked_of(model, families))

    return ask


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Callable[[str], Path]:
    """`weights(model)`: its weights once more, in another folder."""
    folder = tmp_path_factory.mktemp("again")

    def make(model: str) -> Path:
        return make_attacked(folder, model)

    return lru_cache(make)


@contextmanager
def opened(arena: Arena, start: Start, model: Path) -> Iterator[Served]:
    """The server of an arena, or the pair behind one address."""
    flags, env = arena.all_flags(model), arena.all_env()
    if not arena.pair:
        with start(*flags, env=env, model=model) as served:
            yield served
        return
    first = ("--max-total-tokens", "4000")
    with (
        pair(start, *TOKENFLOW, prefill=first, decode=flags, env=env, model=model) as both,
        fronted(both) as served,
    ):
        yield served


@pytest.fixture(scope="session")
def attack(start, attacked, known, weights):
    """Attack some arenas at once: `attack(names, seconds, round_seconds)`."""

    def one(name: str, seconds: float, round_seconds: float) -> None:
        arena = ARENAS[name]
        asked, again = known(arena.model), weights(arena.model)
        with opened(arena, start, attacked(arena.model)) as served:
            without = WITHOUT | arena.without
            ends = arena.full, arena.door, arena.beyond, arena.late, arena.pair
            campaign = Campaign(served, asked, again, SEED, without, *ends)
            campaign.attack(seconds, round_seconds)
            # Before more rounds: where those are needed, the server is not warm after the first.
            growth = campaign.growth()
            for _ in range(MORE_ROUNDS):
                rose = {each: served.total(f"tokenflow:{each}") for each in arena.expects}
                if all(rose.values()):
                    break
                campaign.attack(round_seconds, round_seconds)
            print(f"{name}, seed {SEED}: {dict(campaign.counts)}, {rose}, grown by {growth}")
            assert all(rose.values()), rose
            assert growth is None or growth <= MOST_GROWTH, campaign.memory

    def some(names: Sequence[str], seconds: float, round_seconds: float) -> None:
        names = [name for name in names if not ARENAS[name].refused()]
        if not names:
            pytest.skip("this SGLang is too old for all of them")
        for name in names:
            # One stock server for those that have the same model, and one model at a time:
            # PyTorch's random numbers are those of all threads.
            known(ARENAS[name].model)
            weights(ARENAS[name].model)
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            for each in [pool.submit(one, name, seconds, round_seconds) for name in names]:
                each.result()

    return some


@pytest.mark.parametrize("names", SHORT, ids=" and ".join)
def test_a_moment(attack, names) -> None:
    attack(names, SHORT_SECONDS, SHORT_ROUND_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(900.0 + 60.0 * MINUTES)
@pytest.mark.parametrize("names", SLOW, ids=" and ".join)
def test_for_long(attack, names) -> None:
    attack(names, 60.0 * MINUTES / len(SLOW), ROUND_SECONDS)


CONTROLS = ("no-wait", pytest.param("no-guard", marks=pytest.mark.slow))
"""What is broken, see broken_server.py."""
MOST_SECONDS = 300.0
"""Until that is noticed. Usually it takes a few; on a busy machine little is asked in a minute."""
WRONG_TOKENS = "instead of|is no beginning of|log probabilities differ"
LEFT_ALONE = {  # what might hide it
    "unknown-key",
    "pause-abort",
    "pause-in-place",
    "pause-retract",
    "rests",
    "sweep",
    "weights",
    "weights-sweep",
}


@pytest.mark.parametrize("broken", CONTROLS)
def test_controls_are_noticed(start, known, weights, broken) -> None:
    """Reading what is still being loaded, or what is still being computed."""
    env = {**LATE, "TOKENFLOW_TEST_BREAK": broken}
    with (
        start(*FORCED, *LARGE_HOST, program=BROKEN, env=env) as served,
        pytest.raises(AssertionError, match=WRONG_TOKENS) as noticed,
    ):
        without = WITHOUT | LEFT_ALONE
        Campaign(served, known("qwen3"), weights("qwen3"), SEED, without).attack(MOST_SECONDS)
    assert "TOKENFLOW_ATTACK_SEED=" in str(noticed.value), "it can be seen again"

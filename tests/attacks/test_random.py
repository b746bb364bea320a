"""Random attacks on live servers: whatever is asked, aborted, paused or flushed, in any order.

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
from dataclasses import dataclass

import pytest
from attacker.campaign import ROUND_SECONDS, Campaign
from attacker.truth import subjects
from servers.fixtures import BROKEN

from tokenflow_sgl_emulator.models import make_tiny_model
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

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

LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TOKENFLOW = ("--scheduler", "tokenflow")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
CHUNKS = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptInChunks")
IN_CHUNKS = ("preemptions_total", "loaded_ahead_chunks_total")
NOT_AT_ONCE = frozenset({"retract-flush", "retract-weights"})
"""With a storage a flush has to wait for it, in a pause, too; test_restoration.py does."""
BOTH_WAYS = ("restorations_total", "restored_tokens_total")
# Sixteen clients ask for about 1,500 tokens at a time.
LARGE_HOST = ("--max-total-tokens", "448", "--hicache-ratio", "6")
SMALL_HOST = ("--max-total-tokens", "448", "--hicache-ratio", "0.5")
RESTORED = (
    # Tails take some hundredths of a second, so that what happens meanwhile happens often.
    *storage_flags(prefetch_tokens=8, read_gbps=0.005, write_gbps=1.0),
    *("--page-size", "4", "--chunked-prefill-size", "32"),
    *("--tokenflow-restore", "splits:SplitAnywhere"),
)


@dataclass(frozen=True)
class Arena:
    """A server to attack.

    Attributes:
        flags: Of the server.
        ranks: Tensor-parallel ranks.
        expects: Metrics of ours that have to rise, so that the attack means something.
        full: The server has a limit to its queue.
        without: What is not done to it.
    """

    flags: tuple[str, ...]
    ranks: int = 1
    expects: tuple[str, ...] = ("preemptions_total", "written_ahead_tokens_total")
    full: bool = False
    without: frozenset[str] = frozenset()

    def all_flags(self) -> tuple[str, ...]:
        two = ("--tp-size", str(self.ranks), "--tokenflow-check-ranks") if self.ranks > 1 else ()
        return (*self.flags, *two)


ARENAS = {
    "forced, page 1": Arena((*FORCED, *LARGE_HOST)),
    "forced, page 16, small host": Arena(
        (*FORCED, *SMALL_HOST, "--page-size", "16", "--chunked-prefill-size", "32")
    ),
    "chunks, page 1": Arena((*CHUNKS, *LARGE_HOST), expects=IN_CHUNKS),
    "chunks, page 16, two ranks": Arena(
        (*CHUNKS, *LARGE_HOST, "--page-size", "16"), ranks=2, expects=IN_CHUNKS
    ),
    "shipped, page 1, short queue": Arena(
        (*TOKENFLOW, *LARGE_HOST, "--max-queued-requests", "4"), full=True
    ),
    "shipped, page 16": Arena((*TOKENFLOW, *LARGE_HOST, "--page-size", "16")),
    "forced, page 16, two ranks": Arena((*FORCED, *LARGE_HOST, "--page-size", "16"), ranks=2),
    "shipped, page 1, two ranks": Arena((*TOKENFLOW, *LARGE_HOST), ranks=2),
    "restored": Arena((*FORCED, *SMALL_HOST, *RESTORED), expects=BOTH_WAYS, without=NOT_AT_ONCE),
    "restored, two ranks": Arena(
        (*TOKENFLOW, *SMALL_HOST, *RESTORED), ranks=2, expects=BOTH_WAYS, without=NOT_AT_ONCE
    ),
}
SHORT = (
    ("forced, page 1", "shipped, page 16"),
    ("forced, page 16, small host", "shipped, page 1, short queue"),
    ("forced, page 16, two ranks",),
    ("chunks, page 1", "restored"),
)
"""Arenas that are attacked at once, a turn after the other."""
SLOW = (
    ("forced, page 1", "shipped, page 1, two ranks"),
    ("shipped, page 1, short queue", "forced, page 16, two ranks"),
    ("forced, page 16, small host", "shipped, page 16"),
    ("chunks, page 1", "chunks, page 16, two ranks"),
    ("restored", "restored, two ranks"),
)


@pytest.fixture(scope="session")
def known(start, families):
    """What is asked, and stock SGLang's answers."""
    with start("--max-total-tokens", "4000") as served:
        return subjects(served, families)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """The model's weights once more, in another folder."""
    return make_tiny_model(tmp_path_factory.mktemp("again") / "qwen3", arch="qwen3")


@pytest.fixture(scope="session")
def attack(start, known, weights):
    """Attack an arena: `attack(name, seconds, round_seconds)`."""

    def run(name: str, seconds: float, round_seconds: float) -> None:
        arena = ARENAS[name]
        env = {**LATE, **(TWO_RANKS if arena.ranks > 1 else {})}
        with start(*arena.all_flags(), env=env) as served:
            without = WITHOUT | arena.without
            campaign = Campaign(served, known, weights, SEED, without, arena.full)
            campaign.attack(seconds, round_seconds)
            for _ in range(MORE_ROUNDS):
                rose = {each: served.total(f"tokenflow:{each}") for each in arena.expects}
                if all(rose.values()):
                    break
                campaign.attack(round_seconds, round_seconds)
            growth = campaign.growth()
            print(f"{name}, seed {SEED}: {dict(campaign.counts)}, {rose}, grown by {growth}")
            assert all(rose.values()), rose
            assert growth is None or growth <= MOST_GROWTH, campaign.memory

    return run


def at_once(attack, names, seconds: float, round_seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for each in [pool.submit(attack, name, seconds, round_seconds) for name in names]:
            each.result()


@pytest.mark.parametrize("names", SHORT, ids=" and ".join)
def test_a_moment(attack, names) -> None:
    at_once(attack, names, SHORT_SECONDS, SHORT_ROUND_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(300.0 + 60.0 * MINUTES)
@pytest.mark.parametrize("names", SLOW, ids=" and ".join)
def test_for_long(attack, names) -> None:
    at_once(attack, names, 60.0 * MINUTES / len(SLOW), ROUND_SECONDS)


CONTROLS = ("no-wait", "no-guard")
"""What is broken, see broken_server.py."""
WRONG_TOKENS = "instead of|is no beginning of|log probabilities differ"
LEFT_ALONE = {  # what might hide it
    "unknown-key",
    "pause-abort",
    "pause-in-place",
    "pause-retract",
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
        Campaign(served, known, weights, SEED, WITHOUT | LEFT_ALONE).attack(60.0)
    assert "TOKENFLOW_ATTACK_SEED=" in str(noticed.value), "it can be seen again"

"""KV layer by layer with SGLang's prefix cache: what is read again says the same.

Conversations of two turns, which all begin alike. All tests compare the log probabilities of the
whole vocabulary at every token with those of SGLang's own pool, without a prefix cache.
"""

from __future__ import annotations

import http.client
import random
from pathlib import Path
from typing import Any

import pytest
from servers.layered import PLAIN, PLANS, Said, ask, layered
from servers.tuned import CHECK_RANKS

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = pytest.mark.engine

CHUNKS = ("--chunked-prefill-size", "32")
ON = (*CHUNKS, "--tokenflow-layerwise-ratio", "3", "--max-total-tokens", "1536")
"""The second turns come to about 1,700 tokens, 1,200 if what all begin with is shared; the device
holds what 512 take."""
TIGHT = (*CHUNKS, "--tokenflow-layerwise-ratio", "3", "--max-total-tokens", "900")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
NEW = 16
TURNS = 4


class Turns:
    """First turns, and what comes of them."""

    def __init__(self, prompts: list[list[int]]) -> None:
        common = prompts[0][:20] + prompts[1][:30]
        self.first = [common + prompt[:40] for prompt in prompts]
        self._more = [prompt[::-1][:12] for prompt in prompts]

    def second(self, said: Said) -> list[list[int]]:
        """The first ones with their answers, and a second question."""
        answers = (tokens for tokens, _ in said)
        return [[*a, *b, *c] for a, b, c in zip(self.first, answers, self._more, strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four layers."""
    return make_tiny_model(tmp_path_factory.mktemp("layered") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def turns(prompts) -> Turns:
    return Turns(prompts)


@pytest.fixture(scope="module")
def resident(start, model, turns) -> tuple[Said, Said]:
    """What SGLang says in the two turns with its own pool, and all computed."""
    with start(*PLAIN, "--max-total-tokens", "4000", model=model) as served:
        first = ask(served, turns.first, NEW)
        return first, ask(served, turns.second(first), NEW)


def cached(served: Any) -> float:
    return served.sglang_total("sglang:cached_tokens_total")


@pytest.mark.parametrize(
    ("page", "plan", "flags"),
    [
        (1, "AnyLayers", FORCED),
        (16, "AnyLayers", ()),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (1, "AnyChoice", ("--enable-mixed-chunk",)),
                (1, "AllJoin", ("--disable-overlap-schedule",)),
                (16, "AnyChoice", (*FORCED, "--disable-overlap-schedule")),
                (16, "NotedSolver", (*FORCED, "--enable-mixed-chunk")),
            )
        ),
    ],
)
def test_two_turns_that_begin_alike(
    start, model, turns, resident, tmp_path, page, plan, flags
) -> None:
    own = (*ON, *flags, "--page-size", str(page))
    with layered(start, tmp_path, f"{PLANS}:{plan}", *own, model=model) as served:
        for _ in range(2):
            assert ask(served, turns.first, NEW) == resident[0]
            assert ask(served, turns.second(resident[0]), NEW) == resident[1]
        print(f"{cached(served):.0f} tokens came from the prefix cache")
        assert cached(served) > 12 * 100, "prefixes must be read again"
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), FORCED], ids=["stock", "forced"])
def test_where_pages_run_out(start, model, turns, resident, tmp_path, flags) -> None:
    """SGLang's tree gives pages up, streams are retracted, and paused ones lose their KV."""
    own = (*TIGHT, *flags, "--page-size", "1")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model) as served:
        for _ in range(2):
            assert ask(served, turns.second(resident[0]), NEW) == resident[1]
            assert ask(served, turns.first, NEW) == resident[0]
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), FORCED], ids=["stock", "forced"])
def test_clients_that_leave(start, model, turns, resident, tmp_path, flags) -> None:
    """What they have left in the tree is others' beginning."""
    chance = random.Random(4)
    own = (*ON, *flags, "--page-size", "16")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model) as served:
        second = turns.second(resident[0])
        for _ in range(3):
            leaving = [
                lambda ids=ids: served.leave(ids, chance.uniform(0.0, 1.0)) for ids in second[:6]
            ]
            staying = [lambda: ask(served, second[6:], NEW)]
            assert served.together([*leaving, *staying])[-1] == resident[1][6:]
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_two_ranks(start, model, turns, resident, tmp_path) -> None:
    own = (*ON, *FORCED, "--page-size", "16", "--tp-size", "2", CHECK_RANKS)
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=model) as served:
        for asked, expected in (
            (turns.first, resident[0]),
            (turns.second(resident[0]), resident[1]),
        ):
            assert [tokens for tokens, _ in ask(served, asked, NEW)] == [t for t, _ in expected]
        served.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("break_", ["no-layer-fence", "no-layer-store"])
def test_what_is_broken_on_purpose_is_noticed(
    start, model, turns, resident, tmp_path, break_
) -> None:
    own = (*ON, "--page-size", "1")
    given = {"model": model, "break_": break_}
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, **given) as served:
        try:
            said = [ask(served, turns.first, NEW)]
            said += [ask(served, turns.second(resident[0]), NEW) for _ in range(TURNS)]
        except (AssertionError, OSError, http.client.HTTPException):
            return  # a server that is told nonsense need not survive it
        assert said != [resident[0], *[resident[1]] * TURNS]

"""`--scheduler tokenflow` with KV layer by layer: paused streams keep theirs, and say the same.

Most tests compare the log probabilities of the whole vocabulary at every token.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from servers.layered import PLAIN, PLANS, Said, ask, layered
from servers.tuned import CHECK_RANKS, tuned

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
ON = (*PLAIN, "--tokenflow-layerwise-ratio", "2", "--max-total-tokens", "1280")
"""The twelve prompts come to 900 tokens; 640 fit the device."""
TIGHT = (*PLAIN, "--tokenflow-layerwise-ratio", "2", "--max-total-tokens", "640")
"""Not even all pages are enough for all streams."""
READER = {"custom_params": {"tokenflow_rate": 10}, "stream": True}
TURNS = 6


@pytest.fixture(scope="module")
def resident(start, models, prompts) -> Said:
    """What SGLang says with its own pool and scheduler."""
    with start(*PLAIN, "--max-total-tokens", "4000", model=models / "qwen3") as served:
        return ask(served, prompts)


def counts(served: Any) -> dict[str, float]:
    names = ("preemptions_total", "resumes_total", "resume_loaded_tokens_total")
    names += ("resume_recomputed_tokens_sum", "policy_errors_total")
    return {name: served.total(f"tokenflow:{name}") for name in names}


@pytest.mark.parametrize(
    ("page", "plan", "flags"),
    [
        (1, "AnyLayers", ()),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (16, "AnyLayers", ("--disable-overlap-schedule",)),
                (16, "AnyChoice", ("--enable-mixed-chunk",)),
                (1, "NotedSolver", tuned(mixed_chunk="off")),
            )
        ),
    ],
)
def test_paused_streams_say_what_undisturbed_ones_do(
    start, models, prompts, resident, tmp_path, page, plan, flags
) -> None:
    own = (*ON, *FORCED, *flags, "--page-size", str(page))
    with layered(start, tmp_path, f"{PLANS}:{plan}", *own, model=models / "qwen3") as served:
        for _ in range(2):
            assert ask(served, prompts) == resident
        found = counts(served)
        print(found)
        assert found["preemptions_total"] > 2 * len(prompts), "the test must disturb"
        assert found["resume_recomputed_tokens_sum"] == 0, "paused streams keep their KV"
        assert found["resume_loaded_tokens_total"] > 0, "some layers must leave meanwhile"
        assert found["policy_errors_total"] == 0
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_where_pages_run_out_paused_streams_are_computed_anew(
    start, models, prompts, reference, tmp_path
) -> None:
    """SGLang would retract what runs, and end the last stream."""
    own = (*TIGHT, *FORCED)
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=models / "qwen3") as served:
        for _ in range(TURNS):
            assert served.outputs(prompts) == reference
            if (found := counts(served))["resume_recomputed_tokens_sum"] > 0:
                break
        print(found)
        assert found["resume_recomputed_tokens_sum"] > 0
        assert served.sglang_total("sglang:num_retracted_requests_total") == 0
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_the_shipped_policy_takes_turns(start, models, prompts, reference, tmp_path) -> None:
    """More readers than the device holds: what runs fits it, as in other servers."""
    own = (*ON, "--scheduler", "tokenflow")
    with layered(start, tmp_path, f"{PLANS}:Noted", *own, model=models / "qwen3") as served:
        for _ in range(TURNS):
            assert served.outputs(prompts, **READER) == reference
            if (found := counts(served))["preemptions_total"] > 0:
                break
        print(found)
        assert found["preemptions_total"] > 0
        assert found["policy_errors_total"] == 0
        assert served.sglang_total("sglang:num_retracted_requests_total") == 0
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_clients_that_leave_and_pauses_of_the_engine_leak_nothing(
    start, models, prompts, resident, tmp_path
) -> None:
    chance = random.Random(4)
    own = (*ON, *FORCED, "--page-size", "16")
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=models / "qwen3") as served:
        for mode in ("retract", "in_place", "retract"):
            leaving = [
                lambda ids=ids: served.leave(ids, chance.uniform(0.0, 1.0)) for ids in prompts[:6]
            ]
            others = [lambda: ask(served, prompts[6:]), lambda mode=mode: pause(served, mode)]
            assert served.together([*leaving, *others])[-2] == resident[6:]
        served.flush_when_idle()
        served.assert_clean()


def pause(served: Any, mode: str) -> None:
    time.sleep(0.5)
    assert served.post("/pause_generation", {"mode": mode}).status == 200
    if mode == "retract":  # what was paused has lost its KV, too
        assert served.post("/flush_cache", None).status == 200
    assert served.post("/continue_generation", {}).status == 200


FEATURES: dict[str, dict[str, Any]] = {
    "frequency and presence": {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    "at least": {"min_new_tokens": 20},
    "repetition": {"repetition_penalty": 1.2},
    "structured": {"regex": "( [a-z]+){40}", "max_new_tokens": 90},
    "stop": {"stop": [" ba", " ti"]},
}


@pytest.mark.slow
def test_what_a_request_asks_for_survives_pauses(start, models, prompts, tmp_path) -> None:
    """Where a token would be counted too early, there are none.

    Without overlap: with it, stock SGLang's own answers with penalties depend on what else it
    serves (9 of the 12 are others than those given alone).
    """
    own = ("--disable-overlap-schedule",)
    with start(*PLAIN, *own, "--max-total-tokens", "4000", model=models / "qwen3") as stock:
        expected = {name: stock.outputs(prompts, **how) for name, how in FEATURES.items()}
        plain = stock.outputs(prompts)
    assert all(each != plain for name, each in expected.items() if name != "at least")
    own = (*ON, *FORCED, *own)
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=models / "qwen3") as served:
        for name, how in FEATURES.items():
            before = counts(served)["preemptions_total"]
            assert served.outputs(prompts, **how) == expected[name], name
            paused = counts(served)["preemptions_total"] > before
            assert paused == (name in ("structured", "stop")), name
        served.flush_when_idle()
        served.assert_clean()


@pytest.mark.slow
def test_a_wrong_token_after_a_pause_is_noticed(start, models, prompts, resident, tmp_path) -> None:
    """The control."""
    own = (*ON, *FORCED)
    given = {"model": models / "qwen3", "break_": "other-token"}
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, **given) as served:
        assert ask(served, prompts) != resident


@pytest.mark.slow
def test_two_ranks(start, models, prompts, resident, tmp_path) -> None:
    own = (*ON, *FORCED, "--page-size", "16", "--tp-size", "2", CHECK_RANKS)
    with layered(start, tmp_path, f"{PLANS}:AnyLayers", *own, model=models / "qwen3") as served:
        assert [tokens for tokens, _ in ask(served, prompts)] == [each for each, _ in resident]
        assert counts(served)["preemptions_total"] > len(prompts)
        served.assert_clean()

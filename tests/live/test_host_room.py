"""With room beside the host's copies, real servers answer with the same tokens."""

from __future__ import annotations

import http.client

import pytest
from servers.fixtures import BROKEN

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
ROOM = ("--tokenflow-host-room", "--chunked-prefill-size", "32")
# Twelve streams need about 1,350 tokens.
LARGE = ("--max-total-tokens", "704", "--hicache-ratio", "4")
SMALL = ("--max-total-tokens", "704", "--hicache-ratio", "1")
GROUPS = ("--tokenflow-block-groups",)
TWO = ("--tp-size", "2", "--tokenflow-check-ranks")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""
ROUNDS = 5
"""Of the control: on a busy machine few of the prompts meet, so that little is disturbed."""


@pytest.mark.parametrize(
    ("page", "more"),
    [
        pytest.param("1", LARGE, id="page 1"),
        pytest.param("16", (*LARGE, *GROUPS), id="page 16, groups"),
        pytest.param("1", SMALL, id="page 1, small host"),
        pytest.param("16", (*LARGE, *TWO), id="page 16, two ranks"),
    ],
)
def test_tokens_are_those_of_the_undisturbed_run(start, prompts, reference, page, more) -> None:
    """In the second turn what the first one left on the host goes on, or has been evicted."""
    with start(*FORCED, *ROOM, "--page-size", page, *more, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        preempted = served.total("tokenflow:preemptions_total")
        loaded = served.total("tokenflow:loaded_ahead_tokens_total")
        print(f"page {page}: {preempted:.0f} preemptions, {loaded:.0f} tokens prefetched")
        assert preempted >= 4 * len(prompts), "the test must disturb"
        assert loaded > 0
        served.assert_clean()


def test_a_page_that_two_copies_have_is_noticed(start, prompts, reference) -> None:
    """Broken on purpose, without the memory ledger: what the test above compares does change."""
    env = {
        **LATE,
        "TOKENFLOW_TEST_BREAK": "two-hands-of-host",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "0",
    }
    with start(*FORCED, *ROOM, *LARGE, program=BROKEN, env=env) as served:
        for _ in range(ROUNDS):
            try:
                answers = served.together([lambda p=p: served.generate(p) for p in prompts])
            except (OSError, http.client.HTTPException):
                raise AssertionError("it is not the tokens that tell") from None
            if [a.status == 200 and a.body["output_ids"] for a in answers] != reference:
                return
        raise AssertionError("two streams have loaded the same page")

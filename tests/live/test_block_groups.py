"""With block groups, real servers answer with the same tokens, and copies lie in fewer pieces."""

from __future__ import annotations

import pytest
from servers.tuned import CHECK_RANKS, tuned

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""


@pytest.mark.parametrize(
    ("page", "ranks"),
    [(1, 1), (16, 1), (1, 2)],
)
def test_tokens_are_those_of_the_undisturbed_run(start, prompts, reference, page, ranks) -> None:
    # Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
    memory = ("--max-total-tokens", "704", "--hicache-ratio", "4", "--chunked-prefill-size", "32")
    flags = (*FORCED, *tuned(block_groups=True), "--page-size", str(page), *memory)
    two = ("--tp-size", "2", CHECK_RANKS) if ranks > 1 else ()
    with start(*flags, *two, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        preempted = served.total("tokenflow:preemptions_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        print(
            f"page {page}, {ranks} ranks: {preempted:.0f} preemptions, "
            f"{recomputed:.0f} tokens recomputed"
        )
        assert preempted >= 4 * len(prompts), "the test must disturb"
        assert served.total("tokenflow:loaded_ahead_tokens_total") > 0
        served.assert_clean()

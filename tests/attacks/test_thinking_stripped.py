"""--strip-thinking-cache, with a model that thinks, while its streams are paused and resumed."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

THINKING = ("--reasoning-parser", "deepseek-r1", "--strip-thinking-cache")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("hicache", ["auto", "off"])
def test_thinking_streams_are_paused_and_their_thoughts_are_kept_meanwhile(
    start, thinker, think_end, prompts, reference, page, hicache
) -> None:
    pools = ("--max-total-tokens", "704", "--hicache-ratio", "4")
    flags = (*FORCED, *THINKING, *pools, "--page-size", str(page), "--tokenflow-hicache", hicache)
    if hicache == "off":
        flags = (*flags, "--max-total-tokens", "4000")
    with start(*flags, model=thinker) as served:
        for _ in range(2):
            answers = served.together(
                [
                    lambda p=p: served.generate(p, stream=True, require_reasoning=True)
                    for p in prompts
                ]
            )
            assert [answer.status for answer in answers] == [200] * len(prompts)
            assert [answer.body["output_ids"] for answer in answers] == reference
        thought = [answer.body["meta_info"]["reasoning_tokens"] for answer in answers]
        assert thought[0] == reference[0].index(think_end) + 1, "it stops to think"
        assert all(thought), "the test needs a model that thinks"
        resumes = served.total("tokenflow:resumes_total")
        assert resumes >= 4 * len(prompts), "the test must disturb"
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        assert recomputed <= (page + 1) * resumes, "thoughts are kept while their stream is paused"
        served.assert_clean()

"""`--prefill-decode-interval`: SGLang keeps passes for decoding, and the policy decides in them."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

INTERVAL = ("--prefill-decode-interval", "6")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
MEMORY = ("--max-total-tokens", "704", "--hicache-ratio", "4")


def test_tokens_are_those_of_the_undisturbed_run(start, prompts, reference) -> None:
    with start(*FORCED, *INTERVAL, *MEMORY) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        # 257 here, and 65 where the policy is asked only when SGLang may begin a prefill.
        assert served.total("tokenflow:preemptions_total") >= 10 * len(prompts)
        served.assert_clean()

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
        # Every fourth pass preempts. Were it asked only where a prefill may begin, that would be
        # every 28th step: less than half as often as each of twelve streams of 64 tokens is here.
        assert served.total("tokenflow:preemptions_total") >= 2 * len(prompts)
        served.assert_clean()

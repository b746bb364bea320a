"""Copies that leave with SGLang's own (`--hicache-io-backend direct`) are the right ones."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
DIRECT = ("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first")
MEMORY = ("--max-total-tokens", "704", "--hicache-ratio", "4", "--chunked-prefill-size", "32")


def test_tokens_are_those_of_the_undisturbed_run(start, prompts, reference) -> None:
    env = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
    with start(*FORCED, *DIRECT, *MEMORY, env=env) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        assert served.total("tokenflow:preemptions_total") >= 4 * len(prompts)
        assert served.total("tokenflow:written_ahead_tokens_total") > 0
        served.assert_clean()

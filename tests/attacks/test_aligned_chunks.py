"""Where SGLang cuts prompts into large pieces, a long prompt starts while others decode."""

from __future__ import annotations

import random

import pytest
from servers.fixtures import SERVER_SIDE
from told_streams import Reading, told

pytestmark = pytest.mark.engine

ALIGNED = str(SERVER_SIDE / "aligned_server.py")
FAR = 20_000
"""Tokens that take longer than anything else here, on a fast machine as on a slow one."""
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:ShortPrefills")


@pytest.mark.parametrize(
    "chunk", [512, pytest.param(2048, marks=pytest.mark.slow)], ids=["no-room-for-rows", "roomy"]
)
def test_a_long_prompt_does_not_wait_for_the_others_to_end(start, prompts, chunk) -> None:
    """Pieces of 512 tokens, more than the policy's limit, and as many as the smaller chunk has."""
    rng = random.Random(9)
    long = [rng.randrange(10, 200) for _ in range(1500)]
    flags = ("--chunked-prefill-size", str(chunk), "--max-total-tokens", "30000")
    with start(*FORCED, *flags, program=ALIGNED, env={"TOKENFLOW_TEST_ALIGN": "512"}) as served:
        expected = served.outputs([long], max_new_tokens=4)[0]
        served.flush_when_idle()
        busy = Reading(served, prompts[0], FAR)
        busy.wait_for(1)
        assert served.outputs([long], max_new_tokens=4) == [expected]
        # It can only be ended while it is served.
        assert told(served, busy.rid, "", "DELETE") == (204, "")
        busy.join(60)
        assert busy.reason["type"] == "abort"
        served.assert_clean()

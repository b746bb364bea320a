"""Where SGLang cuts prompts into large pieces, a long prompt starts while others decode."""

from __future__ import annotations

import random

import pytest
from servers.fixtures import SERVER_SIDE

pytestmark = pytest.mark.engine

ALIGNED = str(SERVER_SIDE / "aligned_server.py")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:ShortPrefills")


@pytest.mark.parametrize(
    "chunk", [512, pytest.param(2048, marks=pytest.mark.slow)], ids=["no-room-for-rows", "roomy"]
)
def test_a_long_prompt_does_not_wait_for_the_others_to_end(start, prompts, chunk) -> None:
    """Pieces of 512 tokens, more than the policy's limit, and as many as the smaller chunk has."""
    rng = random.Random(9)
    long = [rng.randrange(10, 200) for _ in range(1500)]
    flags = ("--chunked-prefill-size", str(chunk), "--max-total-tokens", "16000")
    ended: list[str] = []

    def ask(served, name: str, ids: list[int], tokens: int) -> list[int]:
        answer = served.generate(ids, max_new_tokens=tokens)
        ended.append(name)
        return answer.body["output_ids"]

    with start(*FORCED, *flags, program=ALIGNED, env={"TOKENFLOW_TEST_ALIGN": "512"}) as served:
        expected = served.outputs([long], max_new_tokens=4)[0]
        served.flush_when_idle()
        _, got = served.together(
            [
                lambda: ask(served, "busy", prompts[0], 1500),
                lambda: ask(served, "long", long, 4),
            ]
        )
        assert got == expected
        assert ended == ["long", "busy"]
        served.assert_clean()

"""SGLang's priority scheduling under the policy: the tokens are those without either."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PRIORITY = ("--enable-priority-scheduling", "--chunked-prefill-size", "32")
SMALL = ("--max-total-tokens", "704", "--hicache-ratio", "4")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
SHIPPED = ("--scheduler", "tokenflow", "--tokenflow-default-rate", "5")


def asked(served, prompts, **how) -> list[list[int]]:
    """Each third prompt states no priority; the others are far apart."""
    calls = []
    for number, prompt in enumerate(prompts):
        own = [{}, {"priority": 5}, {"priority": -(10**6)}][number % 3]
        calls.append(lambda p=prompt, o=own: served.generate(p, **o, **how))
    answers = served.together(calls)
    assert [answer.status for answer in answers] == [200] * len(prompts), answers
    return [answer.body["output_ids"] for answer in answers]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(FORCED, id="forced"),
        pytest.param(SHIPPED, id="shipped"),
    ],
)
def test_tokens_are_those_of_the_undisturbed_run(start, prompts, reference, flags) -> None:
    with start(*flags, *PRIORITY, *SMALL) as served:
        for stream in (False, True):
            assert asked(served, prompts, stream=stream) == reference
        if flags is FORCED:
            assert served.total("tokenflow:preemptions_total") >= 4 * len(prompts)
        served.assert_clean()

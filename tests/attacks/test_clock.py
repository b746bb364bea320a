"""The clock that the policy decides by goes on where SGLang receives requests now and then only."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")


def test_turns_without_receiving_still_take_time(start, prompts, reference) -> None:
    with start(*FORCED, "--scheduler-recv-interval", "8") as served:
        assert served.outputs(prompts, stream=True) == reference
        served.flush_when_idle()
        served.wait_for("tbt_seconds_count", least := 0.9 * len(prompts) * 63)
        samples = served.metrics()
        together = samples[
            ("tokenflow:tbt_seconds_bucket", (("le", "0.0"), ("qos_class", "default")))
        ]
        gaps = samples[("tokenflow:tbt_seconds_count", (("qos_class", "default"),))]
        assert gaps >= least
        assert together <= 0.1 * gaps, "tokens of different steps are apart in time"
        served.assert_clean()

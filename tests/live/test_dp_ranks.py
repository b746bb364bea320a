"""Data-parallel ranks under forced preemption, with attention of their own and without.

Each rank pauses its own streams when it likes, and with DP attention the others compute the step
together with it: every token is the one that stock SGLang gives all the same.
"""

from __future__ import annotations

import pytest
from servers.fixtures import BROKEN

from tokenflow_sgl.lab.observe.stream_events import events, read_log

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
DP_ATTENTION = ("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2")
DP = ("--dp-size", "2")
# Six streams of each rank need about 675 tokens: the device holds half of it.
SMALL = ("--max-total-tokens", "352", "--hicache-ratio", "4", "--chunked-prefill-size", "64")
LARGE = ("--max-total-tokens", "4000", "--tokenflow-hicache", "off")
ROUNDS = 5


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(SMALL, id="hicache"),
        pytest.param(LARGE, id="no-hicache"),
    ],
)
@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(DP_ATTENTION, id="dp-attention"),
        pytest.param(DP, id="replicas"),
    ],
)
def test_tokens_are_those_of_the_undisturbed_run(
    start, prompts, reference, tmp_path, ranks, memory
) -> None:
    log = tmp_path / "decisions"
    flags = (*FORCED, *ranks, *memory, "--tokenflow-decision-log", str(log))
    with start(*flags, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == reference
        preempted = served.total("tokenflow:preemptions_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        loaded = served.total("tokenflow:loaded_ahead_tokens_total")
        print(f"{preempted:.0f} preempted, {recomputed:.0f} recomputed, {loaded:.0f} prefetched")
        assert preempted >= 4 * len(prompts), "the test must disturb"
        assert (loaded > 0) == (memory is SMALL)
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()
    paused: dict[str, set[str]] = {}
    for event in events(read_log(log)):
        if event.what == "paused":
            paused.setdefault(event.line["rank"], set()).add(event.rid)
    assert set(paused) == {"", ".dp1"}, "both ranks pause streams"
    assert not paused[""] & paused[".dp1"], "of their own"


def test_controls_are_noticed(start, prompts, reference) -> None:
    """A rank that copies nothing to the host loads something else."""
    env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*FORCED, *DP_ATTENTION, *SMALL, program=BROKEN, env=env) as served:
        got = (served.outputs(prompts) for _ in range(ROUNDS))
        assert any(each != reference for each in got)

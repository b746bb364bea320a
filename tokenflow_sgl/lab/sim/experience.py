"""What a server has learned before the simulation starts."""

from __future__ import annotations

from tokenflow_sgl.costs import StepTimer, Work, attention_work
from tokenflow_sgl.lab.sim.core import SimulatedCore


def experienced(core: SimulatedCore) -> StepTimer:
    """The timer of a server that has served before: it knows what its steps cost.

    A cold one would admit its first streams by what the first decode steps teach.
    """
    drafts = core.options.speculative_num_draft_tokens
    timer, now = StepTimer(lag=0, most=drafts), 0.0
    profile, room = core.device.profile, core.memory.device

    def saw(work: Work, seconds: float) -> None:
        nonlocal now
        timer.begin(now)
        timer.launch(work)
        timer.begin(now + seconds)
        timer.launch(None)
        now += seconds + 1.0

    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for length in (128, 512, 2048, 8192):
            if batch * length <= room:
                seconds = profile.decode_seconds(batch * drafts, batch * length)
                saw(Work(batch, batch * length), seconds)
                timer.accepted(batch, round(batch * core.options.acceptance))
    for tokens in (64, 256, 1024, core.options.chunked_prefill_size):
        for prefix in (0, 2048):
            attention = attention_work(tokens, prefix)
            saw(Work(0, 0, tokens, attention), profile.prefill_seconds(tokens, attention))
    timer.restart()
    return timer

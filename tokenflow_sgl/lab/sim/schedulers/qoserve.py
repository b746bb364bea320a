"""QoServe: earliest deadline first, with chunks as large as the decoding streams can bear.

K. Goel et al., "Niyama: Breaking the Silos of LLM Inference Serving" (arXiv 2503.22562, at
ASPLOS'26 as QoServe), for interactive requests. With its authors' own scheduler
(microsoft/sarathi-serve, `deadline_scheduler.py`) where the two differ or the paper has no number:

    deadline of token n    = max(arrival + ttft_slo, first token) + (n - 1) * tbt_slo
    place in the queue     = deadline of the next token + alpha * tokens still to prefill
    tokens of a step       = the largest of `CHUNKS` with 1.2 * predicted time <= least slack
    slack                  = deadline of the next token - now, of each decoding stream

Every step decodes all running streams. A request that has no KV yet and cannot meet its deadline
at the speed of prefills so far is *relegated*: it stays behind all that are not. No stream that
decodes is preempted. A request without objectives gets the authors' 6 s for the first token, and
the time in which its reader reads one token.

What is SGLang's here: memory is promised as by stock SGLang, streams are retracted, and one prompt
at a time is prefilled in part, which is finished before the next one. The predicted time is the
device's own, where the authors fit a linear model; so it has no error.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray
from tokenflow_sgl.lab.sim.step import Step

TTFT_SLO = 6.0
"""Seconds to the first token of a request that asks for none: the authors' interactive class."""
ALPHA = 0.008
"""Seconds by which each token still to prefill moves a request back, the authors' value."""
CHUNKS = (128, *range(256, 2049, 256), 2552)
"""Tokens of a step, prefilled and decoded ones together: the authors' choice."""
SCARCE, SCARCE_CHUNKS = 32_000, (128, 256, 384, 512)
"""Free KV tokens below which a step is one of these."""
MARGIN = 1.2
"""Predicted times are taken for so much longer."""
SPEED_KEPT = 0.995
"""Weight of the old value in the mean speed of prefills, per prefill step."""


class QoServeScheduler(FcfsScheduler):
    """SGLang's scheduler with QoServe's queue and chunks."""

    def __init__(self, core: SimulatedCore) -> None:
        super().__init__(core)
        streams, profile = core.streams, core.device.profile
        asked = np.where(np.isnan(streams.ttft_slo), TTFT_SLO, streams.ttft_slo)
        self._ttft_slo: FloatArray = asked
        self._tbt_slo = np.where(np.isnan(streams.tbt_slo), 1.0 / streams.rate, streams.tbt_slo)
        self._began: FloatArray = np.full(len(streams), -math.inf)
        self._relegated: set[int] = set()
        self._now = 0.0
        whole = CHUNKS[-1]
        seconds = profile.prefill_seconds(whole, attention_work(whole))
        self._speed = whole / seconds  # prefilled tokens per second

    def plan(self, now: float) -> Step | None:
        """The next step; None: there is nothing to run."""
        self._now = now
        return super().plan(now)

    @property
    def mixes(self) -> bool:
        """Running streams decode in every step, where they do not verify drafts."""
        return not self.core.options.speculates

    def offered(self) -> list[int]:
        """The queue by deadline and work; those that are too late come last."""
        waiting = self.core.waiting
        if not waiting:
            return []
        deadlines = self._deadlines(np.array(waiting)).tolist()
        keys: dict[int, tuple[bool, float]] = {}
        for stream, deadline in zip(waiting, deadlines, strict=True):
            left = self.total(stream) - self.prefix(stream)[1]
            if self._now + left / self._speed > deadline:
                self._relegated.add(stream)
            keys[stream] = (stream in self._relegated, deadline + ALPHA * left)
        return sorted(waiting, key=keys.__getitem__)

    def chunk_limit(self) -> int:
        """The most tokens with which no decoding stream misses its next deadline, as predicted."""
        core = self.core
        most = super().chunk_limit()
        rows = core.running
        choices: tuple[int, ...] = SCARCE_CHUNKS if core.memory.free < SCARCE else CHUNKS
        if not len(rows):
            return min(choices[-1], most)
        slack = float((self._deadlines(rows) - self._now).min())
        context = int(core.length(rows).sum()) + len(rows)
        prefix = core.computed if core.chunked is not None else 0

        def needed(tokens: int) -> float:
            new = max(tokens - len(rows), 0)
            work = attention_work(float(new), prefix)
            return MARGIN * core.device.profile.mixed_seconds(new, work, len(rows), context)

        fitting = bisect_right(choices, slack, key=needed)
        return min(choices[max(fitting - 1, 0)], most)

    def ran(
        self, step: Step, starts: FloatArray, end: float, context: int, made: IntArray | None = None
    ) -> None:
        """First tokens and the speed of prefills are counted when they are there."""
        if not step.chunks:
            return
        for chunk in step.chunks:
            if chunk.last and math.isinf(self._began[chunk.stream]):
                self._began[chunk.stream] = end
        tokens = sum(chunk.tokens for chunk in step.chunks)
        speed = tokens / (end - float(starts[0]))
        self._speed = SPEED_KEPT * self._speed + (1.0 - SPEED_KEPT) * speed

    def _deadlines(self, rows: IntArray) -> FloatArray:
        """When the next token of each stream is due, seconds on the trace's clock."""
        streams = self.core.streams
        begun = np.maximum(streams.arrival[rows] + self._ttft_slo[rows], self._began[rows])
        return np.asarray(begun + streams.generated[rows] * self._tbt_slo[rows])

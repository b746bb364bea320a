"""Measures an engine's steps by its clock and feeds the cost models, live and simulated."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenflow_sgl.costs.model import StepCosts, prefix_of
from tokenflow_sgl.costs.online import OnlineCosts

WINDOW_SECONDS = 2.0
"""Length of the throughput window."""
READ_SECONDS = 20.0
"""Memory of the measured reading rate: long enough to hold a stream's turns."""
SHARE_SECONDS = 10.0
"""Memory of the share of the time that prefills take."""
STALE_SECONDS = 10.0
"""How long loads may go unseen before their price is forgotten: with a wrong one none may load,
and nothing would ever correct it. And for how long decode steps that are held by other ranks'
prefills teach nothing: where all are, a price that is too high is better than none."""
RESUMED = 16
"""Loaded tokens per computed one of a step from which loads are learned: streams that resume
compute a token or so each. A short load drowns in the noise of a long prefill."""
HELD_UP = 1.5
"""Time of a step over that without its load from which the load is what it waited for: more than
what steps vary by anyway."""
BEYOND = 2.0
"""Batches and contexts above so many times those of the decode steps seen so far are not inferred:
after a start-up of a few steps of one row, noise counts as the price of a token of context."""
SHORT_PREFILL = 32
"""Tokens below which a prefill teaches nothing about prefills. Streams that resume from the device
compute a token each, hundreds of times between two real prefills: a model of those alone knows no
price per token, and with none recomputing seems free."""
REFIT_SECONDS = 0.25
"""How old a fit may be; refitting costs a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward pass computes: decoding streams, new tokens, and their attention.

    decoding: requests that decode one token. context: KV tokens that these read.
    tokens: new tokens of the prefilled requests. attention: the sum of their
    `attention_work`. loaded: tokens brought back from the host for them.
    A mixed step has both. crowded: more streams are served than the memory holds.
    queued: another load was on the link when it was launched, and what it loads comes behind that.
    held: nothing is prefilled, but the step lasts as long as a prefill of another rank that it is
    computed together with (DP attention).
    """

    decoding: int = 0
    context: int = 0
    tokens: int = 0
    attention: float = 0.0
    loaded: int = 0
    crowded: bool = False
    held: bool = False
    queued: bool = False


class StepTimer:
    """Attributes the time between two iterations to the step that it was spent on.

    lag: 0 where a step's computation ends before the next iteration starts (synchronous
    devices, no overlap); 1 with overlap scheduling, where an iteration waits for the
    step launched one iteration earlier.
    most: tokens that a decode step can give a stream; 1 without speculation.
    """

    def __init__(self, lag: int, most: int = 1) -> None:
        self._costs = OnlineCosts(most=most)
        self._launched: deque[Work | None] = deque([None] * (lag + 1), maxlen=lag + 1)
        self._last = -math.inf
        self._produced: deque[tuple[float, int]] = deque()
        self._produced_sum = 0
        self._fit = StepCosts()
        self._fitted = -math.inf
        self._fitted_context = 0
        self._read_tokens = 0.0
        self._read_seconds = 0.0
        self._prefilled = 0.0
        self._crowded = 0.0
        self._plain: tuple[int, int, float] | None = None  # rows, context and seconds
        self._untimed: list[Work] = []
        self._longest = 0
        self._load_seen = -math.inf
        self._decoded = -math.inf
        self.last_prefill_end = -math.inf
        self.last_prefill_seconds = 0.0

    def begin(self, now: float) -> None:
        """An iteration starts at `now`: what ran until here took the time since the last."""
        seconds = now - self._last
        self._last = now
        work = self._launched[0]
        if work is None or not 0.0 <= seconds < math.inf:
            self._untimed.clear()
            return
        if seconds == 0.0:
            # A clock that comes with the requests stands still while none are received.
            self._untimed.append(work)
            return
        if self._untimed:
            work, seconds = self._mean([*self._untimed, work], seconds)
            self._untimed.clear()
            if work is None:
                return
        if work.crowded:
            self._count_reads(work, seconds)
        if work.tokens:
            self.last_prefill_end = now
            self.last_prefill_seconds = seconds
        if work.held and now - self._decoded < STALE_SECONDS:
            return  # how long decoding alone takes, it does not tell
        if not work.tokens:
            if not work.held:
                self._decoded = now
            self._costs.observe_decode(work.decoding, work.context, seconds)
            self._plain = (work.decoding, work.context, seconds)
            self._longest = max(self._longest, work.context)
            return
        own = seconds
        if work.decoding:
            own -= self._beside(work)
        if work.loaded:
            self._learn_load(work, seconds)
        elif work.tokens >= SHORT_PREFILL:
            self._costs.observe_prefill(work.tokens, work.attention, own, seconds)

    def ran(self, work: Work, start: float, ends: Sequence[float], grown: Sequence[int]) -> None:
        """Steps ran one after the other with nothing between: as told by `begin` and `launch`.

        For a lag of 0.

        Args:
            work: Of the first one. Each one reads what those before it have decoded.
            start: Of the first one, seconds.
            ends: Of each.
            grown: Tokens that each one decoded.
        """
        context = work.context
        self.begin(start)
        plain = not (work.tokens or work.crowded or work.held)
        for end, more in zip(ends, grown, strict=True):
            seconds = end - self._last
            if plain and seconds > 0.0:
                self._last = self._decoded = end
                self._costs.observe_decode(work.decoding, context, seconds)
                self._plain = (work.decoding, context, seconds)
            else:
                self.launch(replace(work, context=context))
                self.begin(end)
                self.launch(None)
                self.begin(end)
            context += more
        if plain:
            self._longest = max(self._longest, context - grown[-1])

    def interrupted(self) -> None:
        """The engine stands still from here to the next iteration: that time is no step's."""
        self._last = -math.inf
        self._untimed.clear()

    @staticmethod
    def _mean(steps: list[Work], seconds: float) -> tuple[Work | None, float]:
        """The mean of decode steps that took `seconds` together; no work if they differ in kind."""
        if any(step.tokens for step in steps):
            return None, seconds
        count = len(steps)
        mean = Work(
            decoding=round(sum(step.decoding for step in steps) / count),
            context=round(sum(step.context for step in steps) / count),
            crowded=steps[-1].crowded,
            held=any(step.held for step in steps),
        )
        return mean, seconds / count

    def _learn_load(self, work: Work, seconds: float) -> None:
        """A load overlaps with the step's computing: it takes no longer than the step.

        And as long, where it is what the step waited for, and not also a copy that is before it on
        the link: a short load behind a long one would seem to be as long.
        """
        resumes = work.loaded >= RESUMED * work.tokens
        too_dear = self.costs().load_seconds(work.loaded) > seconds
        alone = resumes and not work.queued
        if too_dear or (alone and seconds > HELD_UP * self._without_load(work)):
            self._costs.observe_load(work.loaded, seconds)
        if resumes:
            self._load_seen = self._last

    def _count_reads(self, work: Work, seconds: float) -> None:
        alone = 0.0
        if work.held:
            # As with a prefill of one's own: what decoding would not have taken.
            alone = max(seconds - self.costs().decode_seconds(work.decoding, work.context), 0.0)
        elif work.tokens:
            # Prefills are demand, not a loss; what resuming a stream takes is a loss.
            prefix = prefix_of(work.tokens, work.attention)
            costs = self.costs()
            alone = costs.prefill_seconds(work.tokens, prefix)
            if work.decoding and costs.prefill is not None:
                alone -= costs.prefill[0]
            alone = min(max(alone, 0.0), seconds)
        keep = math.exp(-seconds / SHARE_SECONDS)
        self._prefilled = self._prefilled * keep + alone
        self._crowded = self._crowded * keep + seconds
        seconds -= alone
        keep = math.exp(-seconds / READ_SECONDS)
        self._read_tokens = self._read_tokens * keep + work.context
        self._read_seconds = self._read_seconds * keep + seconds

    def kv_rate(self) -> float:
        """Tokens of context that decoding reads per second while crowded; NaN while unknown."""
        if self._read_seconds < READ_SECONDS / 4:
            return math.nan
        return self._read_tokens / self._read_seconds

    def prefill_share(self) -> float:
        """Share of the time that prefills took lately while crowded; 0.0 while unknown."""
        if self._crowded < SHARE_SECONDS / 5:
            return 0.0
        return self._prefilled / self._crowded

    def _beside(self, work: Work) -> float:
        """What decoding rows add to a prefill: all of a decode step but its constant part."""
        costs = self.costs()
        # Judged by what the fit has seen: a step since then may be far beyond what it can tell.
        rows, context = costs.seen_rows, self._fitted_context
        unseen = work.decoding > BEYOND * rows or work.context > BEYOND * context
        if costs.decode is None or unseen:
            return math.inf  # not known yet: the step teaches nothing
        return costs.decode_seconds(work.decoding, work.context) - costs.decode[0]

    def _without_load(self, work: Work) -> float:
        """What a step that resumes streams, a token each, would have taken but for its load.

        Judged by the last decode step rather than by the model: whatever the model misses today
        would count as the load's, in step after step.
        """
        costs = self.costs()
        before, read, seconds = self._plain or (0, 0, 0.0)
        modelled = costs.decode_seconds(before, read)
        if not work.decoding or not before or modelled <= 0.0:
            prefix = prefix_of(work.tokens, work.attention)
            return costs.prefill_seconds(work.tokens, prefix)
        rows = work.decoding + work.tokens
        grown = costs.decode_seconds(rows, work.context + work.attention)
        return seconds * grown / modelled

    def restart(self) -> None:
        """The clock starts anew; what steps cost stays known."""
        self._last = self._fitted = self.last_prefill_end = -math.inf
        self._plain = None
        self._untimed.clear()
        self.last_prefill_seconds = 0.0

    def launch(self, work: Work | None) -> None:
        """Note the step that this iteration of the scheduler launches; None if it launches none."""
        self._launched.append(work)

    @property
    def decoded(self) -> int:
        """Rows of the decode step whose results this iteration found; 0: there was none."""
        work = self._launched[0]
        return 0 if work is None or work.tokens else work.decoding

    @property
    def tokens_per_step(self) -> float:
        """Output tokens of a stream per decode step, on average; 1.0 without speculation."""
        return self._costs.tokens_per_step

    def accepted(self, rows: int, tokens: int) -> None:
        """Decode steps of `rows` rows, all told, delivered `tokens` output tokens."""
        self._costs.observe_tokens(rows, tokens)

    def produced(self, now: float, tokens: int) -> None:
        """`tokens` output tokens were delivered by `now`."""
        if tokens:
            self._produced.append((now, tokens))
            self._produced_sum += tokens
        while self._produced and self._produced[0][0] < now - WINDOW_SECONDS:
            self._produced_sum -= self._produced.popleft()[1]

    def produced_in(self, ends: Sequence[float], tokens: Sequence[int]) -> None:
        """`tokens` of each step were delivered by its end, as told by `produced` for each."""
        self._produced.extend(each for each in zip(ends, tokens, strict=True) if each[1])
        self._produced_sum += sum(tokens)
        self.produced(ends[-1], 0)

    def throughput(self) -> float:
        """Output tokens per second over the last window; NaN before there is one."""
        if len(self._produced) < 2:
            return math.nan
        span = self._produced[-1][0] - self._produced[0][0]
        if span < WINDOW_SECONDS / 2:
            return math.nan
        return (self._produced_sum - self._produced[0][1]) / span

    def costs(self) -> StepCosts:
        """The costs learned so far, at most `REFIT_SECONDS` old."""
        if self._last - self._fitted >= REFIT_SECONDS or self._fitted == -math.inf:
            if self._last - self._load_seen > STALE_SECONDS:
                self._costs.forget_loads()
            self._fit = self._costs.snapshot()
            self._fitted_context = self._longest
            self._fitted = self._last
        return self._fit

"""A batch of restorations, chunk by chunk: one device that computes, and channels that load.

Event by event and exact: what a chunk or a piece decides is decided with what has landed by then.
The device computes one chunk at a time, of the first request that has anything to compute; each
channel loads one piece at a time, of the request that its order names. So the predicted time of
each first token follows, and how long device and channels had nothing to do. Each step is of one
request: what an engine gains by computing the suffixes of several in one step is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenflow_sgl.restoration.batch import Pending, io_order
from tokenflow_sgl.restoration.jobs import BatchOutcome, IoOrder, Job, PrefillMachine, ServedJob
from tokenflow_sgl.restoration.prefix_way import PrefixWay
from tokenflow_sgl.restoration.token_wise import (
    Fetch,
    Seconds,
    alone_is_sooner,
    head_tokens,
    tokens_within,
)


def schedule(jobs: Sequence[Job], machine: PrefillMachine) -> BatchOutcome:
    """Serve a batch of prefills whose prefixes are stored, and say when each is done.

    Args:
        jobs: In the order in which the device computes them.
        machine: What serves them.

    Raises:
        ValueError: There is no job, or one names a channel that there is not, or waits for one that
            loads nothing.
    """
    if not jobs:
        raise ValueError("jobs is empty; one is needed at least")
    for number, job in enumerate(jobs):
        if not 0 <= job.channel < len(machine.channels):
            raise ValueError(f"job {number}: channel is {job.channel}; there is no such channel")
        dead = machine.channels[job.channel].rate == 0.0
        if dead and job.way is PrefixWay.LOAD and math.isinf(job.patience):
            raise ValueError(f"job {number} waits without end for a channel that loads nothing")
    return _Schedule(jobs, machine).run()


@dataclass(slots=True, eq=False)
class _Progress:
    """How far one job of the batch has come.

    suffix: tokens of it still to be computed. head: leading tokens of the gap that are there or
    being computed. tail: tokens loaded or being loaded, of a load that was not given up. flying: of
    these, being loaded. kept: loaded ones that the head begins with, of a load that was given up.
    """

    job: Job
    way: PrefixWay
    suffix: int
    head: int = 0
    tail: int = 0
    flying: int = 0
    kept: int = 0
    given_up: bool = False
    done: float = math.nan

    @property
    def left(self) -> int:
        """Tokens of the gap that neither is working on."""
        return self.job.gap - self.head - self.tail

    @property
    def missing(self) -> int:
        """Tokens of the gap that are neither there nor being computed."""
        return self.left + self.flying

    @property
    def loads(self) -> bool:
        """Whether a channel has something to do for it."""
        return self.way is not PrefixWay.RECOMPUTE and not self.given_up and self.left > 0


@dataclass(slots=True)
class _Schedule:
    jobs: Sequence[Job]
    machine: PrefillMachine
    now: float = 0.0
    computing: float = 0.0
    compute: Seconds = field(init=False)
    progress: list[_Progress] = field(init=False)
    loading: list[float] = field(init=False)
    landing: list[tuple[float, int] | None] = field(init=False)  # when, and of which job
    step: tuple[float, int] | None = field(init=False, default=None)  # when it ends, its job

    def __post_init__(self) -> None:
        # Each event asks for the order anew, and most of it has not changed since.
        self.compute = functools.cache(self.machine.compute)
        self.progress = [_Progress(job, job.way, job.suffix) for job in self.jobs]
        self.loading = [0.0 for _ in self.machine.channels]
        self.landing = [None for _ in self.machine.channels]

    def run(self) -> BatchOutcome:
        """All events until the last first token."""
        while any(math.isnan(one.done) for one in self.progress):
            if self.step is None:
                self._compute()
            for channel, landing in enumerate(self.landing):
                if landing is None:
                    self._load(channel)
            self._wait()
        served = tuple(
            ServedJob(one.done - one.job.arrival, one.head - one.kept, one.tail + one.kept)
            for one in self.progress
        )
        end = max(one.done for one in self.progress)
        for channel, landing in enumerate(self.landing):
            if landing:  # a piece that was overtaken
                self.loading[channel] -= landing[0] - end
        return BatchOutcome(served, end, self.computing, tuple(self.loading))

    def _wait(self) -> None:
        """On to what happens next."""
        times = [self.step[0]] if self.step else []
        times += [landing[0] for landing in self.landing if landing]
        for one in self.progress:
            if math.isnan(one.done):
                job = one.job
                asked = job.arrival + self.machine.channels[job.channel].latency
                later = (job.arrival, asked, job.arrival + job.patience)
                times += [time for time in later if self.now < time < math.inf]
        self.now = min(times)
        if self.step and self.step[0] <= self.now:
            one = self.progress[self.step[1]]
            self.step = None
            if not one.suffix and not one.missing:
                one.done = self.now
        for channel, landing in enumerate(self.landing):
            if landing and landing[0] <= self.now:
                self.progress[landing[1]].flying = 0
                self.landing[channel] = None

    def _compute(self) -> None:
        """The next chunk: of the first request that has anything to compute."""
        limit = math.inf  # seconds until a request that comes before can go on
        for number, one in enumerate(self.progress):
            if one.job.arrival > self.now or not math.isnan(one.done):
                continue
            if math.isinf(limit):
                self._plan(one)
            tokens = self._within(one, self._head(one), limit)
            prefix = one.head
            if tokens:
                one.head += tokens
                self._overtake(one)
            elif one.missing:
                limit = min(limit, self._fetch(one)(one.missing))
                continue
            # All of the gap is there or in this step: the suffix goes with it, as far as it fits.
            suffix = 0
            if not one.missing and (not one.tail or not tokens):
                suffix = min(one.suffix, self.machine.chunk - tokens)
                one.suffix -= suffix
                if not tokens:
                    prefix = one.job.gap + one.job.suffix - one.suffix - suffix
            seconds = self.compute(prefix, tokens + suffix)
            self.computing += seconds
            self.step = self.now + seconds, number
            return

    def _head(self, one: _Progress) -> int:
        """Tokens of its gap that the next chunk computes; 0: none."""
        job, machine = one.job, self.machine
        if one.way is PrefixWay.LOAD and not one.given_up:
            if self.now < job.arrival + job.patience:
                return 0
            one.given_up = True
            # It was loaded head first, so that what has landed is what computing goes on from.
            one.head = one.kept = one.tail - one.flying
            one.tail = one.flying = 0
        if not one.missing:
            return 0
        if one.way is not PrefixWay.TOKENS or machine.greedy:
            return min(one.missing, machine.chunk)
        tokens = head_tokens(
            one.head,
            one.missing,
            compute=self.compute,
            fetch=self._fetch(one),
            page=machine.page,
        )
        return min(tokens, machine.chunk)

    def _plan(self, one: _Progress) -> None:
        """Computing alone, the suffix in the same step, may be sooner: then nothing is loaded.

        Asked for the request that is next. Of the others nothing is given up yet: what their
        channel does for those before them is not known well enough.
        """
        if one.way is not PrefixWay.TOKENS or self.machine.greedy or not one.missing:
            return
        if alone_is_sooner(
            one.head,
            one.missing,
            one.job.gap,
            one.suffix,
            compute=self.compute,
            fetch=self._fetch(one),
            page=self.machine.page,
        ):
            one.way = PrefixWay.RECOMPUTE
            one.tail = one.flying = 0

    def _within(self, one: _Progress, tokens: int, limit: float) -> int:
        """How many of these tokens of a head delay no request that comes before."""
        if not tokens or one.way is not PrefixWay.TOKENS or self.machine.greedy:
            return tokens
        return tokens_within(one.head, tokens, limit, compute=self.compute, page=self.machine.page)

    def _overtake(self, one: _Progress) -> None:
        """A piece of which a chunk computes a part is not waited for: it arrives for nothing."""
        if one.left < 0:
            one.tail -= one.flying
            one.flying = 0

    def _fetch(self, one: _Progress) -> Fetch:
        """Seconds until a channel has loaded so many more for this request."""
        channel = self.machine.channels[one.job.channel]
        if channel.rate == 0.0:
            return lambda tokens: math.inf
        landing = self.landing[one.job.channel]
        lands = landing[0] - self.now if landing else 0.0
        before = self._before(one, lands)
        return lambda tokens: (
            lands if tokens <= one.flying else before + (tokens - one.flying) / channel.rate
        )

    def _before(self, one: _Progress, lands: float) -> float:
        """Seconds until its channel serves this request: behind those that come first."""
        channel = self.machine.channels[one.job.channel]
        before = max(lands, one.job.arrival + channel.latency - self.now)
        for other in self._order(one.job.channel):
            if other is one:
                break
            # By the largest remaining recompute it is served until it has no more than this one.
            ahead = other.left
            if self.machine.order is IoOrder.LARGEST:
                ahead -= one.left
            before += max(ahead, 0) / channel.rate
        return before

    def _order(self, channel: int) -> list[_Progress]:
        """Requests of a channel that it could load for now, in their order."""
        latency = self.machine.channels[channel].latency
        waiting = [
            one
            for one in self.progress
            if one.loads and one.job.channel == channel and one.job.arrival + latency <= self.now
        ]
        if self.machine.order is IoOrder.IN_TURN or len(waiting) < 2:
            return waiting
        rate = self.machine.channels[channel].rate
        pending = [
            Pending(
                self.compute(one.head, one.left),
                one.left / rate if rate else math.inf,
                one.job.deadline - self.now,
            )
            for one in waiting
        ]
        return [waiting[index] for index in io_order(pending)]

    def _load(self, channel: int) -> None:
        """The next piece of a channel that is free."""
        rate = self.machine.channels[channel].rate
        if rate == 0.0:
            return
        for one in self._order(channel)[:1]:
            tokens = min(self.machine.piece, one.left)
            one.tail += tokens
            one.flying += tokens
            seconds = tokens / rate
            self.loading[channel] += seconds
            self.landing[channel] = self.now + seconds, self.progress.index(one)

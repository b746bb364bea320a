"""What streams ask of the engine's time and memory, for the demand test of `admission`.

Producing n tokens from length l costs T / M * (n * l + n^2 / 2), with T / M as in `supply`; with
drafts also n times what their rows take.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State
from tokenflow_sgl.contract.lengths import LengthCurves
from tokenflow_sgl.contract.needs import shared_once
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.supply import Supply
from tokenflow_sgl.policy.urgency import leeway, tolerated

FINAL_SHARE = 0.6
"""Share of the output still to come that a stream holds on average until the others end."""
WORST_MORE = 1.3
"""Share of the time that may be promised where answers are as long as they can be, over `eta`."""
STOCKING = 0.1
"""Share of its reading time that a stream's stock should have grown to, while it is small."""


class Asking:
    """The members and the candidates after them, and what they ask for.

    A stream that thinks can be a candidate although it has begun: then it holds memory already.

    Args:
        state: As it is.
        config: Parameters of the policy.
        members, candidates: See below.
        worst: The lengths to reckon with, and then more of the time may be promised; None: careful
            ones.

    Attributes:
        members, candidates: Their indices in the state.
        eta: Share of the engine's time that may be promised to all of them.
        new: Which of the candidates wait for their prefills.
        start: Where the candidates begin in what follows, of shape (n,).
        index: Of each stream in the state.
        holds: Which of them have memory: mostly none but the members.
        length: Context in tokens.
        own: Of it, what each takes memory for by itself.
    """

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        members: IntArray,
        candidates: IntArray,
        *,
        worst: LengthCurves | None = None,
    ) -> None:
        streams = state.streams
        self._state, self._thinking_rate = state, config.thinking_rate
        self.members, self.candidates, self.start = members, candidates, len(members)
        self.index = index = np.concatenate([members, candidates])
        self.new: BoolArray = streams.waiting.take(candidates)
        self.holds: slice | BoolArray = slice(self.start)
        if len(streams.begun_thinking):
            self.holds = np.concatenate([np.ones(len(members), dtype=np.bool_), ~self.new])
        self._generated = streams.generated.take(index)
        self._limit = streams.limit.take(index)
        curves = streams.lengths.careful if worst is None else worst
        self.eta = config.eta * (1.0 if worst is None else WORST_MORE)
        self._answers = curves.remaining(streams.kind.take(index), self._generated, self._limit)
        self.length = self.own = streams.length.take(index)
        if streams.shared is not None:
            self.own = streams.own.take(index)
        self._leeway = leeway(state).take(index)
        self._rate: FloatArray = streams.rate.take(index)
        self._seen = self._generated
        if streams.visible is not None:
            self._seen = streams.visible.take(index)

    @cached_property
    def final(self) -> FloatArray:
        """Own KV in tokens that each will have come to hold, on average until the others end."""
        return np.asarray(self.own + FINAL_SHARE * self._answers.left)

    @property
    def reach(self) -> FloatArray:
        """Context in tokens that each will have come to, likewise."""
        if self.own is self.length:
            return self.final
        return np.asarray(self.length + FINAL_SHARE * self._answers.left)

    @cached_property
    def shared(self) -> int:
        """KV tokens on the device that several of them share, once."""
        return shared_once(self._state.memory, self._state.streams)

    def within(self, tokens: int) -> int:
        """How many candidates, in order, come to hold no more than `tokens` with the members."""
        tokens -= self.shared
        start, own, final = self.start, self.own, self.final
        # Not even what the streams hold now may be more.
        left = tokens - max(int(own[:start].sum()), int(final[:start].sum()))
        return int(final[start:].cumsum().searchsorted(left, side="right"))

    @property
    def crowd(self) -> FloatArray:
        """What all come to hold if 0, 1, 2, ... candidates join, over the device's memory."""
        start, final = self.start, self.final
        held = np.array([float(final[:start].sum()) + self.shared])
        with_each = np.concatenate([held, held + final[start:].cumsum()])
        return np.asarray(with_each / max(self._state.memory.kv.total, 1))

    @property
    def mean_length(self) -> float:
        """Mean context of all streams that have memory, or of the candidates while none has."""
        return self._mean(self.length)

    @property
    def mean_own(self) -> float:
        """Mean KV that each of these takes, its part of what they share included."""
        if self.own is self.length:
            return self.mean_length
        mean = self._mean(self.own)
        return mean + self.shared / max(int(self.own[self.holds].size), 1)

    def _mean(self, tokens: IntArray) -> float:
        chosen = tokens[self.holds]
        if not len(chosen):
            chosen = tokens
        return float(chosen.sum()) / len(chosen)

    @property
    def promised(self) -> float:
        """KV tokens that the streams with memory will have come to hold."""
        return float(self.final[self.holds].sum()) + self.shared

    @property
    def growth(self) -> float:
        """KV tokens of `promised` that they do not hold yet."""
        return float(FINAL_SHARE * self._answers.left[self.holds].sum())

    @property
    def spread(self) -> float:
        """Standard deviation of the tokens that the streams with memory together still get."""
        return math.sqrt(self._answers.variance[self.holds].sum())

    @property
    def most_spread(self) -> float:
        """Bound of it, much cheaper: of answers that end now or at their limits (Popoviciu)."""
        left = (self._limit - self._generated)[self.holds]
        return math.sqrt((left * left).sum()) / 2.0

    def dry_share(self, speed: float) -> float:
        """Share of the started streams whose readers mind a stall.

        A stream whose text so far the front end holds back has not started: no speed helps it.

        speed: Tokens per second that the engine can give to one; faster readers do not count.
        """
        start = self.start
        started = self._seen[:start] > 0
        if (first_text := self._state.streams.first_text) is not None:
            started &= ~np.isnan(first_text.take(self.members))
        dry = started & (self._leeway[:start] < 0.0)
        if not dry.any():
            return 0.0
        kept = self._rate[:start] < speed
        kept &= self._state.streams.streaming.take(self.members)
        started &= kept
        dry &= kept
        return int(np.count_nonzero(dry)) / max(int(np.count_nonzero(started)), 1)

    def few(self, most: int) -> int:
        """How many candidates, in order, leave at most so many streams that decode."""
        decode = np.cumsum(self._limit > 1.0)
        return int(np.searchsorted(decode[self.start :], most, side="right"))

    def demand(self, horizons: FloatArray | float, supply: Supply, stock: float) -> FloatArray:
        """Engine seconds that each asks for within each horizon, shape ([len(horizons),] n).

        By then a stream should have `stock` seconds unread, or a tenth of what was read, if less.
        One that thinks asks for `thinking_rate` tokens per second, and has no stock.

        horizons: Seconds; a column of several, or one.
        """
        streams = self._state.streams
        late = tolerated(streams, self.index, self._leeway)
        ahead = np.where(self._generated == 0, late, np.maximum(self._leeway, 0.0))
        rate = self._rate
        kept: FloatArray | float = stock
        if streams.thinking is not None:
            thinks = streams.thinking.take(self.index)
            rate = np.where(thinks, self._thinking_rate, rate)
            kept = np.where(thinks, 0.0, stock)
        tokens = horizons - ahead
        if stock:
            tokens += np.minimum(STOCKING * (horizons + self._seen / rate), kept)
        tokens *= rate
        np.maximum(tokens, 0.0, out=tokens)
        np.minimum(tokens, horizons * supply.speed, out=tokens)
        read: FloatArray = np.asarray(self.length + supply.row, dtype=np.float64)
        work = self._answers.work(read, tokens)
        work *= supply.token_cost
        return work

    def held(self, horizons: FloatArray, supply: Supply, decoding: float) -> FloatArray:
        """KV tokens that each will be promised by then if it has not ended, shape (horizons, n).

        On average. What has not ended has got longer, and so has what it is expected to come to.

        horizons: Seconds, as a column. decoding: share of the time in which each is in memory.
        """
        tokens = np.maximum(horizons - np.maximum(self._leeway, 0.0), 0.0) * self._rate
        np.maximum(tokens, horizons * (decoding * supply.speed), out=tokens)
        np.minimum(tokens, horizons * supply.speed, out=tokens)
        answers = self._answers
        held = (self.own + tokens) * answers.alive(tokens)
        return np.asarray(held + FINAL_SHARE * (answers.left - answers.coming(tokens)))

"""How a trace is replayed: one frozen record, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.choices import Api, Sessions
from tokenflow_sgl.errors import FailedError, InputError, StoppedError


class ReplayError(InputError):
    """A replay cannot start or go on; the message is a sentence that says why."""


class StoppedReplayError(ReplayError, StoppedError):
    """The replay was stopped before anything was measured."""


class TargetError(ReplayError, FailedError):
    """The server cannot be reached, refuses this client or fails; the input is not at fault."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay. Times are seconds of the trace's clock.

    Attributes:
        name: Label of the run; None: the trace's name.
        api: The endpoint.
        sessions: When later turns of a session are sent.
        seed: Seed of the prompts, >= 0.
        token_ids: Prompts are drawn from this half-open range of token ids; None: the middle
            80 % of the server's vocabulary. Chat has no use for it.
        send_rates: Tell the server each reader's rate, or class where the trace names one.
        send_priority: Tell the server the priorities of the trace.
        warm_up_requests: The first so many requests of the trace are flagged as warm-up.
        warm_up_s: Requests due within so many seconds are flagged as warm-up.
        warm_up_burst: So many additional requests are sent, and answered, before the clock starts.
        known_lengths: The limit that the server is told is the answer's length, so it knows when
            each answer ends. Else it is the client's (`client_limits`), and answers end by
            themselves: on an emulated device at the trace's lengths, on a real one where its model
            ends them.
        ignore_eos: Tell the server to generate the full length whatever the model says; only with
            known lengths, for every answer would go on to its limit.
        temperature: Sampling temperature; 0 is greedy, which makes answers repeatable.
        timeout_s: A stream that brings nothing for so long is given up.
        concurrency: So many requests are under way at any time, whenever the trace has them arrive:
            the next one is due when one ends; None: they are due at their arrival.
    """

    name: str | None = None
    api: Api = Api.generate
    sessions: Sessions = Sessions.closed
    seed: int = 0
    token_ids: tuple[int, int] | None = None
    send_rates: bool = True
    send_priority: bool = False
    warm_up_requests: int = 0
    warm_up_s: float = 0.0
    warm_up_burst: int = 0
    known_lengths: bool = False
    ignore_eos: bool = False
    temperature: float = 0.0
    timeout_s: float = 600.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "warm_up_requests", "warm_up_burst"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 0):
                _refuse(name, value, "a whole number of at least 0")
        if self.concurrency is not None and self.concurrency < 1:
            _refuse("concurrency", self.concurrency, "a whole number of at least 1")
        for name in ("warm_up_s", "temperature"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                _refuse(name, value, "a number of at least 0")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            _refuse("timeout_s", self.timeout_s, "a number of seconds above 0")
        if self.ignore_eos and not self.known_lengths:
            _refuse(
                "ignore_eos",
                "given without known_lengths (--known-lengths)",
                "both, or none: without known lengths every answer would go on to its client's "
                "limit instead of its length",
            )
        if self.token_ids is not None:
            low, high = self.token_ids
            if not 0 <= low < high:
                _refuse("token_ids", f"{low}:{high}", "LO:HI with 0 <= LO < HI")

    def describe(self) -> dict[str, Any]:
        """The options as plain values, for `RunInfo.options`."""
        return dataclasses.asdict(self)


def _refuse(name: str, value: object, allowed: str) -> None:
    raise ReplayError(f"{name} is {value}; allowed is {allowed}")

"""What is known of each live stream beside its phase and its reader: numpy columns by slot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.qos import ReaderBank
from tokenflow_sgl.qos.classes import OBJECTIVES, QosClass

R = TypeVar("R")

_COLUMNS: dict[str, type[np.generic]] = {
    "prompt": np.int64,
    "generated": np.int64,
    "limit": np.int64,
    "kind": np.int64,
    "preemptible": np.bool_,
    "streaming": np.bool_,
    "thinking": np.bool_,
    "begun": np.bool_,
    "text_known": np.bool_,
    "reasoning": np.int64,
    "passed_on": np.int64,
    "counted": np.int64,
    "past_held": np.int64,
    "on_host": np.int64,
    "written": np.int64,
    "class_number": np.int64,
    "last_token": np.float64,
    "weight": np.float64,
    "tolerance": np.float64,
    "ttft_slo": np.float64,
    "tbt_slo": np.float64,
    "tpot_slo": np.float64,
    "deadline": np.float64,
    "priority": np.float64,
    "rests_since": np.float64,
    "rested": np.float64,
    "awaited_since": np.float64,
    "expected_wait": np.float64,
    "tenant": np.int64,
    "tenant_weight": np.float64,
}


SETTLED = ("prompt", "limit", "kind", "streaming", "weight", "tolerance", "priority", *OBJECTIVES)
"""Columns that a state has as they are."""
NEUTRAL = {
    **{"weight": 1.0, "tolerance": 0.0, "priority": 0.0},
    **dict.fromkeys(OBJECTIVES, math.nan),
}
"""What classes and requests have that say nothing: where all have it, a state has no column."""


def unless(column: NDArray[np.float64], neutral: float) -> NDArray[np.float64] | None:
    """The column, or None if it says of every stream what is understood."""
    same = np.isnan(column) if math.isnan(neutral) else column == neutral
    return None if bool(same.all()) else column


def shown_priorities(priority: NDArray[np.int64]) -> NDArray[np.float64]:
    """Priorities as policies see them; 0 for all where they are all alike.

    Args:
        priority: Larger is more urgent; one that is not stated is the least.
    """
    if (priority == priority[:1]).all():
        return np.zeros(len(priority))
    return priority.astype(np.float64)


ALL = np.iinfo(np.int64).max
"""Of `passed_on`: nothing is held back."""


class StreamColumns:
    """The columns of a `StreamTable`, by slot."""

    prompt: NDArray[np.int64]
    generated: NDArray[np.int64]
    """Output tokens made; what of them was sent is `readers.delivered`."""
    limit: NDArray[np.int64]
    kind: NDArray[np.int64]
    """What the length predictor calls the answer's kind."""
    preemptible: NDArray[np.bool_]
    """False for requests that may never leave their batch."""
    streaming: NDArray[np.bool_]
    """A reader follows the text as it is made; otherwise it is sent as a whole at its end."""
    thinking: NDArray[np.bool_]
    """It begins with reasoning that its reader does not see, and has no other token yet."""
    begun: NDArray[np.bool_]
    """Its first token was sent, whether its reader sees it or not."""
    text_known: NDArray[np.bool_]
    """When its reader got its first text has been told."""
    past_held: NDArray[np.int64]
    """At the last look the front end would have had to say so if it held its first text back."""
    reasoning: NDArray[np.int64]
    """Leading output tokens that its reader does not see."""
    passed_on: NDArray[np.int64]
    """Of what was sent: tokens whose text the front end has passed on, the others are held back."""
    counted: NDArray[np.int64]
    """Tokens that were reported as delivered: some may be taken back, and are delivered again."""
    on_host: NDArray[np.int64]
    """Tokens of a running stream that the prefix tree has, and the host with it."""
    written: NDArray[np.int64]
    """Of these, tokens copied while it ran, since it was resumed."""
    class_number: NDArray[np.int64]
    """Index of the stream's rate class in `class_names`."""
    rests_since: NDArray[np.float64]
    """When its reader looked away; only while it rests."""
    rested: NDArray[np.float64]
    """Seconds for which it has rested, as they count, without the present rest."""
    awaited_since: NDArray[np.float64]
    """Since when something has waited for its end; infinite: nothing does."""
    expected_wait: NDArray[np.float64]
    """Seconds to its first token that were expected when it came."""
    last_token: NDArray[np.float64]
    """When the last token was delivered; NaN before the first."""
    weight: NDArray[np.float64]
    """Its claim relative to other streams."""
    tolerance: NDArray[np.float64]
    """Seconds of waiting for text that its reader does not mind."""
    priority: NDArray[np.float64]
    """Whole numbers, larger is more urgent."""
    tenant: NDArray[np.int64]
    """Number of who asks; 0 where tenants are not told apart."""
    tenant_weight: NDArray[np.float64]
    """Of that one."""
    ttft_slo: NDArray[np.float64]
    tbt_slo: NDArray[np.float64]
    tpot_slo: NDArray[np.float64]
    deadline: NDArray[np.float64]
    """Its objectives, seconds; NaN: it has no such one."""

    def ask(self, slot: int, asked: QosClass) -> None:
        """The objectives of a stream that has just been tracked are those of this class."""
        for name in OBJECTIVES:
            value = getattr(asked, name)
            getattr(self, name)[slot] = math.nan if value is None else value

    def grow_columns(self, capacity: int, old: int) -> None:
        """Make place for so many slots; the first `old` of them keep what they hold."""
        for name, dtype in _COLUMNS.items():
            column = np.zeros(capacity, dtype=dtype)
            if old:
                column[:old] = getattr(self, name)
            setattr(self, name, column)

    def blank(self, slot: int) -> None:
        """A new stream: it has made nothing yet."""
        self.preemptible[slot] = True
        self.begun[slot] = self.text_known[slot] = False
        self.generated[slot] = self.reasoning[slot] = self.past_held[slot] = 0
        self.on_host[slot] = self.written[slot] = 0
        self.passed_on[slot], self.counted[slot] = ALL, 0
        self.last_token[slot], self.rested[slot] = math.nan, 0.0
        self.expected_wait[slot] = 0.0
        self.ttft_slo[slot] = self.tbt_slo[slot] = self.tpot_slo[slot] = math.nan
        self.deadline[slot] = math.nan

    def look(
        self,
        requests: Sequence[R],
        slots: NDArray[np.int64],
        made: NDArray[np.int64],
        reasoning_of: Callable[[R, int], int] | None,
        readers: ReaderBank,
    ) -> NDArray[np.int64]:
        """How many new tokens are reasoning, shape (n,); asked only of streams that think.

        Args:
            requests: That may have made tokens.
            slots: Of each, shape (n,).
            made: Tokens of each, `generated` of them at the last look.
            reasoning_of: See `StreamTable`.
            readers: Are told how much there will be to read, once a stream has stopped to think.
        """
        reasoned = np.zeros(len(slots), dtype=np.int64)
        thinking = self.thinking.take(slots)
        if reasoning_of is None or not thinking.any():
            return reasoned
        new = made > self.generated.take(slots)
        for place in np.nonzero(thinking & new)[0].tolist():
            slot = int(slots[place])
            tokens = reasoning_of(requests[place], int(self.generated[slot]))
            # Less than before if what looked like the beginning of reasoning was none.
            reasoned[place] = max(tokens - self.reasoning[slot], 0)
            self.reasoning[slot] = tokens
            if tokens < made[place]:
                self.thinking[slot] = False
                # The answer's expected length counted all of it.
                whole = int(readers.expected_tokens[slot])
                readers.expected_tokens[slot] = max(whole - tokens, 1)
        return reasoned

"""What a request has made and sent so far, and what of it one iteration delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.qos import Delivery


class Generating(Protocol):
    """A request, as far as this table looks into it."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Ids of the output tokens that a request has so far."""
        ...

    @property
    def send_token_offset(self) -> int:
        """How many of them were handed to the front end."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """What one iteration delivered: to which slots, how many tokens, what their readers met.

    new: of these tokens, those that were not delivered before and taken back.
    gaps: seconds since the slot's last token; NaN where this is the first delivery.
    produced: tokens that the engine made, delivered or not; also what it makes anew: it drops the
    answer to a prompt of embeddings that it retracts.
    begun: whether this brought the stream's first token, reasoning included.
    reasoned: tokens of reasoning that were made: no reader sees them.
    """

    slots: NDArray[np.int64]
    counts: NDArray[np.int64]
    new: NDArray[np.int64]
    delivery: Delivery
    gaps: NDArray[np.float64]
    produced: int
    begun: NDArray[np.bool_]
    reasoned: NDArray[np.int64]

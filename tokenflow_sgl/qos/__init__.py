"""Quality of a token stream as its reader experiences it: stalls, buffers, weights, QoS.

Live, for the scheduler: `ReaderBank`. After the fact: `evaluate_stream`, then `evaluate_run`. Both
follow one reader model (`consumed_at` draws it) and one pair of weights (`token_weight`,
`effective_weight`). Needs numpy only.
"""

from __future__ import annotations

from tokenflow_sgl.qos.playback import NOTICEABLE_STALL, Playback, consumed_at, noticed, play
from tokenflow_sgl.qos.reader import Delivery, ReaderBank
from tokenflow_sgl.qos.reader_changes import change_rate, take_back
from tokenflow_sgl.qos.run_qos import RunQoS, evaluate_run
from tokenflow_sgl.qos.stream_qos import StreamQoS, evaluate_stream
from tokenflow_sgl.qos.summary import Summary
from tokenflow_sgl.qos.weights import effective_weight, token_weight

__all__ = [
    "NOTICEABLE_STALL",
    "Delivery",
    "Playback",
    "ReaderBank",
    "RunQoS",
    "StreamQoS",
    "Summary",
    "change_rate",
    "consumed_at",
    "effective_weight",
    "evaluate_run",
    "evaluate_stream",
    "noticed",
    "play",
    "take_back",
    "token_weight",
]

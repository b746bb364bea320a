"""What happens to a reader beside deliveries: its rate changes, or text did not reach it after all.

O(1), on one slot of a `ReaderBank`.
"""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.qos.checks import positive
from tokenflow_sgl.qos.playback import noticed
from tokenflow_sgl.qos.reader import ReaderBank


def change_rate(bank: ReaderBank, slot: int, rate: float, now: float) -> None:
    """From `now` on the slot's reader reads at another rate; nothing happens if it is closed.

    What it has not read it reads at the new rate. For a reader that rests a stall is over: the next
    `deliver` reports it as it was until then, with or without a token. One that rested before its
    first token waits for it since it is back.

    Args:
        bank: With the reader.
        slot: Its index.
        rate: Tokens/s; 0: it rests until it is given a rate again.
        now: Time in seconds, as in `ReaderBank.deliver`.

    Raises:
        ValueError: A rate that is none.
    """
    if rate != 0.0:
        positive("rate", rate)
    if not (0 <= slot < bank.capacity and bank.is_open[slot]):
        return
    now = bank.at(now)
    started, rested = bool(bank.started[slot]), bool(bank.resting[slot])
    ahead = float(bank.next_due[slot]) - now if started and not rested else 0.0
    unread = float(bank.unread[slot]) if rested else max(ahead, 0.0) * float(bank.rate[slot])
    if rate == 0.0:
        if ahead < 0.0:
            bank.stall_seconds[slot] -= ahead
            bank.stall_count[slot] += bool(noticed(np.array(-ahead), bank.threshold[slot]))
            bank.given_up[slot] -= ahead
        bank.resting[slot], bank.unread[slot], bank.next_due[slot] = True, unread, math.inf
        return
    if not started:
        if rested:
            bank.arrival[slot] = now
        bank.next_due[slot] = bank.arrival[slot]
    elif rested or unread > 0.0:
        bank.next_due[slot] = now + unread / rate
    bank.resting[slot], bank.unread[slot], bank.rate[slot] = False, 0.0, rate


def take_back(bank: ReaderBank, slot: int, tokens: int, now: float) -> None:
    """The last `tokens` have not reached the reader after all: they are still to come.

    Args:
        bank: With the reader.
        slot: Its index.
        tokens: At most what was delivered. Without any token left it has not started.
        now: Time in seconds, as in `ReaderBank.deliver`. A reader that was believed to read them
            has stalled since it had read the others.
    """
    if tokens <= 0 or not (0 <= slot < bank.capacity and bank.is_open[slot]):
        return
    bank.at(now)
    bank.delivered[slot] -= tokens
    if bank.resting[slot]:
        bank.unread[slot] = max(bank.unread[slot] - tokens, 0.0)
    else:
        bank.next_due[slot] -= tokens / bank.rate[slot]
    if not bank.delivered[slot]:
        bank.started[slot], bank.first_token[slot] = False, math.nan
        if not bank.resting[slot]:
            bank.next_due[slot] = bank.arrival[slot]

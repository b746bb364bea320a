"""When each stream's reader first got text.

Tokens are delivered one by one, and the front end may hold their text back; the scheduler hears of
it some tokens later (`set_passed_on`), and the reader has not begun after all. So when it began is
known for sure only after a while.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.lifecycle.columns import ALL
from tokenflow_sgl.lifecycle.table import R, StreamTable

HELD = 4
"""Tokens held back from which on the scheduler hears of it: most characters have fewer."""
LOOKS = 5
"""So many looks the front end has to say so; on a busy machine it may stand still for seconds."""


def new_first_texts(table: StreamTable[R]) -> tuple[IntArray, FloatArray]:
    """Streams whose first text is known since the last call; this is called about once a second.

    A text is known when the front end has said so, or has not said that it holds text back while
    the stream had more than `HELD` tokens at `LOOKS` calls.

    Returns:
        Their slots, and seconds from arrival to first text, both of shape (n,).
    """
    slots, readers = table.order(), table.readers
    begun = readers.started.take(slots) & ~table.text_known.take(slots)
    looks = table.past_held.take(slots)
    told = table.passed_on.take(slots) != ALL  # of a reader that has begun: its text is out
    found = slots[begun & (told | (looks >= LOOKS))]
    table.past_held[slots] = np.where(begun & (readers.delivered.take(slots) > HELD), looks + 1, 0)
    table.text_known[found] = True
    return found, readers.first_token.take(found) - readers.arrival.take(found)


def last_first_text(table: StreamTable[R], request: R) -> float | None:
    """When the first text of a stream came that is about to be forgotten, if not known yet.

    Args:
        table: With the stream.
        request: The stream.

    Returns:
        Seconds from arrival to first text; None: it was known, or there is none.
    """
    slot, readers = table.slot(request), table.readers
    if table.text_known[slot] or not readers.started[slot]:
        return None
    return float(readers.first_token[slot]) - float(readers.arrival[slot])

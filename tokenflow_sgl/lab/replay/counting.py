"""Says of a replay how its tokens were counted, and whether that is good enough for its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenflow_sgl.lab.replay.records import Record

MAX_UNCOUNTED = 0.01
"""A run is invalid if of a larger share of its answers it is not known how many tokens came."""


@dataclass(frozen=True, slots=True)
class Counting:
    """Sentences on how the tokens were counted: `notes` explain, `invalid` are reasons."""

    notes: tuple[str, ...]
    invalid: tuple[str, ...]


def how_counted(records: Sequence[Record]) -> Counting:
    """Look at all answers that brought text.

    A server that never says how many tokens a chunk has may send one or many: rates, the times
    between tokens and stalls depend on it. Where its other answers show that it sends one per
    chunk, those that were cut off before their count came have one per chunk as well.
    """
    sent = [record.stream.answer for record in records if record.stream is not None]
    answers = [answer for answer in sent if answer.tokens]
    notes, invalid = [], []
    shared = [answer for answer in answers if answer.shared]
    chunks = sum(answer.shared for answer in shared)
    tokens = sum(answer.shared_tokens for answer in shared)
    if shared:
        notes.append(
            f"In {len(shared):,} of {len(answers):,} answers the server said how many tokens came "
            f"only after several chunks: {tokens:,} tokens were shared among {chunks:,} chunks by "
            "their text. First tokens, ends and rates of whole answers are exact; how many tokens "
            "a single chunk has is not."
        )
    guessed = [answer for answer in answers if answer.uncounted]
    if guessed:
        unknown = sum(len(answer.uncounted) for answer in guessed)
        text = (
            f"The server did not say how many tokens {len(guessed):,} of {len(answers):,} answers "
            f"have: each of their {unknown:,} chunks was counted as one"
        )
        if shared and tokens == chunks:
            notes.append(f"{text}, as in its other answers each chunk had one.")
        elif len(guessed) <= MAX_UNCOUNTED * len(answers):
            notes.append(f"{text}, though it may have several.")
        else:
            invalid.append(
                f"{text}, though it may have several: rates, times between tokens and stalls "
                "cannot be known. Next: replay with another --api, or have the server send usage "
                "(stream_options.include_usage, continuous_usage_stats)."
            )
    hidden = [answer for answer in answers if answer.unstreamed]
    if hidden:
        count = sum(answer.unstreamed for answer in hidden)
        notes.append(
            f"In {len(hidden):,} of {len(answers):,} answers the server counts {count:,} tokens of "
            "reasoning that it did not stream: they did not arrive, and no figure counts them."
        )
    return Counting(tuple(notes), tuple(invalid))

"""What the front end tells the scheduler of streams that are being served.

SGLang's messages between its processes are of fixed types. The one with numbers that an operator
may set while the server runs carries ours, too: under names of our own, each with the request's id
behind it. So one message can speak of many streams, and SGLang answers every message. The answer's
id, which SGLang leaves empty, has a digit for each name, see `Heard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sglang.srt.managers.io_struct import (
    FlushCacheReqInput,
    SetInternalStateReq,
    SetInternalStateReqOutput,
)

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.shared_clock import device_time
from tokenflow_sgl.lifecycle.reader_updates import set_passed_on, set_rate, set_weight
from tokenflow_sgl.lifecycle.rest_ends import await_ends, no_longer_awaited
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.qos.classes import LEAST_WEIGHT, MOST_WEIGHT
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

PREFIX = "tokenflow_"
RATE = "tokenflow_rate:"
WEIGHT = "tokenflow_weight:"
PASSED_ON = "tokenflow_passed_on:"
KNOWN = "tokenflow_known:"
ALONE = "tokenflow_alone:"
AWAITED = "tokenflow_awaited:"
ALL = -1
"""Instead of a number of tokens: the front end holds nothing back."""
LONGEST_FLUSH = 1e9
"""Seconds: what may give up has had its way when no stream is left; what may not waits on."""
MOST_TOKENS = 1 << 40
"""More than any answer has, and less than what a column holds."""


class Heard(StrEnum):
    """What a scheduler says to each name of a message."""

    NO = "0"
    YES = "1"
    RESTED = "2"
    """It knows the stream, which has rested for as long as it may."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A wait for streams to end.

    Attributes:
        name: Any that no other wait has; no colon in it.
        adapter: It waits for the streams that use this adapter; "": for all.
    """

    name: str
    adapter: str = ""

    def __str__(self) -> str:
        """The wait as it stands in a message: NAME:ADAPTER."""
        return f"{self.name}:{self.adapter}"


@dataclass(frozen=True, slots=True)
class StreamChange:
    """What is different about a stream from now on; None: it stays as it is.

    Attributes:
        rate: Tokens/s that its reader reads; 0: nothing.
        weight: Its claim relative to other streams.
    """

    rate: float | None = None
    weight: float | None = None

    def then(self, later: StreamChange) -> StreamChange:
        """This change and a later one as one change."""
        return StreamChange(
            self.rate if later.rate is None else later.rate,
            self.weight if later.weight is None else later.weight,
        )


def changes_message(changes: Mapping[str, StreamChange]) -> SetInternalStateReq:
    """What is to change, by request id."""
    said = {RATE + rid: change.rate for rid, change in changes.items()}
    said |= {WEIGHT + rid: change.weight for rid, change in changes.items()}
    return SetInternalStateReq(
        server_args={name: value for name, value in said.items() if value is not None}
    )


def passed_on_message(passed_on: Mapping[str, int | None]) -> SetInternalStateReq:
    """The message of output tokens whose text was passed on, by request id; None: all that come."""
    return SetInternalStateReq(
        server_args={
            PASSED_ON + rid: ALL if tokens is None else tokens for rid, tokens in passed_on.items()
        }
    )


def awaited_message(waits: Mapping[Awaited, bool]) -> SetInternalStateReq:
    """Waits for streams to end: whether each goes on, or is over."""
    return SetInternalStateReq(
        server_args={f"{AWAITED}{wait}": int(goes_on) for wait, goes_on in waits.items()}
    )


def alone_message(rid: str) -> SetInternalStateReq:
    """Asks whether the stream is known, and whether no other request's id begins like its own."""
    return SetInternalStateReq(server_args={KNOWN + rid: 1, ALONE + rid: 1})


def is_ours(message: SetInternalStateReq) -> bool:
    """Whether it speaks of streams."""
    return any(name.startswith(PREFIX) for name in message.server_args)


def flush_waits(messages: Iterable[Any], table: StreamTable[Any], now: float) -> None:
    """Note that a flush of SGLang's waits for all streams, if one of the messages does.

    Ranks see its end by their own clocks, and rests by the shared one: until its time is over, or
    no stream is left.
    """
    for each in messages:
        if isinstance(each, FlushCacheReqInput) and (each.timeout_s or 0.0) > 0.0:
            until = now + min(device_time(each.timeout_s), LONGEST_FLUSH)
            await_ends(table, f"flush until {until}", now, until=until)


def take(
    message: SetInternalStateReq,
    live: Mapping[str, Any],
    compiling: Sequence[Any],
    table: StreamTable[Any],
    now: float,
) -> SetInternalStateReqOutput:
    """Note what a message says; the answer: what of it was understood.

    Operators can send such messages, too, so nothing in them is taken on trust.

    Args:
        message: One that `is_ours`.
        live: The tracked requests by their ids.
        compiling: Requests that are not tracked yet, as their grammar is not ready. SGLang's abort
            finds them.
        table: Of the live streams.
        now: Seconds on the table's clock.
    """
    heard = []
    for name, value in message.server_args.items():
        kind, _, rid = name.partition(":")
        kind += ":"
        if kind in (KNOWN, ALONE):
            ids = [*live, *(req.rid for req in compiling)]
            heard.append(Heard.YES if _holds(kind, rid, ids) else Heard.NO)
        elif kind == AWAITED:
            heard.append(_awaited(rid, value, table, now))
        else:
            heard.append(_noted(kind, live.get(rid), value, table, now))
    return SetInternalStateReqOutput(
        updated=all(each is Heard.YES for each in heard), rid="".join(heard)
    )


def _holds(kind: str, rid: str, ids: Sequence[str]) -> bool:
    if kind == KNOWN:
        return rid in ids
    return not any(other != rid and other.startswith(rid) for other in ids)


def _awaited(said: str, value: Any, table: StreamTable[Any], now: float) -> Heard:
    name, _, adapter = said.partition(":")
    if isinstance(value, bool) or value not in (0, 1) or not name:
        return Heard.NO
    if value:
        await_ends(table, name, now, adapter=adapter or None)
    else:
        no_longer_awaited(table, name)
    return Heard.YES


def _noted(kind: str, req: Req | None, value: Any, table: StreamTable[Any], now: float) -> Heard:
    if req is None or isinstance(value, bool) or not isinstance(value, int | float):
        return Heard.NO
    if not req.stream:
        return Heard.NO  # it has no reader
    if kind == RATE and (value == 0 or LOWEST_RATE <= value <= HIGHEST_RATE):
        return Heard.YES if set_rate(table, req, float(value), now) else Heard.RESTED
    if kind == WEIGHT and LEAST_WEIGHT <= value <= MOST_WEIGHT:
        set_weight(table, req, float(value))
    elif kind == PASSED_ON and isinstance(value, int) and ALL <= value <= MOST_TOKENS:
        set_passed_on(table, req, None if value == ALL else value, now)
    else:
        return Heard.NO
    return Heard.YES


def heard_of(
    message: SetInternalStateReq, answers: Sequence[SetInternalStateReqOutput]
) -> dict[str, Heard]:
    """Whether one of the schedulers has the stream, for each that a message changes.

    Args:
        message: What all schedulers were told.
        answers: Theirs.
    """
    heard: dict[str, Heard] = {}
    for name, said in _said(message, answers):
        rid, one = name.partition(":")[2], Heard(max(said))  # of all ranks one has the stream
        before = heard.get(rid, Heard.YES)
        heard[rid] = Heard.NO if Heard.NO in (before, one) else max(before, one)
    return heard


def stands_alone(
    message: SetInternalStateReq, answers: Sequence[SetInternalStateReqOutput]
) -> bool:
    """What an `alone_message` asks: one scheduler has the stream, and none has another like it.

    SGLang's abort goes to all schedulers, so all have to say so, the stream theirs or not.
    """
    known, alone = (said for _, said in _said(message, answers))
    return "1" in known and "0" not in alone


def _said(
    message: SetInternalStateReq, answers: Sequence[SetInternalStateReqOutput]
) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Each name of a message with the digits that the schedulers answered."""
    digits = zip(*(answer.rid for answer in answers), strict=True)
    return zip(message.server_args, digits, strict=True)

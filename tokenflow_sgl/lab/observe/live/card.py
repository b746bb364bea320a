"""What the live page says of one server: a verdict, bars, and figures of the last while."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokenflow_sgl.lab.observe.live.watched_server import Answering, Seen
from tokenflow_sgl.lab.observe.live.words import (
    UNKNOWN,
    brief,
    count,
    figure,
    lasted,
    seconds,
    share,
)
from tokenflow_sgl.lab.observe.look import LEVEL_NAMES, MODES, Look, by_level
from tokenflow_sgl.lab.observe.stream_events import CAUSES

MOST_CLASSES = 12
_STOCK = (
    "Stock SGLang, or a server without metrics of the scheduler: it does not know its readers. "
    "To compare readers, start it with --scheduler tokenflow --tokenflow-policy stock "
    "--tokenflow-hicache off --enable-metrics."
)


class Tone(StrEnum):
    """How good something is; always beside words that say it, too."""

    GOOD = "good"
    WAIT = "wait"
    BAD = "bad"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence on readers, and how good that is."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Bar:
    """A share that is drawn.

    Attributes:
        label: What it is the share of.
        part: From 0 to 1.
        text: The figure beside it.
        tone: Its colour, a level of `look.LEVELS`.
    """

    label: str
    part: float
    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that is shown of one server.

    Attributes:
        name: Host and port.
        verdict: On its readers.
        note: What its scheduler does, or why there are no figures.
        unread: Streams by the length of their unread text.
        classes: Class, P10, P50 and P90 of its unread text.
        memory: How full the device's KV pool and the host's are.
        figures: What is measured, and how much it is.
        span: How long the figures look back, in words.
    """

    name: str
    verdict: Statement
    note: str
    unread: Sequence[Bar] = ()
    classes: Sequence[tuple[str, ...]] = ()
    memory: Sequence[Bar] = ()
    figures: Sequence[tuple[str, str]] = ()
    span: str = ""


def readers(looks: Sequence[Look]) -> Statement:
    """Whether readers of these servers wait.

    Raises:
        ValueError: Their numbers are none.
    """
    stalled, reading, waiting = (
        sum(look.level(f"{name}_streams") for look in looks)
        for name in ("stalled", "reading", "waiting")
    )
    if not math.isfinite(stalled + reading + waiting):
        raise ValueError("streams that are not known")
    if stalled:
        verb = "stalls" if stalled == 1 else "stall"
        whole = count(max(reading, stalled), "reader", "readers")
        return Statement(f"{figure(stalled)} of {whole} {verb}", Tone.BAD)
    if waiting:
        waits = count(waiting, "stream waits", "streams wait")
        return Statement(f"No reader stalls; {waits} for a first token", Tone.WAIT)
    if not reading:
        return Statement("No reader is here", Tone.NONE)
    return Statement(f"No reader waits ({figure(reading)} read)", Tone.GOOD)


def card(seen: Seen) -> Card:
    """What is shown of a server; where its figures make no sense, that they do not."""
    if seen.answering is Answering.SILENT:
        return Card(
            seen.name,
            Statement("Does not answer", Tone.NONE),
            f"{seen.why[:1].upper()}{seen.why[1:]}.",
        )
    if seen.last is None or seen.recent is None:
        return Card(seen.name, Statement("Is being asked", Tone.NONE), "")
    try:
        if seen.answering is Answering.STOCK:
            return _stock(seen.name, seen.recent)
        return _tokenflow(seen.name, seen.last, seen.recent)
    except (ArithmeticError, KeyError, ValueError):
        note = "It has a metrics page, whose figures make no sense. Is that an SGLang server?"
        return Card(seen.name, Statement("Cannot be understood", Tone.NONE), note)


def _stock(name: str, recent: Look) -> Card:
    running, queued = (recent.level(f"sglang:num_{each}_reqs") for each in ("running", "queue"))
    return Card(
        name,
        Statement("Does not know its readers", Tone.NONE),
        _STOCK,
        memory=[_full("device", recent.most("sglang:token_usage"))],
        figures=[
            ("requests", f"{figure(running)} running, {figure(queued)} queued"),
            (
                "tokens per second",
                figure(recent.rate("sglang:realtime_tokens_total", mode="decode")),
            ),
            *_latencies(recent, "sglang:time_to_first_token_seconds", "first token"),
            *_latencies(recent, "sglang:inter_token_latency_seconds", "between tokens"),
        ],
        span=f"last {lasted(recent.seconds)}",
    )


def _tokenflow(name: str, last: Look, recent: Look) -> Card:
    modes = [mode for mode, on in recent.now.by("mode", "mode").items() if on > 0]
    said = [f"{brief(mode)}: {MODES.get(mode, 'a mode unknown here')}" for mode in modes[:3]]
    used, whole = (recent.level(f"sglang:hicache_host_{each}_tokens") for each in ("used", "total"))
    memory = [_full("device", recent.most("sglang:token_usage"))]
    if whole:
        memory.append(_full("host", used / whole))
    return Card(
        name,
        readers([recent]),
        f"Scheduler {'; '.join(said)}." if said else "",
        unread=_unread(last),
        classes=[*_classes(recent)],
        memory=memory,
        figures=[*_figures(recent)],
        span=f"last {lasted(recent.seconds)}",
    )


def _unread(last: Look) -> list[Bar]:
    """Live streams by what their readers have not read yet; the newest samples."""
    counts = by_level(last.gained)
    whole, live = sum(counts), last.level("reading_streams")
    if not whole or not math.isfinite(whole):
        return []
    return [
        Bar(
            label, samples / whole, f"{samples / whole:.0%}, {live * samples / whole:,.0f}", str(at)
        )
        for at, (label, samples) in enumerate(zip(LEVEL_NAMES, counts, strict=True))
    ]


def _classes(recent: Look) -> Iterator[tuple[str, ...]]:
    """Unread text of each class that has readers, those nearest to a stall first."""
    name = "buffer_percentile_seconds"
    rows = []
    for qos_class in recent.now.by(name, "qos_class"):
        values = [
            recent.now.least(name, qos_class=qos_class, percentile=each)
            for each in ("10", "50", "90")
        ]
        if not all(map(math.isnan, values)):
            rows.append((values[0], brief(qos_class), values))
    rows.sort(key=lambda row: row[:2])
    for _, qos_class, values in rows[:MOST_CLASSES]:
        yield qos_class, *(f"{each:.1f} s" for each in values)
    if len(rows) > MOST_CLASSES:
        yield f"{len(rows) - MOST_CLASSES} more", "", "", ""


def _figures(recent: Look) -> Iterator[tuple[str, str]]:
    per_minute = 60.0 / recent.seconds
    streams = [
        f"{figure(recent.level(f'{each}_streams'))} {each}"
        for each in ("running", "paused", "waiting")
    ]
    yield "streams", ", ".join(streams)
    stalls = recent.rate("stalls_total") * 60.0
    stalled = recent.rate("stall_seconds_total")
    some = f"{stalls:,.1f} a minute; {stalled:,.2f} readers stalled on average"
    yield "stalls", some if stalls or stalled else "none"
    yield from _latencies(recent, "ttfvt_seconds", "first text")
    yield from _latencies(recent, "tbt_seconds", "between tokens")
    made, used = (recent.rate(f"{each}_tokens_total") for each in ("output", "effective"))
    yield "tokens per second", f"{figure(made)}, {figure(used)} of them effective"
    headroom = recent.now.least("headroom_tokens")
    yield "room for newcomers", _headroom(headroom)
    causes = sorted(recent.gained.by("preemptions_total", "cause").items())
    for cause, times in [each for each in causes if each[1]][: len(CAUSES)]:
        why = CAUSES.get(cause, "a cause unknown here")
        yield f"paused, {brief(cause)}", f"{times * per_minute:,.1f} a minute, {why}"
    if errors := recent.level("policy_errors_total"):
        yield "policy failures", f"{figure(errors)} since the start; see the server's log"


def _headroom(tokens: float) -> str:
    """What newcomers can get of the next seconds, of the rank with the least."""
    if not math.isfinite(tokens):
        return UNKNOWN
    room = f"{figure(abs(tokens))} tokens"
    return room if tokens >= 0.0 else f"none: {room} more are here than can be made in time"


def _latencies(recent: Look, metric: str, label: str) -> Iterator[tuple[str, str]]:
    middle, high = (recent.gained.quantile(metric, each) for each in (0.5, 0.99))
    if not math.isnan(middle):
        yield label, f"P50 {seconds(middle)}, P99 {seconds(high)}"


def _full(label: str, part: float) -> Bar:
    """How full a pool is; that one is full is no fault: both are caches."""
    known = min(max(part, 0.0), 1.0) if math.isfinite(part) else 0.0
    return Bar(label, known, share(part), "5")

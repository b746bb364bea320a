"""Two servers side by side, as a canary and what it is to replace: the difference in words."""

from __future__ import annotations

import math

from tokenflow_sgl.lab.observe.live.card import Statement, Tone
from tokenflow_sgl.lab.observe.live.watched_server import Answering, Seen
from tokenflow_sgl.lab.observe.live.words import figure, lasted, seconds, share
from tokenflow_sgl.lab.observe.look import Look

FEWEST = 30
"""Observations of each side below which no difference is told."""
FEWEST_FOR_P99 = 300
SAME = 0.05
"""A ratio this near to 1 is no difference: histograms are no finer."""
_BEYOND_CHANCE = 1.96
"""Standard errors between two shares that chance gives in one of 20 comparisons."""


def differences(base: Seen, canary: Seen) -> list[Statement]:
    """What is different on the second server, since both are watched.

    Requests and first tokens are what SGLang's HTTP process measures on both, so stock SGLang can
    be compared, too; stalls need metrics of this package on both.
    """
    if base.whole is None or canary.whole is None:
        return [Statement("One of the two does not answer, so nothing can be compared", Tone.NONE)]
    one, two = base.whole, canary.whole
    names = base.name, canary.name
    try:
        return [
            _stalled(base, canary, one, two),
            _latency("First token", "time_to_first_token_seconds", names, (one, two)),
            _gaps(names, one, two),
            _work(names, one, two),
        ]
    except (ArithmeticError, KeyError, ValueError):
        return [Statement("The figures of one of the two make no sense", Tone.NONE)]


def _stalled(base: Seen, canary: Seen, one: Look, two: Look) -> Statement:
    """Of the streams that have ended, how many stalled."""
    for each in (base, canary):
        if each.answering is not Answering.TOKENFLOW:
            return Statement(f"Stalls: {each.name} does not know its readers", Tone.NONE)
    whole = [each.gained.total("finished_streams_total") for each in (one, two)]
    bad = [each.gained.total("finished_streams_total", stalled="yes") for each in (one, two)]
    whole, bad = ([0.0 if math.isnan(each) else each for each in row] for row in (whole, bad))
    if min(whole) < FEWEST:
        few = f"{figure(whole[1])} and {figure(whole[0])}"
        return Statement(f"Stalls: too few streams have ended to tell ({few})", Tone.NONE)
    parts = [stalled / ended for stalled, ended in zip(bad, whole, strict=True)]
    text = (
        f"Readers that stalled: {share(parts[1])} on {canary.name}, {share(parts[0])} on "
        f"{base.name}"
    )
    pooled = sum(bad) / sum(whole)
    error = math.sqrt(pooled * (1.0 - pooled) * sum(1.0 / each for each in whole))
    if not error or abs(parts[1] - parts[0]) < _BEYOND_CHANCE * error:
        return Statement(f"{text}: no more than chance", Tone.NONE)
    fewer = parts[1] < parts[0]
    return Statement(f"{text}: {'fewer' if fewer else 'more'}", Tone.GOOD if fewer else Tone.BAD)


def _gaps(names: tuple[str, str], one: Look, two: Look) -> Statement:
    """Time between tokens: longer gaps need not harm, for a reader with text left notices none."""
    found = _latency("Between tokens", "inter_token_latency_seconds", names, (one, two))
    if found.tone is not Tone.BAD:
        return found
    return Statement(f"{found.text}. Pauses count, also those that no reader notices", Tone.WAIT)


def _latency(
    label: str, metric: str, names: tuple[str, str], looks: tuple[Look, Look]
) -> Statement:
    """A quantile of SGLang's own histogram on both: P99 with enough observations, else P50."""
    metric = f"sglang:{metric}"
    seen = [each.gained.total(f"{metric}_bucket", le="+Inf") for each in looks]
    fewest = min(0.0 if math.isnan(each) else each for each in seen)
    if fewest < FEWEST:
        return Statement(f"{label}: too few observations to tell", Tone.NONE)
    high = fewest >= FEWEST_FOR_P99
    base, canary = (each.gained.quantile(metric, 0.99 if high else 0.5) for each in looks)
    text = (
        f"{label}, {'P99' if high else 'P50'}: {seconds(canary)} on {names[1]}, {seconds(base)} "
        f"on {names[0]}"
    )
    if not base or not canary or abs(canary / base - 1.0) <= SAME:
        return Statement(f"{text}: the same", Tone.NONE)
    ratio = canary / base
    shorter = ratio < 1.0
    less = "over 99%" if ratio < 0.01 else f"{1.0 - ratio:.0%}"
    change = f"{less} shorter" if shorter else f"{ratio:.2f} times as long"
    return Statement(f"{text}: {change}", Tone.GOOD if shorter else Tone.BAD)


def _work(names: tuple[str, str], one: Look, two: Look) -> Statement:
    """Whether the two had alike work, without which nothing above means much."""
    base, canary = (each.rate("sglang:realtime_tokens_total", mode="decode") for each in (one, two))
    text = (
        f"Work: {figure(canary)} tokens per second on {names[1]}, {figure(base)} on {names[0]}, "
        f"in {lasted(min(one.seconds, two.seconds))}"
    )
    alike = min(base, canary) >= 0.8 * max(base, canary)
    if alike:
        return Statement(text, Tone.NONE)
    return Statement(f"{text}. They do not carry the same load", Tone.WAIT)

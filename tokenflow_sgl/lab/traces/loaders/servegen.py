"""ServeGen: clients of a production service as arrival and length distributions.

Xiang et al., arXiv:2505.09999; data at github.com/alibaba/ServeGen (Apache-2.0), here as one CSV of
arrivals (a row per client and 10 minutes with traffic) and one JSON Lines file of lengths (a row
per client and 6 hours), or as published (`servegen_chunks`). It is a fitted model, not a log:
requests are sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.intake import NO_OUTPUT, NO_PROMPT, require_some, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records, Source, Table
from tokenflow_sgl.lab.traces.parameters import FloatArray, IntArray, stream
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest

WINDOW_S = 600.0
"""Length of an arrival window, seconds."""
LENGTH_WINDOW_S = 21_600.0
"""Length of a length window, seconds."""
MAX_REQUESTS = 20_000_000
"""Most requests that may be sampled at once."""

COLUMNS = ("client", "window_start_s", "rate_rps", "pattern", "arg1", "arg2")
FAMILIES = ("Gamma", "Weibull")
_TINY = 1e-300
"""Sums of gaps below it cannot be scaled."""
_NO_LENGTHS = "no length distribution for its client and time"


@dataclass(frozen=True, slots=True)
class ArrivalWindow:
    """Arrivals of one client in `WINDOW_S` seconds from `start_s` on; `rate` per second."""

    client: int
    start_s: float
    rate: float
    family: str
    shape: float
    line: int
    """Of the file."""


@dataclass(frozen=True, slots=True)
class FittedValues:
    """Values (token counts or shares) and their cumulative probability, up to exactly 1."""

    values: FloatArray
    cumulative: FloatArray

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw `count` of the values, independently of each other."""
        return self.values[np.searchsorted(self.cumulative, rng.random(count), side="right")]


@dataclass(frozen=True, slots=True)
class ClientLengths:
    """Lengths of one client's requests.

    Attributes:
        prompts: Tokens of a prompt's text.
        outputs: Tokens of an answer.
        reasoning: Share of an answer that is thinking; None: not told.
        media: For each kind, how many of it a prompt has, and the tokens of one.
    """

    prompts: FittedValues
    outputs: FittedValues
    reasoning: FittedValues | None
    media: tuple[tuple[FittedValues, FittedValues], ...] = ()


_Sampled = tuple[FloatArray, IntArray, IntArray, IntArray]
"""Requests of one window: seconds after the start, tokens of prompts, answers and thinking."""


def load_servegen(
    rates: Path,
    lengths: Path,
    *,
    start_s: float,
    duration_s: float,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """Sample requests of a ServeGen day.

    In each client's window the gaps between requests have the family and shape that ServeGen
    fitted. Like its own generator, they are scaled so that the window holds its number of requests.

    Args:
        rates: CSV of arrival windows.
        lengths: JSON Lines file of length distributions, or .jsonl.gz.
        start_s: Start, seconds after the earliest window of the file.
        duration_s: Length, seconds.
        seed: Seed of everything that is sampled.
        progress: Told how far reading is.

    Returns:
        The trace. Its rows are the sampled requests of all clients; those of a client that has no
        length distribution at their time are dropped.

    Raises:
        TraceError: A file cannot be read or is malformed, or nothing or too much lies in the
            duration.
    """
    check_span(start_s, duration_s)
    table = Table(rates, COLUMNS, progress, kind="servegen")
    windows = _read_windows(table)
    distributions = _read_lengths(Records(lengths, progress, kind="servegen"))
    return sampled(table, windows, distributions, (start_s, duration_s), seed)


def check_span(start_s: float, duration_s: float) -> None:
    """Raise `TraceError` unless these are a start and a length, in seconds."""
    if not 0 <= start_s < float("inf"):
        raise TraceError(f"start is {start_s!r}; allowed is a number of seconds of at least 0")
    if not 0 < duration_s < float("inf"):
        raise TraceError(f"duration is {duration_s!r}; allowed is a number of seconds above 0")


def sampled(
    table: Source,
    windows: Sequence[ArrivalWindow],
    distributions: Mapping[tuple[int, float], ClientLengths],
    span: tuple[float, float],
    seed: int,
) -> Trace:
    """Sample the requests of these windows.

    Args:
        table: What they are of, for its name and for errors.
        windows: Of all clients.
        distributions: Of lengths, by client and start of a window of lengths.
        span: Start after the earliest window, and length; seconds.
        seed: Of everything that is sampled.

    Raises:
        TraceError: Nothing or too much lies in the span.
    """
    start_s, duration_s = span
    rates = table.path
    first = min((window.start_s for window in windows), default=0.0)
    begin, end = first + start_s, first + start_s + duration_s
    chosen = [w for w in windows if begin - WINDOW_S < w.start_s < end]
    expected = sum(window.rate for window in chosen) * WINDOW_S
    if expected > MAX_REQUESTS:
        raise TraceError(
            f"{rates}: {expected:.3g} requests lie in the windows of {start_s:g} to "
            f"{start_s + duration_s:g} s; at most {MAX_REQUESTS} can be sampled, choose a shorter "
            "duration"
        )

    dropped: Counter[str] = Counter()
    parts, rows = _sample(table, chosen, distributions, (begin, end), dropped, seed)
    dropped = +dropped  # reasons that never occurred are no reasons
    require_some(table, rows, sum(len(part[0]) for part in parts), dropped)
    times, *counts = (np.concatenate([part[column] for part in parts]) for column in range(4))
    order = np.argsort(times, kind="stable")
    columns = (times[order].round(6).tolist(), *(column[order].tolist() for column in counts))
    requests = tuple(
        TraceRequest(time_s, prompt, output, reasoning_tokens=reasoning)
        for time_s, prompt, output, reasoning in zip(*columns, strict=True)
    )
    notes = (
        f"ServeGen from {start_s:g} s on for {duration_s:g} s, sampled with seed {seed}; rows are "
        "sampled requests.",
        "Prompt and answer lengths are drawn independently of each other.",
        *(
            ["The share of an answer that is thinking is drawn independently of its length."]
            if any(request.reasoning_tokens for request in requests)
            else []
        ),
    )
    return Trace(stem(table), requests, Accounting(rows, len(requests), dict(dropped)), notes)


def _sample(
    table: Source,
    windows: Sequence[ArrivalWindow],
    distributions: Mapping[tuple[int, float], ClientLengths],
    span: tuple[float, float],
    dropped: Counter[str],
    seed: int,
) -> tuple[list[_Sampled], int]:
    """Sample the requests of each window; and how many there are, with those that are dropped.

    Args:
        table: The file, for messages.
        windows: Those that the trace has a part of.
        distributions: Of lengths, by client and start of a window of lengths.
        span: Begin and end of the trace, seconds on the file's clock.
        dropped: Counts the requests that are left out, by reason.
        seed: Of everything that is sampled.
    """
    begin, end = span
    rng = stream(seed, "servegen")
    thinking = stream(seed, "servegen reasoning")  # apart: arrivals and lengths stay as they are
    seeing = stream(seed, "servegen media")
    parts: list[_Sampled] = []
    rows = 0
    for window in windows:
        times = _sample_times(rng, window)
        if times is None:
            table.line = window.line
            table.fail("arg1", window.shape, "a shape whose gaps have a finite sum")
        times = times[(times >= begin) & (times < end)]
        rows += len(times)
        length_window = window.start_s // LENGTH_WINDOW_S * LENGTH_WINDOW_S
        known = distributions.get((window.client, length_window))
        if known is None:
            dropped[_NO_LENGTHS] += len(times)
            continue
        # The file has no joint distribution, so prompt and answer are independent.
        prompts, outputs = (
            each.sample(rng, len(times)).astype(np.int64) for each in (known.prompts, known.outputs)
        )
        prompts += _media_tokens(seeing, known, len(times))
        reasoning = np.zeros_like(outputs)
        if known.reasoning is not None:
            shares = known.reasoning.sample(thinking, len(times))
            reasoning = np.rint(outputs * shares).astype(np.int64)
        dropped[NO_OUTPUT] += int((outputs == 0).sum())
        dropped[NO_PROMPT] += int(((outputs > 0) & (prompts == 0)).sum())
        good = (prompts > 0) & (outputs > 0)
        parts.append((times[good] - begin, prompts[good], outputs[good], reasoning[good]))
    return parts, rows


def _media_tokens(rng: np.random.Generator, known: ClientLengths, requests: int) -> IntArray:
    """Tokens of the images, sounds and videos of so many prompts."""
    found = np.zeros(requests)
    for counts, tokens in known.media:
        many = counts.sample(rng, requests).astype(np.int64)
        if many.sum() > MAX_REQUESTS:
            raise TraceError(f"more than {MAX_REQUESTS} images, sounds or videos were sampled")
        owners = np.repeat(np.arange(requests), many)
        drawn = tokens.sample(rng, len(owners))
        found += np.bincount(owners, weights=drawn, minlength=requests)
    return np.minimum(found, MAX_TOKENS // 2).astype(np.int64)


def _sample_times(rng: np.random.Generator, window: ArrivalWindow) -> FloatArray | None:
    """Arrivals of a window: its rate is exact, the last gap ends at the window's end.

    None: the gaps are too large to be summed.
    """
    count = round(window.rate * WINDOW_S)
    draw = rng.standard_gamma if window.family == "Gamma" else rng.weibull
    with np.errstate(over="ignore"):
        sums = np.cumsum(draw(window.shape, count + 1))
    if not np.isfinite(sums[-1]):
        return None
    # Shapes near 0 can underflow to gaps of 0 only; then all arrive at the start.
    scale = WINDOW_S / sums[-1] if sums[-1] > _TINY else 0.0
    return np.asarray(window.start_s + sums[:-1] * scale)


def _read_windows(table: Table) -> list[ArrivalWindow]:
    windows = []
    seen = set()
    for client_text, start_text, rate_text, family, shape_text, scale_text in table.rows():
        client = table.count("client", client_text)
        start = table.number("window_start_s", start_text)
        rate = table.number("rate_rps", rate_text)
        if family not in FAMILIES:
            table.fail("pattern", family, " or ".join(FAMILIES))
        shape = table.number("arg1", shape_text)
        if not shape:
            table.fail("arg1", shape_text, "a number above 0")
        table.number("arg2", scale_text)  # replaced by the window's rate, but it must be there
        if (client, start) in seen:
            table.error(f"client {client} has this window twice", "window_start_s")
        seen.add((client, start))
        windows.append(ArrivalWindow(client, start, rate, family, shape, table.line))
    if not windows:
        table.error("has no data rows")
    return windows


def _read_lengths(records: Records) -> Mapping[tuple[int, float], ClientLengths]:
    known: dict[tuple[int, float], ClientLengths] = {}
    for row in records.rows():
        key = records.count(row, "client"), records.number(row, "window_start_s")
        if key in known:
            records.error(f"client {key[0]} has this window twice", "window_start_s")
        known[key] = ClientLengths(
            _distribution(records, row, "input_tokens", _tokens, "token counts"),
            _distribution(records, row, "output_tokens", _tokens, "token counts"),
            _distribution(records, row, "reason_ratio", _share, "shares from 0 to 1")
            if "reason_ratio" in row
            else None,
        )
    return known


def _tokens(text: str) -> int | None:
    """A token count, or None if the text is none."""
    good = text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MAX_TOKENS
    return int(text) if good else None


def _share(text: str) -> float | None:
    """A share, or None if the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _distribution(
    records: Records,
    row: dict[str, Any],
    column: str,
    read: Callable[[str], float | None],
    keys: str,
) -> FittedValues:
    table = records.value(row, column)
    if not isinstance(table, dict) or not table:
        records.fail(column, table, f"an object of probabilities by {keys}")
    values = []
    for text, probability in table.items():
        value = read(text)
        if value is None:
            records.fail(column, text, f"{keys} as keys")
        if type(probability) not in (int, float) or not 0 <= probability <= 1:
            records.fail(column, probability, "probabilities from 0 to 1")
        values.append(value)
    return distribution_of(records, column, values, list(table.values()))


def distribution_of(
    source: Source, column: str, values: Sequence[float], shares: Sequence[float]
) -> FittedValues:
    """Values with their probabilities, which add up to 1."""
    cumulative = np.cumsum(np.array(shares, float))
    if abs(cumulative[-1] - 1) > 1e-3:
        source.fail(column, float(cumulative[-1]), "probabilities that add up to 1")
    cumulative /= cumulative[-1]
    cumulative[-1] = 1.0
    return FittedValues(np.array(values, float), cumulative)

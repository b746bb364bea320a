"""The plots of the page, and what is written under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tokenflow_sgl.lab.report import plots
from tokenflow_sgl.lab.report.reading import Reading
from tokenflow_sgl.lab.report.run_figures import Figures


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of the page: its title, what it shows, whether it is a wide one, and the SVG."""

    title: str
    caption: str
    wide: bool
    svg: Markup


def drawn(
    members: Sequence[Figures], readings: Sequence[Reading], progress: Callable[[str], None]
) -> list[Plot]:
    """Draw all plots of a page, each with what a reader must know to read it.

    Args:
        members: The runs, the baseline first.
        readings: How their readers fared, in the same order.
        progress: Called with each plot's name before it is drawn.
    """
    made = []
    for title, caption, wide, draw in _wanted(members, readings):
        progress(f"drawing: {title.lower()}")
        made.append(Plot(title, caption, wide, Markup(draw())))  # matplotlib escapes its text
    return made


def _wanted(
    members: Sequence[Figures], readings: Sequence[Reading]
) -> list[tuple[str, str, bool, Callable[[], str]]]:
    """Title and caption of each plot, whether it is a wide one, and what draws it."""
    zero = [figures.judged for figures in members]
    same_chunk = sum(int((s.tbt_seconds == 0).sum()) for judged in zero for s in judged.streams)
    gaps = sum(s.tbt_seconds.size for judged in zero for s in judged.streams)
    share = f"{same_chunk / gaps:.1%} of them are 0 (one chunk). " if same_chunk else ""
    return [
        (
            "Time to first token",
            "Share of all requests that had their first token within this time after they were "
            "due. If the curve ends below 100 %, the other requests got no token.",
            False,
            lambda: plots.ttft_cdf(members),
        ),
        (
            "Time between tokens",
            f"Share of the gaps between tokens, all requests together. {share}"
            "The axis is logarithmic and starts at 0.1 ms.",
            False,
            lambda: plots.tbt_cdf(members),
        ),
        (
            "Unread output",
            "How long readers could go on reading if no more text came, for readers whose output "
            "is still due. At 0 a reader stalls.",
            True,
            lambda: plots.buffers(members, readings),
        ),
        (
            "Streams against their reading",
            "Thick: tokens received. Thin: tokens read. Between them: unread text. Shown are the "
            "longest stalls of any run, and the longest and the median TTFT of the first run.",
            True,
            lambda: plots.streams(members, readings),
        ),
        (
            "Queue, streams, tokens",
            "Requests due and without a first token; streams that have begun and not ended; "
            "tokens that arrived per second.",
            True,
            lambda: plots.load_over_time(members, readings),
        ),
        (
            "Stalls",
            f"{_rows_note(readings)} Up to the run's last token. Stalls of any length; colours mix "
            "by share of time.",
            True,
            lambda: plots.stall_maps(members, readings),
        ),
        (
            "Stalled time",
            "Share of the requests with at most this much stalled time in all; stalls of any "
            "length count.",
            False,
            lambda: plots.stall_cdf(members),
        ),
        (
            "Load and goodput",
            "One point per window of arrivals; on the dotted line all objectives were met.",
            False,
            lambda: plots.load_against_goodput(members, readings),
        ),
    ]


def _rows_note(readings: Sequence[Reading]) -> str:
    most = max(reading.stall_map(columns=1).per_row for reading in readings)
    return "One row a request." if most == 1 else f"One row is up to {most} requests, averaged."

"""The report as one HTML page: no script, no network, no other file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tokenflow_sgl.lab.report import plots
from tokenflow_sgl.lab.report.catalogue import BY_KEY
from tokenflow_sgl.lab.report.compare import Against, Change, Comparison, Verdict
from tokenflow_sgl.lab.report.conclusion import conclusions
from tokenflow_sgl.lab.report.figure_kind import Section
from tokenflow_sgl.lab.report.overview import (
    LATENCY_COLUMNS,
    latency_rows,
    lengths_note,
    option_rows,
    section_rows,
    setting_rows,
    validity_rows,
)
from tokenflow_sgl.lab.report.page_plots import drawn
from tokenflow_sgl.lab.report.plots.canvas import RUN_COLOURS
from tokenflow_sgl.lab.report.reading import Reading, worst_rows
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.text import interval, number, plain

_TILES = (
    "ttft_p50",
    "ttft_p99",
    "tbt_p99",
    "stall_seconds",
    "stalled_share",
    "effective_throughput",
    "token_throughput",
    "qos",
    "e2e_per_token_p90",
    "andes_qoe_mean",
    "slo_attainment",
)
_WORST = 12
_WORST_COLUMNS = (
    *("request", "due, s", "prompt", "answer", "asked for", "rate"),
    *("TTFT, s", "TBT P99, ms", "stalls > {threshold:g} s", "stalled, s", "Andes QoE", "outcome"),
)
_VERDICTS = {
    Verdict.better: ("better", "▲ better"),
    Verdict.worse: ("worse", "▼ worse"),
    Verdict.unclear: ("unclear", "no clear difference"),
}


def page(runs: Figures | Comparison, progress: Callable[[str], None] = lambda step: None) -> str:
    """Return the page of one run, or of runs against a baseline.

    Args:
        runs: What to show.
        progress: Called with each step's name before it.

    Raises:
        ReportError: More runs than there are colours to tell them apart.
    """
    members: Sequence[Figures] = [runs] if isinstance(runs, Figures) else runs.runs
    others: Sequence[Against] = [] if isinstance(runs, Figures) else runs.others
    if len(members) > plots.MOST_RUNS:
        raise ReportError(f"a page shows at most {plots.MOST_RUNS} runs, got {len(members)}")
    progress("playing streams back")
    readings = [Reading(figures.judged) for figures in members]
    shown = [_run(figures, colour) for figures, colour in zip(members, RUN_COLOURS, strict=False)]
    environment = Environment(
        loader=PackageLoader("tokenflow_sgl.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    options = members[0].options
    package = "tokenflow-sgl"
    return environment.get_template(
        "report.html.j2"
    ).render(
        title=_title(members),
        css=Markup(_stylesheet()),  # ours, with nothing from outside in it
        runs=shown,
        others=[_against(other, run) for other, run in zip(others, shown[1:], strict=True)],
        mismatches=[
            f"{other.figures.label} did not serve the same trace: {other.mismatch}. "
            "Its requests were resampled apart from the baseline's."
            for other in others
            if other.mismatch
        ],
        lengths=lengths_note(members) or "",
        any_state=any(figures.state for figures in members),
        conclusions=[] if isinstance(runs, Figures) else conclusions(runs),
        tiles=_tiles(members, shown),
        plots=drawn(members, readings, progress),
        latency_columns=LATENCY_COLUMNS,
        worst_columns=[head.format(threshold=options.stall_threshold_s) for head in _WORST_COLUMNS],
        options=option_rows(members[0]),
        bootstrap_note=(
            f"Intervals hold {options.confidence:.0%} of {options.resamples:,} bootstrap samples "
            f"over requests (seed {options.seed}). They say how much requests differ, not how "
            f"much a second run would. Of many figures, about {1 - options.confidence:.0%} "
            "differ by chance alone."
        ),
        footer=f"{package} {metadata.version(package)}. Warm-up requests are in no figure.",
    )


def _title(members: Sequence[Figures]) -> str:
    names = [plain(figures.info.name, 60) for figures in members]
    return f"{', '.join(names[1:])} against {names[0]}" if len(names) > 1 else names[0]


def _stylesheet() -> str:
    folder = resources.files("tokenflow_sgl.lab.report") / "templates"
    return (folder / "report.css").read_text(encoding="utf-8")


def _run(figures: Figures, colour: str) -> dict[str, Any]:
    info = figures.info
    requests = figures.requests
    return {
        "name": plain(info.name, 60),
        "state": figures.state,
        "colour": colour,
        "warnings": [plain(reason, 400) for reason in figures.warnings],
        "what": plain(
            f"{info.source} of trace {info.trace.get('name', 'unnamed')}, "
            f"{requests.counted:,} requests ({requests.completed:,} completed), "
            f"{number(info.duration_s)} s, {_target(figures)}",
            300,
        ),
        "latency": latency_rows(figures),
        "pairs": [
            *(
                (part.value, section_rows(figures, part))
                for part in Section
                if part.value != "Latency"
            ),
            ("Validity", validity_rows(figures)),
        ],
        "worst": [_worst(figures, row) for row in worst_rows(figures.judged, _WORST)],
        "setting": setting_rows(figures),
    }


def _target(figures: Figures) -> str:
    """A short description of the server; the full one is further down the page."""
    short = [
        f"{key} {value}"
        for key, value in figures.info.target.items()
        if isinstance(value, (str, int, float)) and len(str(value)) <= 60
    ]
    return "on " + ", ".join(short) if short else "target not recorded"


def _worst(figures: Figures, row: int) -> list[str]:
    judged = figures.judged
    recording, stream = judged.recording, judged.streams[row]
    return [
        str(int(recording.index[row])),
        number(float(recording.scheduled[row])),
        f"{int(recording.prompt_tokens[row]):,}",
        f"{stream.delivered:,}",
        f"{int(recording.requested_tokens[row]):,}",
        f"{stream.rate:g}",
        f"{'' if stream.served else '> '}{number(float(judged.ttft[row]))}",
        number(float(judged.tbt_p99[row]) * 1000),
        f"{stream.stall_count:,}",
        number(stream.stall_seconds),
        number(float(judged.qoe[row])),
        plain(judged.outcome[row], 120),
    ]


def _tiles(members: Sequence[Figures], shown: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    tiles: list[dict[str, Any]] = [
        {
            "label": BY_KEY[key].title(members[0].options),
            "unit": BY_KEY[key].unit,
            "shown": [
                {"text": BY_KEY[key].show(BY_KEY[key].value(figures)), "run": run}
                for figures, run in zip(members, shown, strict=True)
            ],
        }
        for key in _TILES
        if any(math.isfinite(BY_KEY[key].value(figures)) for figures in members)
    ]
    completed = [
        {"text": f"{figures.requests.completed:,} / {figures.requests.counted:,}", "run": run}
        for figures, run in zip(members, shown, strict=True)
    ]
    return [{"label": "completed", "unit": "requests", "shown": completed}, *tiles]


def _against(other: Against, run: dict[str, Any]) -> dict[str, Any]:
    clear = [each for each in other.changes if each.verdict in (Verdict.better, Verdict.worse)]
    unclear = [each for each in other.changes if each.verdict is Verdict.unclear]
    return {
        "run": run,
        "sections": _sections(clear, other.figures.options),
        "folded": _sections(unclear, other.figures.options),
        "judged": len(clear) + len(unclear),
    }


def _sections(
    changes: Sequence[Change], options: Options
) -> list[tuple[str, list[dict[str, str]]]]:
    """The rows of a comparison, by section."""
    sections = []
    for section in Section:
        rows = [
            {
                "label": change.figure.title(options),
                "baseline": change.figure.show(change.baseline),
                "value": change.figure.show(change.value),
                "unit": change.figure.unit,
                "ratio": interval(change.ratio, change.ratio_low, change.ratio_high),
                "kind": _VERDICTS[change.verdict][0],
                "verdict": _VERDICTS[change.verdict][1],
            }
            for change in changes
            if change.figure.section is section
        ]
        if rows:
            sections.append((section.value, rows))
    return sections

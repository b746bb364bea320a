"""The page of a run: what was done, and each real figure beside the simulated or emulated one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from journal import Entry, State

GOAL = 0.1
"""A real figure is to be so near the simulated one: the share by which they may differ."""
SMALL = {"stall_seconds": 1.0, "stalled_share": 0.02}
"""Of less than this, in both, a ratio says nothing."""
FELT = {
    "ttft_mean": ("first text, mean", "s"),
    "ttft_p99": ("first text, P99", "s"),
    "stall_seconds": ("stalls, all readers", "s"),
    "stalled_share": ("readers that stall", "%"),
    "effective_tokens_per_s": ("effective tokens", "/s"),
    "tokens_per_s": ("tokens", "/s"),
    "tpot_mean": ("time per token, mean", "ms"),
    "tbt_p99": ("gap between tokens, P99", "ms"),
    "e2e_mean": ("whole answer, mean", "s"),
    "served_well": ("served well", "%"),
}
"""Of what readers feel: its name, and its unit."""

COUNTED = {
    "preemptions_total": "pauses",
    "resume_loaded_tokens_total": "tokens loaded",
    "restored_tokens_total": "tokens restored",
    "layers_staged_tokens_total": "tokens of layers fetched",
    "layers_moved_tokens_total": "moved",
}
"""Counters of the server under test: their names on the page."""
Simulate = Callable[[Mapping[str, Any]], Mapping[str, float]]
"""From what was measured of a server to what a simulation or an emulated device says of it."""


def page(
    about: Mapping[str, Any],
    entries: Sequence[Entry],
    steps: Mapping[str, str],
    beside: Mapping[str, Simulate],
) -> str:
    """The page as Markdown.

    Args:
        about: The machine and its versions.
        entries: What has become of the parts.
        steps: What each step shows, in order.
        beside: By name, what real figures are compared with.
    """
    by_name = {entry.name: entry for entry in entries}
    order = {step: number for number, step in enumerate(steps)}
    entries = sorted(entries, key=lambda entry: order.get(entry.step, len(order)))
    lines = ["# Real against emulated", ""]
    lines += table(("", ""), [(name, str(value)) for name, value in about.items()])
    lines += ["", "## What was done", ""]
    rows = [
        (each.name, each.state.value, f"{each.seconds / 60:.1f}", _short(each.why))
        for each in entries
    ]
    lines += table(("part", "state", "minutes", "why"), rows)
    lines += _same([entry for entry in entries if "worst_regret" in entry.figures])
    lines += _workloads([entry for entry in entries if "felt" in entry.figures], beside)
    if (pauses := by_name.get("link/pauses")) is not None:
        lines += _pauses(pauses.figures)
    if (copies := by_name.get("link/copies")) is not None:
        lines += _copies(copies.figures)
    for name in ("restored/torch", "layers/torch"):
        if (entry := by_name.get(name)) is not None and "said" in entry.figures:
            lines += ["", f"## {name}", "", "```text", *entry.figures["said"], "```"]
    return "\n".join(lines) + "\n"


def _same(entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    lines = ["", "## Do they say the same?", ""]
    lines += [
        "*Regret*: by how much log probability stock SGLang held another token for better. A token",
        "is wrong if it is more than the limit, which stock SGLang's own answers set.",
        "",
    ]
    rows: list[Sequence[str]] = []
    for entry in entries:
        found = entry.figures
        for name, regret in found["worst_regret"].items():
            same = found["same_as_stock"].get(name)
            counters = found["counters"] if name == "ours" else {}
            rows.append(
                (
                    *(entry.name, name, "" if same is None else f"{same} of {found['answers']}"),
                    *(f"{regret:.4f}", f"{found['limit']:.4f}", f"{found['wrong_tokens'][name]:,}"),
                    *(_number(counters.get(count)) for count in COUNTED),
                    f"{found['times'][name]['first_mean_s']:.3f}",
                )
            )
    verdict = ("as stock's", "worst regret", "limit", "wrong tokens")
    head = ("part", "server", *verdict, *COUNTED.values(), "first text, mean, s")
    return [*lines, *table(head, rows)]


def _workloads(entries: Sequence[Entry], beside: Mapping[str, Simulate]) -> list[str]:
    if not entries:
        return []
    lines = ["", "## One workload", ""]
    real = {entry.name: entry.figures["felt"] for entry in entries}
    others: dict[str, dict[str, Mapping[str, float]]] = {
        name: {entry.name: said for entry in entries if (said := simulate(entry.figures))}
        for name, simulate in beside.items()
    }
    head = ["run", "figure", "measured"]
    for name in others:
        head += [name, "ratio", f"within {GOAL:.0%}"]
    rows = []
    for entry in entries:
        for key in FELT:
            row = [_named(entry), FELT[key][0], shown(key, real[entry.name][key])]
            for other in others.values():
                row += compared(key, real[entry.name], other.get(entry.name, {}))
            rows.append(row)
    lines += table(head, rows)
    lines += _over_stock(real, others)
    lines += ["", "Shares of the time of the run, the warm-up counted with it:", ""]
    names = tuple(entries[0].figures["shares"])
    rows = [
        [_named(entry), *(_share(entry.figures["shares"][name]) for name in names)]
        for entry in entries
    ]
    return [*lines, *table(("run", *(name.replace("_", " ") for name in names)), rows)]


def _over_stock(
    real: Mapping[str, Mapping[str, float]],
    others: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> list[str]:
    """What the scheduler makes of stock SGLang's figures: real kernels count less there."""
    rows = []
    for name, ours in real.items():
        base = name.rpartition("-")[0] + "-stock"
        if name == base or base not in real:
            continue
        for key in FELT:
            factor = _ratio(key, ours[key], real[base][key])
            row = [_plain(name), FELT[key][0], f"{factor:.2f}x" if factor else ""]
            for said in others.values():
                there = said.get(name, {}), said.get(base, {})
                other = _ratio(key, *(each.get(key) for each in there))
                row.append(f"{other:.2f}x" if other else "")
            rows.append(row)
    if not rows:
        return []
    lines = ["", "Over stock SGLang's:", ""]
    return [*lines, *table(("run", "figure", "measured", *others), rows)]


def compared(
    key: str, real: Mapping[str, float], said: Mapping[str, float]
) -> tuple[str, str, str]:
    """The other figure, real over it, and whether that is within the goal; blank if not known."""
    if key not in said:
        return "", "", ""
    ratio = _ratio(key, real[key], said[key])
    if ratio is None:
        return shown(key, said[key]), "", ""
    return shown(key, said[key]), f"{ratio:.2f}", "yes" if abs(ratio - 1.0) <= GOAL else "**no**"


def _ratio(key: str, real: float | None, said: float | None) -> float | None:
    """Real over said; None where it says nothing."""
    small = SMALL.get(key, 0.0)
    if not (_is_known(real) and _is_known(said)) or said <= 0.0 or max(real, said) < small:
        return None
    return real / said


def _is_known(value: float | None) -> TypeGuard[float]:
    """Whether a figure is there: JSON has None for NaN."""
    return value is not None and math.isfinite(value)


def shown(key: str, value: float | None) -> str:
    """A figure with its unit."""
    unit = FELT[key][1]
    if not _is_known(value):
        return ""
    if unit == "%":
        return f"{value:.0%}"
    scaled = 1000.0 * value if unit == "ms" else value
    return f"{scaled:,.0f}{unit}" if unit == "/s" else f"{scaled:,.2f} {unit}"


def _pauses(found: Mapping[str, Any]) -> list[str]:
    if "stock" not in found:
        return []
    lines = ["", "## Pauses beside steps", ""]
    rows = []
    for name in ("stock", "pausing"):
        each = found[name]
        rows.append(
            [
                name,
                _number(each["decode_step_s"], 1e3, " ms"),
                _number(each["rows"]),
                _share(each["decodes_in_graphs"]),
                _share(each["prefills_in_graphs"]),
                _number(each["preemptions"]),
                *(
                    _number(each[kind][key], scale, unit)
                    for kind in ("store", "load")
                    for key, scale, unit in (
                        ("bytes_per_s", 1e-9, " GB/s"),
                        ("median_s", 1e3, " ms"),
                        ("p99_s", 1e3, " ms"),
                    )
                ),
            ]
        )
    head = ["server", "decode step", "rows", "decodes in graphs", "prefills in graphs", "pauses"]
    for kind in ("to the host", "back"):
        head += [kind, "a copy, median", "P99"]
    return [*lines, *table(head, rows)]


def _copies(found: Mapping[str, Any]) -> list[str]:
    if "load_bytes_per_s" not in found:
        return []
    rates = (_number(found[f"{kind}_bytes_per_s"], 1e-9, " GB/s") for kind in ("load", "store"))
    longer = found["steps_beside_copies"]
    said = "" if longer is None else f", steps beside copies take {longer:.2f} times as long"
    to_device, to_host = rates
    return ["", "## Link", "", f"{to_device} to the device, {to_host} to the host{said}."]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def left(entries: Sequence[Entry]) -> list[str]:
    """Sentences on what is not done, and why."""
    return [
        f"{entry.name}: {entry.state.value} ({_short(entry.why)})"
        for entry in entries
        if entry.state is not State.DONE
    ]


def _named(entry: Entry) -> str:
    return _plain(entry.name) + ("" if entry.state is State.DONE else " (invalid)")


def _plain(name: str) -> str:
    return name.removeprefix("workload/")


def _short(why: str) -> str:
    """One line that fits into a cell."""
    line = " ".join(why.split()).replace("|", "/")
    return line if len(line) <= 300 else line[:300] + " ..."


def _share(value: float | None) -> str:
    return f"{value:.0%}" if _is_known(value) else ""


def _number(value: float | None, scale: float = 1.0, unit: str = "") -> str:
    return f"{scale * value:,.2f}{unit}" if _is_known(value) else ""

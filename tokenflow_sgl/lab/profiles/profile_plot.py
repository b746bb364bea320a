"""A profile as a picture: decode and prefill times over their sizes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
from tokenflow_sgl.lab.profiles.profile_table import BATCHES, CONTEXTS, LENGTHS, PREFIXES


def plot(profile: DeviceProfile, path: Path) -> None:
    """Write the picture; the file name's ending decides the format."""
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    decode, prefill = figure.subplots(1, 2)
    figure.suptitle(f"{profile.model} on {profile.device}", fontweight="bold")
    _decode(decode, profile)
    _prefill(prefill, profile)
    figure.supxlabel(f"Source: {profile.source}", fontsize=8, color="0.35")
    figure.savefig(path, dpi=150)


def _decode(axes: Axes, profile: DeviceProfile) -> None:
    batches = range(1, BATCHES[-1] + 1)
    for colour, context in zip(_colours(len(CONTEXTS)), CONTEXTS, strict=True):
        times = [1e3 * profile.decode_seconds(batch, batch * context) for batch in batches]
        axes.plot(batches, times, color=colour, label=f"{context}")
    axes.set(title="Decode step", xlabel="rows", ylabel="ms per step", xscale="log")
    axes.set_ylim(bottom=0.0)
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    _finish(axes, "context, tokens per row")


def _prefill(axes: Axes, profile: DeviceProfile) -> None:
    lengths = [round(LENGTHS[0] * 2 ** (step / 16)) for step in range(16 * (len(LENGTHS) - 1) + 1)]
    for colour, prefix in zip(_colours(len(PREFIXES)), PREFIXES, strict=True):
        times = [1e3 * profile.prefill_seconds(n, attention_work(n, prefix)) for n in lengths]
        axes.plot(lengths, times, color=colour, label=f"{prefix}")
    axes.set(
        title="Prefill step of one request",
        xlabel="new tokens",
        ylabel="ms per step",
        xscale="log",
        yscale="log",
    )
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    _finish(axes, "cached prefix, tokens")


def _colours(count: int) -> list[tuple[float, float, float, float]]:
    return [matplotlib.colormaps["viridis"](0.85 * i / (count - 1)) for i in range(count)]


def _finish(axes: Axes, legend: str) -> None:
    axes.minorticks_off()
    axes.grid(True, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title=legend, frameon=False, fontsize=8, title_fontsize=8)

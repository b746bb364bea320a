"""Checks of ``tokenflow doctor`` that import no SGLang: whether SGLang will load the plugin."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass

PLUGIN = "tokenflow"
"""Name of our entry point in `PLUGIN_GROUP`."""
PLUGIN_GROUP = "sglang.srt.plugins"
PLATFORM_GROUP = "sglang.srt.platforms"
_OURS = "tokenflow_sgl."
_REINSTALL = "install tokenflow-sgl again, into the environment that runs SGLang"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    found: what is there. problem: why the scheduler would not start with it, or None.
    step: what to do about the problem. note: a remark that stops nothing. active: what the options
    switch on, where they say that.
    """

    name: str
    found: str
    problem: str | None = None
    step: str = ""
    note: str = ""
    active: str = ""


def installation(*, unproved: bool = False) -> list[Check]:
    """What is installed, and whether SGLang would load our plugin.

    unproved: The launch starts on whatever SGLang there is (`--tokenflow-unproved-sglang`).
    """
    return [_sglang(unproved), _entry_point(), _allowlist(), _platform(), _distribution()]


def _sglang(unproved: bool) -> Check:
    from tokenflow_sgl.engine.sglang import version
    from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE

    installed = version.installed_sglang()
    if installed is None:
        return Check(
            "sglang",
            "not installed",
            "SGLang is not installed",
            f"{version.install_proved()} installs a supported version",
        )
    if version.supported():
        return Check("sglang", f"{installed}, a supported version")
    if unproved or os.environ.get(UNPROVED_VARIABLE) == "1":
        return Check(
            "sglang",
            f"{installed}; proved: {version.proved()}",
            note=f"But tokenflow was not proved on SGLang {installed}: answers may be wrong.",
        )
    return Check(
        "sglang",
        f"{installed}; supported: {version.proved()}",
        f"SGLang {installed} is installed, which tokenflow was not proved on",
        version.install_proved(),
    )


def _entry_point() -> Check:
    ours = [point for point in _points(PLUGIN_GROUP) if _is_ours(point)]
    if not ours:
        return Check(
            "plugin",
            f"no entry point {PLUGIN} in {PLUGIN_GROUP}",
            f"the entry point {PLUGIN} in the group {PLUGIN_GROUP} is not registered",
            _REINSTALL,
        )
    return Check("plugin", f"{ours[0].name} = {ours[0].value}, in {PLUGIN_GROUP}")


def _allowlist() -> Check:
    text = os.environ.get("SGLANG_PLUGINS", "")
    if not text:
        return Check("SGLANG_PLUGINS", "not set: every plugin is loaded")
    if PLUGIN in {name.strip() for name in text.split(",")}:
        return Check("SGLANG_PLUGINS", f"{text}: lists {PLUGIN}")
    return Check(
        "SGLANG_PLUGINS",
        f"{text}: leaves out {PLUGIN}",
        f"SGLANG_PLUGINS={text} leaves {PLUGIN} out, so SGLang does not load it",
        f"add {PLUGIN} to SGLANG_PLUGINS, or unset it",
    )


def _platform() -> Check:
    selected = os.environ.get("SGLANG_PLATFORM", "")
    if not selected:
        return Check("platform", "SGLANG_PLATFORM is not set: SGLang finds the device itself")
    known = {point.name: point for point in _points(PLATFORM_GROUP)}
    if selected in known:
        return Check("platform", f"{selected}, by SGLANG_PLATFORM ({known[selected].value})")
    return Check(
        "platform",
        f"{selected}, by SGLANG_PLATFORM: not installed",
        f"SGLANG_PLATFORM={selected} names no installed platform, and SGLang stops at that",
        f"unset SGLANG_PLATFORM or set it to one of: {', '.join(sorted(known)) or 'none there'}",
    )


def _distribution() -> Check:
    """SGLang skips a distribution that has a platform of another name than the selected one."""
    selected = os.environ.get("SGLANG_PLATFORM", "")
    mine = {point.dist.name for point in _points(PLUGIN_GROUP) if _is_ours(point) and point.dist}
    others = [
        point.name
        for point in _points(PLATFORM_GROUP)
        if point.dist and point.dist.name in mine and point.name != selected
    ]
    if selected and others:
        return Check(
            "distribution",
            f"skipped: it brings the platform {others[0]}",
            f"SGLANG_PLATFORM={selected} makes SGLang skip the distribution of {PLUGIN}, "
            f"which brings the platform {others[0]}",
            f"{_REINSTALL}: as published it brings no platform",
        )
    return Check("distribution", "not skipped by SGLANG_PLATFORM")


def _points(group: str) -> list[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=group))


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.name == PLUGIN and point.value.startswith(_OURS)

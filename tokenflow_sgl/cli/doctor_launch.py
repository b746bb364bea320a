"""Checks of ``tokenflow doctor`` that import SGLang: its seams, and whether a launch would work."""

from __future__ import annotations

import contextlib
import io
import logging
import shlex
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from tokenflow_sgl.cli.doctor_install import Check

if TYPE_CHECKING:
    from tokenflow_sgl.engine.launch_verdict import LaunchVerdict
    from tokenflow_sgl.engine.launching import ExpectedLaunch
    from tokenflow_sgl.engine.sglang.seam import Seam

REMOVE = "do what the sentence says"


def launch_checks(options: list[str] | None) -> list[Check]:
    """Device and options, as a launch would find them; without options only the device."""
    from tokenflow_sgl.engine.launching import NO_MODEL, ExpectedLaunch, try_launch
    from tokenflow_sgl.engine.light_sglang import uncollected

    given = options if options else ["--model-path", NO_MODEL, "--scheduler", "tokenflow"]
    try:
        with silence(), uncollected():
            launch = try_launch(given)
    except Exception as error:  # SGLang's modules run their own code when imported
        launch = ExpectedLaunch(refusal=f"SGLang cannot be asked: {type(error).__name__}: {error}")
    refusal = launch.refusal
    checks = []
    if launch.device is not None or launch.no_device:
        step = (
            "run it where the accelerator is, ask for that machine with --elsewhere, name a "
            "platform with SGLANG_PLATFORM, or try tokenflow serve-emulated, which needs none"
        )
        none = refusal if launch.no_device else None
        checks.append(Check("device", launch.device or "none", none, step))
    if options:
        unknown = "But what depends on the model was not checked." if launch.elsewhere else ""
        checks.append(Check("model", launch.model, note=unknown))
        text = shlex.join(options)
        if refusal is not None and not launch.no_device:
            checks.append(Check("options", text, refusal, "change what it names"))
        elif launch.off is not None:
            checks.append(Check("options", text, active=_alone(launch.off)))
        elif not launch.scheduler and launch.planner is None:
            checks.append(
                Check(
                    "options",
                    text,
                    "these options start SGLang's own scheduler",
                    "add --scheduler tokenflow",
                )
            )
        else:
            checks.append(Check("options", text, active=_active(launch)))
            checks += [Check(*effect) for effect in launch.effects]
        if launch.storage is not None and refusal is None:
            checks.append(Check("restoration", _restoration(launch)))
    elif refusal is not None and not launch.no_device:
        checks.append(Check("options", "none", refusal, "start without --scheduler tokenflow"))
    return checks


def _active(launch: ExpectedLaunch) -> str:
    if launch.scheduler:
        return "--scheduler tokenflow"
    return f"--tokenflow-restore {launch.planner}, under SGLang's own scheduler"


def _restoration(launch: ExpectedLaunch) -> str:
    """What becomes of prompts whose beginning is in the storage."""
    of = f"of a prefix in the storage ({launch.storage})"
    if launch.planner is None:
        return (
            f"off: all {of} is fetched before the prompt starts, or computed; "
            "--tokenflow-restore auto does both at once"
        )
    if launch.restores is False:
        return f"none: with this model's windows or states SGLang fetches {of} what it can"
    unless = "" if launch.restores else ", unless the model has windows or states"
    return f"{launch.planner}: the head {of} is computed while its tail is fetched{unless}"


def verdicts(lines: Sequence[Sequence[str]]) -> list[LaunchVerdict]:
    """What becomes of launches with these options, on whatever machine they are meant for."""
    with silence():
        from tokenflow_sgl.engine.launch_verdict import judge

        return [judge(line) for line in lines]


def elsewhere_checks(options: list[str]) -> list[Check]:
    """Options of a launch that is meant for another machine."""
    verdict = verdicts([options])[0]
    text = shlex.join(options)
    checks = [Check("device", "not asked: the launch is for another machine")]
    if verdict.unseen is not None:
        unknown = "But what depends on the model was not checked."
        checks.append(Check("model", f"{verdict.unseen}: not looked at", note=unknown))
    if verdict.off is not None:
        checks.append(Check("scheduler", "off", active=_alone(verdict.off)))
    if verdict.sglang is not None:
        return [*checks, Check("options", text, verdict.sglang, "change what it names")]
    checks += [
        Check(each.subject, "refused", f"tokenflow refuses: {each.sentence.rstrip('.')}", REMOVE)
        for each in verdict.refusals
    ]
    return [*checks, Check("options", text), *_effects_elsewhere(options)]


def _effects_elsewhere(options: list[str]) -> list[Check]:
    """What the scheduler changes of a launch that nothing refuses, but on another machine."""
    with silence():
        from tokenflow_sgl.engine.host_memory import HostRoom
        from tokenflow_sgl.engine.launching import RefusedError, effects

        try:
            found = effects(options, HostRoom(None, "the launch is for another machine"))
        except RefusedError:
            found = ()
    return [Check(*effect) for effect in found]


def _alone(reason: str) -> str:
    return f"SGLang's own scheduler: {reason}"


def seam_states() -> list[tuple[Seam, str | None]]:
    """Every SGLang internal that is used, with what is wrong with it or None.

    Reads SGLang's source, and imports what that does not tell of.
    """
    from tokenflow_sgl.engine.light_sglang import light, uncollected
    from tokenflow_sgl.engine.sglang import ledger, seam_check, seam_source

    states: list[tuple[Seam, str | None]] = []
    with silence(), uncollected():
        light()
        for seam in ledger.ledger():
            try:
                trouble = seam_source.problem(seam)
            except seam_source.UndecidedError:
                try:
                    trouble = seam_check.problem(seam)
                except Exception as error:  # SGLang's modules run their own code when imported
                    trouble = f"{seam.target} cannot be looked at: {type(error).__name__}: {error}"
            states.append((seam, trouble))
    return states


def seam_check(states: list[tuple[Seam, str | None]]) -> Check:
    """Whether all of them hold."""
    from tokenflow_sgl.engine.sglang.version import proved

    broken = [trouble for _, trouble in states if trouble]
    if not broken:
        return Check("seams", f"all {len(states)} hold")
    return Check(
        "seams",
        f"{len(broken)} of {len(states)} broken",
        broken[0],
        f"install SGLang {proved()} or start without --scheduler tokenflow",
    )


def seam_table(states: list[tuple[Seam, str | None]]) -> Table:
    """A row for each, red where it is broken."""
    table = Table("target", "kind", "why", "state", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for seam, trouble in states:
        state = trouble.removeprefix(seam.target).strip() if trouble else "ok"
        table.add_row(seam.target, seam.kind, seam.why, state, style="red" if trouble else None)
    return table


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard warnings, log lines and prints of modules that are imported meanwhile."""
    before = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)

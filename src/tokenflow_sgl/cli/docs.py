"""``tokenflow docs flags``: the pages of ``docs/`` that are generated from the code."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

_FLAGS_INTRO = """\
# Flags

<!-- Generated from the configuration: tokenflow docs flags > docs/flags.md -->

`--scheduler tokenflow` turns the scheduler on. With `--scheduler default`, or without the flag,
everything is left to SGLang, and no `--tokenflow-*` flag has an effect. A value outside its range
stops the start with a sentence.

In a YAML file for `--config` the names are the same without the dashes in front
(`tokenflow-eta: 1.1`); for `tokenflow_sgl.Engine` they are keywords (`tokenflow_eta=1.1`, and
`tokenflow_rate_class=("skimming=25",)`). SGLang's YAML reader takes neither on/off pairs nor
repeated flags: `--no-tokenflow-park` and a second `--tokenflow-rate-class` go on the command line.

The flags from `--tokenflow-eta` on belong to the policy `working-set`;
[scheduler.md](scheduler.md) says what they do there.

| flag | default | range | meaning |
| --- | --- | --- | --- |
"""


class Page(StrEnum):
    """Generated pages."""

    flags = "flags"


def docs(page: Annotated[Page, typer.Argument(help="The page to print.")]) -> None:
    """Print a generated page of the documentation, as Markdown."""
    assert page is Page.flags, "the only page so far"
    typer.echo(flags_page(), nl=False)


def flags_page() -> str:
    """docs/flags.md: every --tokenflow-* flag with its default, range and meaning."""
    from tokenflow_sgl.engine.config import settings

    rows = [_flag_row(name, default, item.metadata) for name, default, item in settings()]
    return _FLAGS_INTRO + "\n".join(rows) + "\n"


def _flag_row(name: str, default: Any, metadata: Any) -> str:
    flag = f"--tokenflow-{name.replace('_', '-')}"
    if isinstance(default, bool):
        flag = f"{flag}`, `--no-{flag.removeprefix('--')}"
        shown = "on" if default else "off"
    elif default == ():
        shown = "none"
    else:
        shown = f"`{default}`"
    limits = "" if metadata["low"] is None else f"{metadata['low']:.9g} to {metadata['high']:.9g}"
    return f"| `{flag}` | {shown} | {limits} | {metadata['help']} |"

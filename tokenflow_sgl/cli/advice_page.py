"""The page of ``tokenflow advise``: one HTML file without scripts, for phones, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from tokenflow_sgl.cli.advice_output import COLUMNS, load_title, rows, verdict
from tokenflow_sgl.lab.sim.study.own_settings import TOKENFLOW

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.advice import Advice, AdviceSetup


def advice_page(setup: AdviceSetup, found: Advice) -> str:
    """The page with the verdict and the figures."""
    environment = Environment(
        loader=PackageLoader("tokenflow_sgl.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("advice.html.j2").render(
        title=f"tokenflow advise: {setup.trace.name} on {setup.profile.device}",
        sentences=verdict(setup, found),
        headings=[heading for heading, *_ in COLUMNS],
        loads=[
            {
                "title": load_title(at),
                "rows": [
                    {
                        "name": name,
                        "ours": name == TOKENFLOW,
                        "cells": [show(run[key]) for _, key, show in COLUMNS],
                    }
                    for name, run in rows(at)
                ],
            }
            for at in found.loads
        ],
    )

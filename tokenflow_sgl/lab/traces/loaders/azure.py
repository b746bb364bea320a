"""Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024) and 2024.

Files at github.com/Azure/AzurePublicDataset (CC-BY-4.0).
"""

from __future__ import annotations

from pathlib import Path

from tokenflow_sgl.lab.traces.loaders.instants import INSTANT, TICKS, ticks
from tokenflow_sgl.lab.traces.loaders.intake import Intake, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.request import Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load_azure(path: Path, *, sort: bool = False, progress: Progress | None = None) -> Trace:
    """Load an Azure LLM inference trace; every digit of its times counts.

    Takes what inference-perf takes as `AzurePublicDataset`, too: spaces behind the commas, and rows
    without a header line.

    Args:
        path: CSV file, or .csv.gz.
        sort: Sort rows that are out of order instead of refusing them.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    table = Table(path, COLUMNS, progress, bare=INSTANT, kind="azure")
    intake = Intake(table, "TIMESTAMP", sort=sort)
    first = ""
    zoned = False
    for row in table.rows():
        time_text, prompt_text, output_text = (text.strip(" ") for text in row)
        time, has_zone = ticks(table, "TIMESTAMP", time_text)
        if not first:
            first, zoned = time_text, has_zone
        elif has_zone != zoned:
            table.fail("TIMESTAMP", time_text, "a zone in all rows or in none")
        prompt = table.count("ContextTokens", prompt_text)
        output = table.count("GeneratedTokens", output_text)
        intake.add(time, prompt, output)
    notes = [f"Azure LLM inference trace; its first row is of {first}."]
    return intake.trace(stem(table), notes, per_second=TICKS)

"""BurstGPT: requests to GPT-3.5 and GPT-4 services of a university over months.

Wang et al., "BurstGPT", arXiv:2401.17644; files at github.com/HPMLL/BurstGPT (CC-BY-4.0).
"""

from __future__ import annotations

from pathlib import Path

from tokenflow_sgl.lab.traces.loaders.intake import Intake, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.request import Trace

COLUMNS = (
    "Timestamp",
    "Model",
    "Request tokens",
    "Response tokens",
    "Total tokens",
    "Log Type",
)


def load_burstgpt(
    path: Path,
    *,
    model: str | None = None,
    log_type: str | None = None,
    sort: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load a BurstGPT file, whichever release; further columns of later releases are ignored.

    Args:
        path: CSV file, or .csv.gz.
        model: Keep only this model, as in `ChatGPT`; None: all.
        log_type: Keep only this log type, as in `Conversation log`; None: all.
        sort: Sort rows that are out of order instead of refusing them.
        progress: Told how far reading is.

    Returns:
        The trace. Failed requests (no response tokens), rows whose total is not the sum and those
        filtered out are counted as dropped.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    table = Table(path, COLUMNS, progress, kind="burstgpt")
    intake = Intake(table, "Timestamp", sort=sort)
    whole = True
    zero = None
    for time_text, its_model, prompt_text, output_text, total_text, its_log in table.rows():
        time = table.number("Timestamp", time_text)
        prompt = table.count("Request tokens", prompt_text)
        output = table.count("Response tokens", output_text)
        total = table.count("Total tokens", total_text)
        zero = time if zero is None else min(zero, time)
        whole = whole and time.is_integer()
        drop = None
        if model is not None and its_model != model:
            drop = f"model is not {model}"
        elif log_type is not None and its_log != log_type:
            drop = f"log type is not {log_type}"
        elif not output:
            drop = "no response tokens: the request failed"
        elif total != prompt + output:
            drop = "total tokens differ from request plus response tokens"
        intake.add(time, prompt, output, drop=drop)
    notes = [f"BurstGPT; zero is Timestamp {zero} s."]
    if whole:
        notes.append(
            "Its times are whole seconds: requests of one second arrive together "
            "(spread=1 spreads them)."
        )
    return intake.trace(stem(table), notes)

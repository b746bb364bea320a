"""Agent runs as closed-loop sessions: every call waits for the one before it and for its tools.

Made for the calls of mini-SWE-agent on SWE-bench Verified, one row per call, grouped by run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason, require_some, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest

COLUMNS = (
    "instance_id",
    "step",
    "offset_s",
    "created_unix",
    "prompt_tokens",
    "completion_tokens",
)
REASONING = "reasoning_tokens"
"""A column that not every file has: leading tokens of the answer that are thinking."""


class Think(StrEnum):
    """What becomes `think_s`. The file has only the gap between calls: generation plus tools.

    Attributes:
        gap: The whole gap. Generation at the provider counts as thinking: too long.
        none: Nothing. The next call follows the answer at once: too short.
        estimate: The gap less the previous answer's tokens over the provider's rate, at least 0.
    """

    gap = "gap"
    none = "none"
    estimate = "estimate"


@dataclass(slots=True)
class _ModelCall:
    run: int
    turn: int
    offset_s: float
    think_s: float
    prompt: int
    output: int
    reasoning: int


@dataclass(slots=True)
class _AgentRuns:
    """What a file has: calls, runs by name with their number, and when each run began.

    rows: of the file. dropped: calls that are left out, by reason. clamped: calls whose think time
    would be negative. longer: calls that state more reasoning than tokens.
    """

    calls: list[_ModelCall] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    created: list[float] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    clamped: int = 0
    longer: int = 0


def load_agent(
    path: Path,
    *,
    think: Think,
    provider_rate: float | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """Load agent runs as sessions.

    Args:
        path: CSV file, or .csv.gz; the calls of a run stand together, in order.
        think: How `think_s` is made of the gap between two calls.
        provider_rate: Tokens per second at which the provider generated; for `Think.estimate`.
        arrivals: When runs start; None: as recorded, which reflects the runner's parallelism.
        seed: Seed of the arrivals.
        progress: Told how far reading is.

    Returns:
        The trace, sorted by the times of calls (recorded starts) or of runs (drawn ones).

    Raises:
        TraceError: The file cannot be read or is malformed, or `provider_rate` does not fit.
    """
    _check_rate(think, provider_rate)
    table = Table(path, COLUMNS, progress, optional=(REASONING,), kind="agent")
    runs = _read_calls(table, think, provider_rate)
    require_some(table, runs.rows, len(runs.calls), runs.dropped)

    first = min(runs.created)
    starts = (
        [time - first for time in runs.created]
        if arrivals is None
        else draw_starts(arrivals, seed, len(runs.names)).tolist()
    )
    labels = list(runs.names)
    requests = sorted(
        (
            TraceRequest(
                arrival_s=starts[call.run] + call.offset_s,
                prompt_tokens=call.prompt,
                output_tokens=call.output,
                session=labels[call.run],
                turn=call.turn,
                think_s=call.think_s,
                reasoning_tokens=call.reasoning,
            )
            for call in runs.calls
        ),
        key=lambda request: request.arrival_s,
    )
    notes = (
        f"Agent runs as closed-loop sessions: {len(runs.names)} runs.",
        "Runs start as recorded, which reflects the runner's parallelism."
        if arrivals is None
        else f"Runs start by {spell(ARRIVALS, arrivals)}, seed {seed}.",
        _think_note(think, provider_rate, runs.clamped),
        *(
            [f"{runs.longer} answers state more reasoning than tokens; it was cut to these."]
            if runs.longer
            else []
        ),
    )
    accounting = Accounting(runs.rows, len(requests), dict(runs.dropped))
    return Trace(stem(table), tuple(requests), accounting, notes)


def _read_calls(table: Table, think: Think, provider_rate: float | None) -> _AgentRuns:
    found = _AgentRuns()
    turn = expected = output = 0
    name, offset, idle_since = "", 0.0, 0.0
    for its_name, step_text, offset_text, created_text, prompt_text, *texts in table.rows():
        step = table.count("step", step_text)
        its_offset = table.number("offset_s", offset_text)
        its_created = table.number("created_unix", created_text)
        prompt = table.count("prompt_tokens", prompt_text)
        its_output = table.count("completion_tokens", texts[0])
        reasoning = table.count(REASONING, texts[1] or "0")
        if not its_name:
            table.fail("instance_id", its_name, "the name of a run")
        if its_name != name:
            if its_name in found.names:
                table.fail("instance_id", its_name, "a run whose calls stand together")
            name, expected, turn, offset, output = its_name, 0, 0, its_offset, 0
            idle_since = its_offset
            found.names[name] = len(found.names)
            found.created.append(its_created - its_offset)
        if step != expected:
            table.fail("step", step_text, f"{expected}, the next step of the run")
        if its_offset < offset:
            table.error("is earlier than the call before it", "offset_s")
        expected, offset = step + 1, its_offset
        found.rows += 1
        reason = empty_reason(prompt, its_output)
        if reason:
            found.dropped[reason] += 1
            continue
        think_s = _think_s(think, its_offset - idle_since, output, provider_rate) if turn else 0.0
        found.clamped += think_s < 0
        found.longer += reasoning > its_output
        reasoning = min(reasoning, its_output)
        found.calls.append(
            _ModelCall(
                found.names[name],
                turn,
                its_offset,
                max(think_s, 0.0),
                prompt,
                its_output,
                reasoning,
            )
        )
        turn, output, idle_since = turn + 1, its_output, its_offset
    return found


def _check_rate(think: Think, rate: float | None) -> None:
    if (rate is None) == (think is Think.estimate):
        state = "must be given with" if rate is None else "has a meaning only with"
        raise TraceError(f"provider_rate {state} think=estimate")
    if rate is not None and not 0 < rate < float("inf"):
        raise TraceError(f"provider_rate is {rate!r}; allowed is a number above 0")


def _think_s(think: Think, gap: float, output: int, rate: float | None) -> float:
    if think is Think.none:
        return 0.0
    return gap if rate is None else gap - output / rate


def _think_note(think: Think, rate: float | None, clamped: int) -> str:
    if think is Think.gap:
        return "think_s is the whole gap between calls, generation at the provider included."
    if think is Think.none:
        return "think_s is 0: gaps between calls were left out."
    return (
        f"think_s is the gap between calls less the answer at {rate:g} tokens/s; "
        f"{clamped} gaps were shorter than that and count as 0."
    )
